"""Runs every test: the C++ ones, each fuzzer for a few seconds, the Python ones. Ends with "N passed, M failed".

Arguments go to pytest; with arguments only pytest runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "build" / "results"
FUZZ_SECONDS = "5"


@dataclass
class Count:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)

    def __str__(self) -> str:
        skipped = f", {self.skipped} skipped" if self.skipped else ""
        return f"{self.passed} passed, {self.failed} failed{skipped}"


def read_junit(file: Path) -> Count:
    """Counts test cases rather than trusting the totals: ctest and pytest name those differently."""
    count = Count()
    for case in ElementTree.parse(file).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        if kinds & {"failure", "error"}:
            count.failed += 1
        elif "skipped" in kinds:
            count.skipped += 1
        else:
            count.passed += 1
    return count


def run(title: str, command: list[str], junit: Path) -> Count:
    """Runs one test program. One that fails without naming a failed test (a crash, no tests at all) is one failure."""
    print(f"\n=== {title}", flush=True)
    junit.unlink(missing_ok=True)
    start = time.monotonic()
    status = subprocess.run(command, cwd=ROOT, check=False).returncode
    count = Count()
    try:
        count = read_junit(junit)
    except (OSError, ElementTree.ParseError):
        print(f"{title}: wrote no results")
        status = status or 1
    if status and not count.failed:
        count.failed = 1
        print(f"{title}: ended with exit code {status}")
    print(f"--- {title}: {count} in {time.monotonic() - start:.0f} s", flush=True)
    return count


def main() -> int:
    os.environ["PYTHONUNBUFFERED"] = "1"
    RESULTS.mkdir(parents=True, exist_ok=True)
    total = Count()
    if not sys.argv[1:]:
        ctest = ["ctest", "--preset", "release", "-j2", "--no-tests=error", "--output-junit", str(RESULTS / "cpp.xml")]
        total += run("C++ tests", ctest, RESULTS / "cpp.xml")
        if which("clang++-19"):
            fuzz = ["scripts/fuzz", FUZZ_SECONDS, str(RESULTS / "fuzz.xml")]
            total += run(f"fuzzers, {FUZZ_SECONDS} s each", fuzz, RESULTS / "fuzz.xml")
        else:
            print("\n=== fuzzers: left out, this machine has no clang++-19")
    pytest = [sys.executable, "-m", "pytest", "tests", f"--junit-xml={RESULTS / 'python.xml'}", *sys.argv[1:]]
    total += run("Python tests", pytest, RESULTS / "python.xml")
    print(f"\n{total}")
    return 1 if total.failed or not total.passed else 0


if __name__ == "__main__":
    sys.exit(main())
