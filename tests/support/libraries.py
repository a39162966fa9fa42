"""The Python that has fastai, Lightning and the like: .setup/libraries, or this one where make setup installed nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def python_with(module: str) -> str:
    """Skips where no Python has it."""
    own = ROOT / ".setup" / "libraries" / "bin" / "python"
    for python in [str(own)] if own.exists() else [sys.executable]:
        question = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
        if subprocess.run([python, "-c", question], timeout=60).returncode == 0:
            return python
    pytest.skip(f"no {module} here: make setup TORCH=system installs nothing")
