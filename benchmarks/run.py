"""`make bench`: ddip beside its peers (ipyparallel 9, torch on Gloo) in one run, A B A B, medians and p90, the ratio last.

    python benchmarks/run.py [--quick] [--only NAME,…] [--markdown FILE]

A compute-only control runs through the whole time; if it moved by more than 10% the run is void, and says so.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import data_parallel  # noqa: E402
import interactive  # noqa: E402
import pipeline  # noqa: E402
import pipeline_actions  # noqa: E402
import pipeline_gpu  # noqa: E402
import pipeline_ready  # noqa: E402
import slow_link  # noqa: E402
from table import Table, control_seconds  # noqa: E402

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def machine() -> str:
    model = next(
        (line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    memory = next(int(line.split()[1]) for line in open("/proc/meminfo") if line.startswith("MemTotal")) / 2**20
    return f"{os.cpu_count()} cores ({model}), {memory:.0f} GiB, Linux {platform.release()}, Python {platform.python_version()}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few repeats: to see that it runs, not for figures")
    parser.add_argument("--only", default="", help="comma-separated names of measures")
    parser.add_argument("--markdown", default="", help="also write the table to this file")
    options = parser.parse_args()
    subprocess.run(
        ["cmake", "--build", os.path.join(ROOT, "build", "release"), "--target", "echo_benchmark"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    folder = tempfile.mkdtemp(prefix="ddb", dir="/tmp")
    os.environ.update(
        {
            "DDIP_RUNTIME_DIR": os.path.join(folder, "r"),
            "XDG_STATE_HOME": os.path.join(folder, "s"),
            "IPYTHONDIR": os.path.join(folder, "ipython"),
        }
    )
    os.environ.update({"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"})
    table = Table()
    before = control_seconds()
    begun = time.monotonic()
    try:
        for name, measure in {
            **interactive.MEASURES,
            **data_parallel.MEASURES,
            **pipeline.MEASURES,
            **pipeline_actions.MEASURES,
            **pipeline_gpu.MEASURES,
            **pipeline_ready.MEASURES,
            **slow_link.MEASURES,
        }.items():
            if options.only and name not in options.only.split(","):
                continue
            print(f"… {name}", file=sys.stderr, flush=True)
            measure(table, options.quick)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    after = control_seconds()
    text = table.text()
    print(text)
    moved = abs(after / before - 1)
    verdict = f"control moved by {moved:.0%}" + (": the run is VOID" if moved > 0.1 else "")
    print(f"\n{machine()}; {verdict}; {time.monotonic() - begun:.0f} s")
    if options.markdown:
        with open(options.markdown, "w") as file:
            json_args = " ".join(sys.argv[1:])
            file.write(table.markdown(f"`.venv/bin/python benchmarks/run.py {json_args}` on {machine()}; {verdict}."))
    return 1 if moved > 0.1 else 0


if __name__ == "__main__":
    sys.exit(main())
