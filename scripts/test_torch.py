#!/usr/bin/env python
"""make test-torch: every case of torch's own distributed suite that passes on Gloo passes on `ddip`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

SUITE = Path(__file__).with_name("torch_suite.py")
# Where torch asks for names that no backend of others can have.
EXCEPTIONS = {
    "test_monitored_barrier_gloo": "torch.distributed.monitored_barrier is for Gloo only, by name",
    "test_monitored_barrier_gloo_rank_0_timeout": "the same",
    "test_monitored_barrier_gloo_subgroup": "the same",
    "test_ddp_logging_data_cpu": "DDP's log calls every backend that is not torch's own 'custom'",
}


def run(backend: str, folder: str) -> dict[str, str]:
    out = Path(folder) / f"{backend}.json"
    print(f"--- torch's suite on {backend} (two to three minutes)", flush=True)
    with open(Path(folder) / f"{backend}.log", "w") as log:
        subprocess.run([sys.executable, SUITE, "--backend", backend, "--out", out], stdout=log, stderr=log, check=False)
    return dict(json.loads(out.read_text()))


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        gloo, ours = run("gloo", folder), run("ddip", folder)
    wanted = sorted(name for name, outcome in gloo.items() if outcome == "passed" and name not in EXCEPTIONS)
    missing = [name for name in wanted if ours.get(name) != "passed"]
    for name in missing:
        print(f"{ours.get(name, 'absent')}: {name}")
    for name, why in EXCEPTIONS.items():
        print(f"exception: {name}: {why}")
    print(
        f"{len(wanted) - len(missing)} of {len(wanted)} cases that pass on Gloo pass on ddip, {len(EXCEPTIONS)} exceptions"
    )
    return 1 if missing or not wanted else 0


if __name__ == "__main__":
    sys.exit(main())
