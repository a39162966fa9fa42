"""The examples as a reader gets them: the notebook is stored clean, the C++ client builds outside the tree and works."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"


def test_notebooks_are_stored_without_outputs() -> None:
    files = sorted(EXAMPLES.glob("*.ipynb"))
    assert files
    for file in files:
        cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        assert len(code) >= 8, file.name
        assert not any(cell["outputs"] or cell["execution_count"] for cell in code), file.name


def test_quickstart_is_a_valid_notebook() -> None:
    nbformat = pytest.importorskip("nbformat")
    nbformat.validate(nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4))


@pytest.mark.timeout(240)
def test_data_parallel_notebook_trains_a_gan_and_compresses(monkeypatch: pytest.MonkeyPatch) -> None:
    if (ROOT / ".setup" / "without_engine").exists():
        pytest.skip("make setup left the data plane out")
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("torch")
    notebook = nbformat.read(EXAMPLES / "data_parallel.ipynb", as_version=4)
    nbformat.validate(notebook)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "python"))
    nbclient.NotebookClient(notebook, timeout=200, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    said = "".join(
        str(output.get("text", "")) + str(output.get("data", {}).get("text/plain", "")) for output in outputs
    )
    assert "check: gan is the same on ranks 0-1" in said
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    losses = {name: float(loss) for name, loss in re.findall(r"(\S+) +last loss ([\d.]+),", said)}
    assert list(losses) == ["none", "fp16", "int8", "topk:0.05", "powersgd:2"]
    assert all(loss < 0.1 for loss in losses.values()), losses


def run(*command: object) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if shutil.which("cmake") is None:
        pytest.skip("this machine has no cmake")
    folder = tmp_path_factory.mktemp("examples")
    run("cmake", "--install", ROOT / "build" / "release", "--prefix", folder / "prefix")
    (folder / "source").mkdir()
    for name in ("CMakeLists.txt", "client.cpp"):
        shutil.copy(EXAMPLES / name, folder / "source")
    run("cmake", "-S", folder / "source", "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={folder / 'prefix'}")
    run("cmake", "--build", folder / "build")
    return folder / "build" / "client"


def ask(client: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([client, *arguments], env=os.environ, capture_output=True, text=True, timeout=30)


@pytest.mark.timeout(240)
def test_client_prints_what_each_rank_said(client: Path, start: Callable[..., Any]) -> None:
    group = start(2)
    done = ask(client, group.name, "import os\nfor i in range(100): print('line', i, 'of rank', os.environ['RANK'])")
    assert done.returncode == 0, done.stderr
    for rank in (0, 1):
        lines = "".join(f"line {i} of rank {rank}\n" for i in range(100))
        assert f"rank {rank} said: {lines}" in done.stdout


@pytest.mark.timeout(240)
def test_client_names_the_groups_when_there_is_no_such_one(client: Path, start: Callable[..., Any]) -> None:
    group = start(1)
    done = ask(client, "nosuch")
    assert done.returncode == 2
    assert "nosuch" in done.stderr and group.name in done.stderr and len(done.stderr.splitlines()) == 1
