"""`make demo` as a person sees it: progress, three last lines, a page with pictures, and no group left behind."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
NEEDED = ("nbclient", "nbconvert", "ipykernel", "matplotlib", "torch")

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in NEEDED), reason="the demo needs Jupyter and torch"
    ),
]


def demo(out: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if name != "DDIP_PRELOAD"}
    variables["PYTHONPATH"] = str(ROOT / "python")
    command = [sys.executable, ROOT / "scripts" / "demo.py", "--out", out, *arguments]
    return subprocess.run(
        [str(word) for word in command], env=variables, cwd=ROOT, capture_output=True, text=True, timeout=500
    )


def groups() -> list[str]:
    from ddip import group

    return group.groups()


def notebook_with(tmp_path: Path, *cells: str) -> Path:
    import nbformat
    from nbformat.v4 import new_code_cell, new_notebook

    file = tmp_path / "other.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell(cell) for cell in cells]), file)
    return file


def test_demo_trains_checks_and_shows_what_to_open(tmp_path: Path) -> None:
    import nbformat

    done = demo(tmp_path / "out")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.rstrip("\n").splitlines()
    assert "[ 1/15]" in done.stdout and "[15/15]" in done.stdout
    assert "      replicas equal: True" in lines
    assert lines[-5] == "" and all(lines[-4:])
    assert "replicas equal" in lines[-4] and "unet.html" in lines[-2] and "jupyter lab" in lines[-1]
    first, last = re.findall(r"As a pipeline in two parts: loss ([\d.]+) → ([\d.]+)\.", lines[-3])[0]
    assert float(last) < 0.7 * float(first)
    page = (tmp_path / "out" / "unet.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") >= 3 and "replicas equal: True" in page
    assert "forwards by staleness" in page and 'class="backward"' in page, "the pipeline's report with its timeline"
    assert "micro-batch 1 of" not in page, "which took the place of the picture that moved"
    executed: Any = nbformat.read(tmp_path / "out" / "unet.ipynb", as_version=4)
    assert all(cell.execution_count for cell in executed.cells if cell.cell_type == "code")
    # The same from the command line.
    for command in ("data synth", "unet train", "unet evaluate", "unet predict"):
        assert f"$ ddip {command}" in done.stdout
    assert "epoch 6/6" in done.stdout and "majority class" in done.stdout
    assert len(list((tmp_path / "out" / "predictions").glob("event-*.png"))) == 4
    assert groups() == []


def test_quickstart_trains_and_its_replicas_are_equal(tmp_path: Path) -> None:
    done = demo(tmp_path / "out", "--notebook", ROOT / "examples" / "quickstart.ipynb")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "      replicas equal: True, 4482 parameters each" in done.stdout.splitlines()
    assert "quickstart.html" in done.stdout and "$ ddip" not in done.stdout
    assert groups() == []


def test_demo_that_fails_in_the_middle_says_so_and_leaves_no_group(tmp_path: Path) -> None:
    file = notebook_with(
        tmp_path, "%load_ext ddip\n%makedip -n 1", "%%dip\nraise ValueError('planted')", "print('never')"
    )
    done = demo(tmp_path / "out", "--notebook", file)
    assert done.returncode == 1
    assert "ValueError: planted" in done.stdout and "The demo failed" in done.stdout and "never" not in done.stdout
    assert (tmp_path / "out" / "other.html").exists()
    assert groups() == []


@pytest.mark.parametrize(
    ("results", "complaint"),
    [
        ("replicas_equal, history = False, [1.0, 0.1]", "the two copies of the model differ"),
        ("replicas_equal, history = True, [1.0, 0.9]", "the loss did not go down"),
        ("replicas_equal, history, accuracy = True, [1.0, 0.1], 0.7", "the network learned too little"),
        (
            "replicas_equal, history, pipeline_history = True, [1.0, 0.1], [1.0, 0.9, 0.8]",
            "the pipeline's loss did not go down: 1.0000 at first, 0.8000 at last",
        ),
        ("pass", "the notebook has no"),
    ],
)
def test_demo_does_not_believe_a_bad_run(tmp_path: Path, results: str, complaint: str) -> None:
    done = demo(tmp_path / "out", "--notebook", notebook_with(tmp_path, results))
    assert done.returncode == 1
    assert complaint in done.stdout
