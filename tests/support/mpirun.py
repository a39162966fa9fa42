"""Programs under Open MPI's mpirun, as a test may be root in a container with fewer cores than ranks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

# Reads of other processes' memory are forbidden in many containers; MPI says so and goes on, over a copy.
SETTINGS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMP_NUM_THREADS": "1",
}
there = pytest.mark.skipif(shutil.which("mpirun") is None, reason="no mpirun here")


def environment() -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return {**ours, **SETTINGS}


def mpirun(ranks: int, *command: object, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    words = ["mpirun", "-n", str(ranks), *(str(word) for word in command)]
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout, env=environment())


def python(ranks: int, folder: Path, code: str, **options: Any) -> subprocess.CompletedProcess[str]:
    script = folder / "program.py"
    script.write_text(code)
    return mpirun(ranks, sys.executable, script, **options)
