"""Lists the packages of packages/python.txt that this machine's Python has not; exit 1 when the build needs one."""

import re
import sys
from importlib import metadata

NEEDED = {"torch", "pybind11"}


def main(path: str) -> int:
    with open(path, encoding="utf-8") as lines:
        names = [re.split(r"[=<>~! ]", line.strip())[0] for line in lines if line.strip() and not line.startswith("#")]
    missing = []
    for name in names:
        try:
            metadata.distribution(name)
        except metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        print("Left out, because this machine's Python has no:", ", ".join(missing))
    if needed := NEEDED.intersection(missing):
        print("The build needs", " and ".join(sorted(needed)))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
