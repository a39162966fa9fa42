"""The examples as a reader gets them: the notebook is stored clean, the C++ client builds outside the tree and works."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.libraries import python_with

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


@pytest.fixture
def execute(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, int]]:
    """Runs a notebook in a kernel of this Python; what it said as text, and how many pictures it drew."""
    if (ROOT / ".setup" / "without_engine").exists():
        pytest.skip("make setup left the data plane out")
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    kernels = pytest.importorskip("jupyter_client")
    pytest.importorskip("torch")
    monkeypatch.delenv("DDIP_PRELOAD", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "python"))

    def run_notebook(name: str, python: str = sys.executable) -> tuple[str, int]:
        notebook = nbformat.read(EXAMPLES / name, as_version=4)
        nbformat.validate(notebook)
        kernel = kernels.AsyncKernelManager(kernel_name="python3")
        kernel.kernel_spec.argv[0] = python
        nbclient.NotebookClient(notebook, timeout=200, km=kernel).execute()
        outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
        said = "\n".join(
            str(output.get("text", "")) + str(output.get("data", {}).get("text/plain", "")) for output in outputs
        )
        return said, sum("image/png" in output.get("data", {}) for output in outputs)

    return run_notebook


@pytest.mark.timeout(240)
def test_gan_notebook_trains_both_halves_alike_on_both_ranks(execute: Callable[..., tuple[str, int]]) -> None:
    said, pictures = execute("gan.ipynb")
    assert "check: gan is the same on ranks 0-1" in said
    assert "2002 backwards" in said and pictures == 2


@pytest.mark.timeout(240)
def test_compression_notebook_learns_the_same_with_fewer_bytes(execute: Callable[..., tuple[str, int]]) -> None:
    said, pictures = execute("compression.ipynb")
    found = re.findall(r"(\S+) +last loss ([\d.]+), +([\d.]+) KiB", said)
    assert [name for name, _, _ in found] == ["none", "fp16", "bf16", "int8", "topk:0.05", "powersgd:2"]
    assert all(float(loss) < 0.1 for _, loss, _ in found), found
    sent = [float(size) for _, _, size in found]
    assert sent == sorted(sent, reverse=True) and sent[1] == pytest.approx(sent[0] / 2, rel=0.01)
    assert pictures == 1


@pytest.mark.timeout(240)
def test_fastai_notebook_trains_on_both_ranks_and_shows_each_thing_once(
    execute: Callable[..., tuple[str, int]],
) -> None:
    said, pictures = execute("fastai.ipynb", python_with("fastai"))
    assert pictures == 3, "the curve of lr_find, the losses, what was learned: each once"
    assert re.search(r"^the valley is at [\d.]+$", said, re.MULTILINE), said
    assert said.count("train_loss") == 2 and "[1] epoch" not in said
    assert "check: net is the same on ranks 0-1" in said
    right = re.search(r"600 predictions, ([\d.]+) of them right", said)
    assert right and float(right[1]) > 0.9, said
    assert "the app is left" in said


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


@pytest.mark.timeout(240)
def test_the_pipeline_notebook_trains_both_ways_and_proves_what_it_did(execute: Callable[..., tuple[str, int]]) -> None:
    said, _ = execute("pipeline.ipynb")
    assert "policy: msnag" in said and "staleness of stage 0's forwards: {" in said
    assert re.search(r"\d+ actions and \d+ steps computed again: identical", said), said
    assert said.count("forwards by staleness") == 2 and "stage 1 on rank 1: " in said and "rate 0.005" in said
    for first, last in re.findall(r"loss (\d+\.\d+) -> (\d+\.\d+)", said):
        assert float(last) < 0.5 * float(first)
    assert len(re.findall(r"loss (\d+\.\d+) -> (\d+\.\d+)", said)) == 2


@pytest.mark.timeout(240)
def test_the_u_net_in_a_pipeline_keeps_its_skips_within_ranks_and_learns() -> None:
    if (ROOT / ".setup" / "without_engine").exists():
        pytest.skip("make setup left the data plane out")
    pytest.importorskip("torch")
    program = ROOT / "python" / "ddip" / "_bin" / "ddip"
    done = subprocess.run(
        [program, "run", "-n", "2", "--no-prefix", "--", sys.executable, EXAMPLES / "unet_pipeline.py"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rank_of: dict[str, set[str]] = {}
    stages = re.findall(r"^stage (\d) on rank (\d): (.*)$", done.stdout, re.MULTILINE)
    for _, rank, blocks in stages:
        for block in blocks.split(", "):
            rank_of.setdefault(block, set()).add(rank)
    assert [rank for _, rank, _ in stages] == ["0", "1", "0"], "out through the ranks and back"
    for level in range(3):
        assert rank_of[f"encoder.{level}"] == rank_of[f"decoder.{level}"], "an encoder block lies beside its mirror"
    assert rank_of["encoder.0"] == {"0"} and rank_of["bottom"] == {"1"}
    # Only neighbours talk over the link; what goes from the first stage to the last, a skip, stays on their rank.
    assert "between ranks: 0 to 1, 1 to 2; within a rank: 0 to 2\n" in done.stdout
    first, last = re.findall(r"policy msnag: loss ([\d.]+) -> ([\d.]+)", done.stdout)[0]
    assert float(last) < 0.3 * float(first)
    one, other = re.findall(r"held out: ([\d.]+) in the pipeline, ([\d.]+) in one piece", done.stdout)[0]
    assert float(one) == pytest.approx(float(other), rel=1e-3), "the stages are the model"
    assert float(re.findall(r"not background: ([\d.]+)", done.stdout)[0]) > 0.9
