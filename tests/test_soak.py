"""Long ones, run by `make soak`: a hundred starts; a hundred forks of four workers from a warm parent that has imported
what people import. DDIP_SOAK_ROUNDS is for a shorter try."""

from __future__ import annotations

import importlib.util
import os
import time
from typing import Any

import pytest
from support import processes

ROUNDS = int(os.environ.get("DDIP_SOAK_ROUNDS", "100"))
# Of one round: new workers and all of their work.
LIMIT = 60

pytestmark = [pytest.mark.soak, pytest.mark.timeout(120 + ROUNDS * LIMIT)]

# What the warm parent imports after torch.
LIBRARIES = {
    "torch": [],
    "fastai": ["support.torchvision_operators", "fastai.vision.all"],
    # torchmetrics imports torchvision where there is one.
    "lightning": ["support.torchvision_operators", "lightning.pytorch"],
    "pandas": ["pandas", "pyarrow", "pyarrow.parquet"],
    "matplotlib": ["matplotlib.pyplot"],
}

# The threads first: a loader's workers are forked from a process that has them.
WORK = """
from support import library_work
library_work.differentiate_in_parallel(2)
library_work.drain_loader()
library_work.work_with_{library}()
import os
os.getpid()
"""


@pytest.mark.parametrize("library", LIBRARIES)
def test_workers_forked_from_a_parent_that_imported_it_do_parallel_work(
    start: Any, monkeypatch: Any, capsys: Any, library: str
) -> None:
    preload = ["torch", *LIBRARIES[library]]
    for module in preload:
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            pytest.skip(f"this Python has no {module}")
    monkeypatch.setenv("DDIP_PRELOAD", ",".join(preload))
    group = start(4, threads=2, timeout=LIMIT)
    agent = group.info()["agent"]
    assert (agent["start"], agent["warm"]["unsafe"]) == ("fork", "")
    assert sorted(agent["warm"]["imports"]) == sorted(preload)

    slowest, begun = 0.0, time.monotonic()
    for number in range(ROUNDS):
        round_begun = time.monotonic()
        if number:
            group.restart(timeout=LIMIT)
        cell = group.run(WORK.format(library=library), wait=False)
        if not cell.wait(round_begun + LIMIT - time.monotonic()):
            pytest.fail(f"round {number} is not over after {LIMIT} s: {group.why()}")
        ranks = group.info()["ranks"]
        assert [rank["incarnation"] for rank in ranks] == [number + 1] * 4, "every round has workers of its own"
        assert [result.value for result in cell.results()] == [rank["pid"] for rank in ranks]
        slowest = max(slowest, time.monotonic() - round_begun)
    assert group.info()["agent"]["warm_parent"] == agent["warm_parent"], "all of them from one warm parent"
    with capsys.disabled():
        print(f"\n{library}: {ROUNDS} rounds in {time.monotonic() - begun:.0f} s, the slowest {slowest:.1f} s")


@pytest.mark.parametrize("method", ["fork", "exec"])
def test_starts_and_stops_with_torch_succeed(start: Any, home: Any, method: str) -> None:
    for _ in range(ROUNDS):
        group = start(torch=True, start=method)
        assert [result.value for result in group.run("import torch; torch.ones(2).sum().item()")] == [2.0, 2.0]
        group.stop()
    assert processes.of_runtime(str(home)) == []
