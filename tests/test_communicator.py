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
