"""C++ programs outside the tree train with ddip::ddip, data-parallel and in a pipeline: those of examples/cpp."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import mpirun
from support.linking import loads_all_of_torch, takes_filesystem_from_torch

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.timeout(400)
pytest.importorskip("torch")
if (ROOT / ".setup" / "without_engine").exists():
    pytest.skip("make setup left the data plane out", allow_module_level=True)


def run(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("engine")
    run("cmake", "--install", ROOT / "build" / "release", "--prefix", folder / "prefix")
    shutil.copytree(ROOT / "examples" / "cpp", folder / "source")
    where = [f"-DCMAKE_PREFIX_PATH={folder / 'prefix'}", f"-DPython_EXECUTABLE={sys.executable}"]
    run("cmake", "-S", folder / "source", "-B", folder / "build", *where)
    run("cmake", "--build", folder / "build")
    return folder / "build"


def weights(output: str) -> list[str]:
    return [found[1] for found in sorted(re.findall(r"rank (\d) of \d: weights (\S+)", output))]


def under_mpirun(program: Path) -> str:
    done = mpirun.mpirun(2, program)
    assert done.returncode == 0, done.stderr
    return done.stdout


def under_ddip_run(program: Path, *arguments: object) -> str:
    return run(Path(sys.executable).parent / "ddip", "run", "-n", "2", "--", program, *arguments)


LAUNCHERS = {
    "torchrun": lambda program: run(
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python", program
    ),
    "ddip run": under_ddip_run,
    "mpirun": under_mpirun,
}


def test_functions_of_the_cpp_library_are_not_torchs_and_torch_is_whole(programs: Path) -> None:
    assert not takes_filesystem_from_torch(programs / "pipeline")
    assert loads_all_of_torch(programs / "pipeline")


@pytest.mark.parametrize("launcher", ["torchrun", "ddip run", pytest.param("mpirun", marks=mpirun.there)])
def test_ranks_with_different_data_learn_the_same_weights(programs: Path, launcher: str) -> None:
    program = programs / "train"
    output = LAUNCHERS[launcher](program)
    both = weights(output)
    assert len(both) == 2 and both[0] == both[1]
    losses = [float(text) for text in re.findall(r"loss (\S+)", output)]
    assert len(losses) == 5 and losses[-1] < losses[0] / 10
    # Each rank has data of its own, so alone it learns something else.
    assert weights(run(program)) != both[:1]


def loss_of_pipeline(output: str) -> tuple[float, float, str]:
    """(first, last, weights)."""
    (found,) = re.findall(r"loss (\S+) -> (\S+), staleness policy msnag, weights (\S+)", output)
    return float(found[0]), float(found[1]), found[2]


@pytest.mark.parametrize("launcher", ["torchrun", "ddip run", pytest.param("mpirun", marks=mpirun.there)])
def test_a_pipeline_of_two_ranks_learns(programs: Path, launcher: str) -> None:
    output = LAUNCHERS[launcher](programs / "pipeline")
    first, last, _ = loss_of_pipeline(output)
    assert last < first / 5
    assert "200 batches in" in output and len(re.findall(r"^ +[01] +[01] .*%$", output, re.MULTILINE)) == 2


def test_what_the_pipeline_did_is_computed_again_in_python(programs: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "run.ledger"
    shutil.copy(ROOT / "examples" / "cpp" / "pipeline.py", tmp_path)
    under_ddip_run(programs / "pipeline", ledger)
    said = run(Path(sys.executable).parent / "ddip", "replay", ledger)
    assert said.splitlines()[-1] == "identical" and "2 stages, async_1f1b, msnag, 800 micro-batches" in said


def test_a_model_with_branches_lies_where_its_skips_cross_no_link(programs: Path) -> None:
    output = under_ddip_run(programs / "branches")
    stages = re.findall(r"^stage (\d), (.*), on rank (\d)$", output, re.MULTILINE)
    assert [rank for _, _, rank in stages] == ["0", "1", "0"]
    assert stages[0][1].startswith("down0") and stages[2][1].endswith("up0")
    (losses,) = re.findall(r"loss (\S+) -> (\S+)", output)
    assert float(losses[1]) < float(losses[0]) / 4
    assert re.findall(r"^stage \d, (.*), on", run(programs / "branches"), re.MULTILINE) == ["down0 … up0"], "and alone"
