#!/usr/bin/env python
"""torch's own suite of distributed tests (it is shipped inside torch) on a backend, two ranks on CPU.

    scripts/torch_suite.py --backend ddip --out results.json [NAME ...]

Prints a line per case and writes {case: "passed" | "skipped" | "failed"}. Which cases exist for a backend torch decides by its
name when the suite is loaded; here it is loaded as for `gloo`, and the ranks then make groups of the backend. Ranks are forked, not spawned: importing torch twice for each of
285 cases takes a quarter of an hour.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import unittest
from typing import Any

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--backend", default="ddip")
parser.add_argument("--out", default="")
parser.add_argument("names", nargs="*")
arguments = parser.parse_args()

os.environ.update(BACKEND="gloo", WORLD_SIZE="2", TEMP_DIR=tempfile.mkdtemp(prefix="torch-suite-"), OMP_NUM_THREADS="1")

import torch  # noqa: E402  (after its environment)
import torch.distributed as distributed  # noqa: E402
from torch.testing._internal.distributed import distributed_test  # noqa: E402

import ddip  # noqa: E402, F401  (registers the backend)

distributed_test.BACKEND = arguments.backend
# These ask in their bodies which of torch's own backends it is, and know no other.
KNOW_TORCHS_OWN_ONLY = {
    "test_accumulate_gradients_no_sync",
    "test_accumulate_gradients_no_sync_allreduce_hook",
    "test_accumulate_gradients_no_sync_allreduce_with_then_hook",
    "test_accumulate_gradients_no_sync_grad_is_view",
}


class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self) -> None:
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    def run_test(self, name: str, pipe: Any) -> None:
        """In a rank, with its process group made."""
        if name in KNOW_TORCHS_OWN_ONLY:
            distributed_test.BACKEND = "gloo"
        super().run_test(name, pipe)


class Report(unittest.TestResult):
    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, str] = {}
        self._begun = 0.0

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        self._begun = time.monotonic()

    def _end(self, test: Any, outcome: str, why: str = "") -> None:
        name = test.id().rsplit(".", 1)[-1]
        self.outcomes[name] = outcome
        print(f"{outcome:8} {time.monotonic() - self._begun:6.1f} s  {name}  {why}", flush=True)

    def addSuccess(self, test: Any) -> None:
        self._end(test, "passed")

    def addSkip(self, test: Any, reason: str) -> None:
        self._end(test, "skipped", reason[:80])

    def addFailure(self, test: Any, err: Any) -> None:
        text = self._exc_info_to_string(err, test).strip()  # type: ignore[attr-defined]
        self._end(test, "failed", text.splitlines()[-1][:300])

    def addError(self, test: Any, err: Any) -> None:
        self.addFailure(test, err)


def main() -> int:
    suite: Any = unittest.defaultTestLoader.loadTestsFromTestCase(Suite)
    report = Report()
    begun = time.monotonic()
    for test in suite:
        if not arguments.names or test.id().rsplit(".", 1)[-1] in arguments.names:
            test(report)
    counts = {one: sum(o == one for o in report.outcomes.values()) for one in ("passed", "skipped", "failed")}
    print(f"{distributed_test.BACKEND}: {counts} in {time.monotonic() - begun:.0f} s")
    if arguments.out:
        with open(arguments.out, "w") as file:
            json.dump(report.outcomes, file, indent=1, sort_keys=True)
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    assert distributed.is_available()
    sys.exit(main())
