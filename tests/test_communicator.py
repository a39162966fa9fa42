"""One suite for every communicator (support/contract.py): three ranks in a group, or under mpirun."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support import mpirun

import ddip

pytest.importorskip("torch")
if (Path(__file__).parent.parent / ".setup" / "without_engine").exists():
    pytest.skip(
        "make setup left the data plane out: it does not compile with this machine's torch", allow_module_level=True
    )
from support.contract import CASES

CONTRACT = Path(__file__).parent / "support" / "contract.py"
Outcomes = dict[str, dict[int, Any]]

# What torch's Gloo does not have, and says so.
GLOO_REFUSES = {f"{op} of int16": "Invalid scalar type" for op in ("sum", "min", "max", "product")}


def in_group(backend: str) -> Outcomes:
    with ddip.Group(workers=3, name=f"contract-{backend}") as group:
        group.run(f"import sys; sys.path.insert(0, {str(CONTRACT.parent)!r}); import contract")
        group.run(f"ranks = contract.ddip.comm({backend!r})")
        return {
            name: {result.rank: result.value for result in group.run(f"contract.outcome({name!r}, ranks)")}
            for name in CASES
        }


def under_mpirun() -> Outcomes:
    done = mpirun.mpirun(3, sys.executable, CONTRACT, "mpi")
    assert done.returncode == 0, done.stdout + done.stderr
    found: Outcomes = {}
    for name, rank, outcome in (json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")):
        found.setdefault(name, {})[rank] = outcome
    return found


@pytest.fixture(scope="module", params=["shm", "gloo", pytest.param("mpi", marks=mpirun.there)])
def outcomes(request: Any) -> tuple[str, Outcomes]:
    return request.param, under_mpirun() if request.param == "mpi" else in_group(request.param)


@pytest.mark.parametrize("name", CASES)
def test_a_communicator_keeps_the_contract(outcomes: tuple[str, Outcomes], name: str) -> None:
    backend, found = outcomes
    if backend == "gloo" and name in GLOO_REFUSES:
        assert all(GLOO_REFUSES[name] in str(outcome) for outcome in found[name].values()), found[name]
    else:
        assert found[name] == dict.fromkeys(range(3), True)


# --- which one, by name


def said(group: Any, code: str) -> list[Any]:
    return [result.value for result in group.run(code)]


ASKED = """
import ddip
def refusal(name):
    try: ddip.comm(name)
    except ddip.ConfigError as error: return str(error)
"""


def test_auto_is_what_the_group_was_started_with_and_says_so() -> None:
    with ddip.Group(workers=2, backend="gloo", name="by-gloo") as group:
        assert said(group, "import ddip; repr(ddip.comm())") == [
            f"<ddip.Communicator gloo: rank {rank} of 2, the group has --backend gloo>" for rank in range(2)
        ]
        group.run(f"import sys; sys.path.insert(0, {str(CONTRACT.parent)!r}); import replicas as r")
        assert all(worst < 1e-12 for worst in said(group, "r.train()"))
    with ddip.Group(workers=2, backend="shm", name="by-shm") as group:
        assert said(group, "import ddip; repr(ddip.comm())") == [
            f"<ddip.Communicator shm: rank {rank} of 2, the group has --backend shm>" for rank in range(2)
        ]
        group.rebuild()
        assert said(group, "import torch.distributed as dist; dist.get_backend()") == ["ddip"] * 2


def test_without_a_word_it_is_shared_memory_and_says_why() -> None:
    with ddip.Group(workers=2, name="by-auto") as group:
        assert said(group, "import ddip; repr(ddip.comm())") == [
            f"<ddip.Communicator shm: rank {rank} of 2, all ranks see one host's memory>" for rank in range(2)
        ]
        no_gpu = "backend='nccl' needs one GPU per rank, and rank {} has none: shm and gloo work on CPUs"
        assert said(group, ASKED + "refusal('nccl')") == [no_gpu.format(rank) for rank in range(2)]


def test_ranks_that_share_a_gpu_are_named_before_nccl_is_asked() -> None:
    from ddip.communicators import refuse_shared_gpus

    refuse_shared_gpus(["GPU-a", "GPU-b"])
    with pytest.raises(ddip.ConfigError) as error:
        refuse_shared_gpus(["GPU-a", "GPU-b", "GPU-c", "GPU-b"])
    assert str(error.value) == "backend='nccl' needs one GPU per rank, and ranks 1 and 3 share one: shm lets them"


def test_stop_ends_a_wait_in_gloo_by_name() -> None:
    with ddip.Group(workers=2, name="stop-gloo") as group:
        group.run("import ddip; ranks = ddip.comm('gloo'); kept = 7")
        cell = group.run(
            "print('in', flush=True)\nif ddip.rank() == 0: ranks.barrier()\nelse:\n    import time; time.sleep(600)",
            wait=False,
        )
        lines = cell.lines()
        assert {next(lines)[0], next(lines)[0]} == {0, 1}
        group.interrupt()
        with pytest.raises((KeyboardInterrupt, ddip.RankError)):
            cell.results()
        assert said(group, "kept") == [7, 7]
