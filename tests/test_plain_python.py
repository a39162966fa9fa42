"""Workers and clients where IPython is not installed: plain Python cells."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HIDE = str(Path(__file__).parent / "support" / "no_ipython")


def run_client(code: str) -> str:
    """In a process of its own, with a module path on which IPython cannot be imported."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([HIDE, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("start", ["fork", "exec"])
def test_cells_share_variables_print_values_and_report_errors_without_ipython(start: str) -> None:
    said = run_client(
        f"""
        import sys, ddip
        with ddip.Group(workers=2, start="{start}") as group:
            assert group.run("import sys; 'IPython' in sys.modules")[0].value is False
            group.run("x = 20")
            one = group.run("x + 22")[1]
            print(one.value, one.stdout.strip())
            try:
                group.run("def f():\\n    raise ValueError('boom')\\nf()")
            except ddip.RankError as error:
                print(error.ranks, "boom" in error.tracebacks[0], "in f" in error.tracebacks[0], "/ddip/worker/" in error.tracebacks[0])
            try:
                group.run("import ddip, torch\\nddip.Pipeline([], loss=None, optimizer=None)")
            except ddip.RankError as error:
                print(error.tracebacks[0].count(", line "))
            try:
                group.run("this is no Python")
            except ddip.RankError as error:
                print("SyntaxError" in error.tracebacks[0])
        print("IPython" in sys.modules)
        """
    )
    lines = said.splitlines()
    assert lines[0] == "42 42"
    assert lines[1].endswith("] True True False")
    assert lines[2:] == ["1", "True", "False"]


def test_completion_and_inspection_work_without_ipython() -> None:
    said = run_client(
        """
        import ddip
        with ddip.Group(workers=1) as group:
            group.run("only_there = 3\\ndef explained(): 'what it does'")
            cell = group.submit({"kind": "complete", "code": "only_th", "cursor": 7, "silent": True})
            cell.wait()
            print(cell.endings[0]["matches"])
            cell = group.submit({"kind": "inspect", "code": "explained", "cursor": 9, "silent": True})
            cell.wait()
            print("what it does" in cell.endings[0]["data"]["text/plain"])
        """
    )
    assert said.splitlines() == ["['only_there']", "True"]
