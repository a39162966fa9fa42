"""Pipelines, on real ranks: each beside one process."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ddip
from support.waiting import wait_until

SUPPORT = Path(__file__).parent / "support"


@pytest.fixture(scope="module")
def two() -> Iterator[ddip.Group]:
    with ddip.Group(workers=2, name="pipeline-two") as group:
        group.run(f"import sys; sys.path.insert(0, {str(SUPPORT)!r})\nimport torch, ddip, pipelines as p")
        yield group


@pytest.mark.parametrize("schedule", ["seq", "gpipe", "1f1b"])
@pytest.mark.parametrize("last", [12, 7, 2], ids=["even", "smaller last batch", "fewer samples than micro-batches"])
def test_synchronous_schedules_train_like_one_process(two: ddip.Group, schedule: str, last: int) -> None:
    for result in two.run(f"p.synchronous({schedule!r}, 2, 4, last={last})"):
        assert result.value < 1e-13


# --- asynchronous: what ran, computed again in one process from the ledger, has the same bits

CELLS = [
    ("async_1f1b", "none", "sgd", {}),
    ("async_1f1b", "stash", "sgd", {}),
    ("async_1f1b", "msnag", "sgd", {}),
    ("async_1f1b", "msnag+stash", "sgd", {"accumulate": 2}),
    ("async_1f1b", "aggmsnag", "sgd with decay", {"accumulate": 3}),
    ("async_1f1b", "lwp", "sgd", {"window": [3, 0]}),
    ("async_1f1b", "spectrain", "sgd", {}),
    ("async_1f1b", "adam", "adam", {"window": [4, 0]}),
    ("async_1f1b", "adamw", "adamw", {}),
    ("async_1f1b", "nadam+stash", "nadam", {}),
    ("async_1f1b", "pipemare", "sgd", {"window": [3, 0]}),
    ("async_1f1b", "spike", "sgd", {"window": [3, 0]}),
    ("async_1f1b", "gap_aware", "sgd", {"window": [3, 0]}),
    ("async_1f1b", "none", "sgd", {"recompute": True}),
    ("async_1f1b", "msnag", "sgd", {"recompute": True, "clip": 0.05}),
    ("virtual_async", "msnag", "sgd", {"max_staleness": 1}),
    ("2bw", "stash", "sgd", {"accumulate": 4}),
    ("paci", "none", "sgd", {"accumulate": 4}),
    ("1f1b", "none", "adam", {}),
    ("gpipe", "none", "sgd", {"recompute": True}),
]


@pytest.mark.parametrize(("schedule", "staleness", "rule", "options"), CELLS)
def test_what_ran_is_computed_again_bit_for_bit(
    two: ddip.Group, tmp_path: Path, schedule: str, staleness: str, rule: str, options: dict[str, object]
) -> None:
    call = f"p.replayed({str(tmp_path / 'ledger')!r}, {schedule!r}, {staleness!r}, {rule!r}, **{options!r})"
    assert [result.value for result in two.run(call)] == ["identical"] * 2


# --- failures


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "async_1f1b"])
def test_a_stage_that_raises_ends_all_stages_with_one_error_that_names_it(two: ddip.Group, schedule: str) -> None:
    two.run(f"pipe, said = p.failing({schedule!r})")
    first, last = two.pull("said", rank="all")
    assert last == "ValueError: no more today"
    assert "stage 1 (FailsAt), forward of micro-batch 10 (rank 1): ValueError: no more today" in first, first
    # The pipeline, its channels and the ranks can be used again.
    losses = two.run("report = pipe.run(p.data(3, 12)); report.losses")
    assert len(losses[0].value) == 3 and losses[0].value == losses[1].value


def test_memory_and_descriptors_stay_as_they_are_over_ten_thousand_micro_batches(two: ddip.Group) -> None:
    for result in two.run("p.many(1250)"):
        growth, descriptors = result.value
        assert growth < 1.0 and descriptors == 0


def test_stop_ends_all_stages_within_a_second_and_leaves_them_usable(two: ddip.Group, tmp_path: Path) -> None:
    two.run(
        "class Touches(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        f"        open(f'{tmp_path}/{{ddip.rank()}}', 'w').close()\n"
        "        return x\n"
        "parts = [torch.nn.Sequential(part, Touches()) for part in p.mlp(2)]\n"
        "pipe, endless = p.pipe_of(parts), p.data(1, 8) * 200000"
    )
    cell = two.run("pipe.run(endless)", wait=False)
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2, 30, "both stages compute")
    begun = time.monotonic()
    two.interrupt()
    cell.wait(30)
    assert time.monotonic() - begun < 5, "promised: a second"
    with pytest.raises(ddip.RankError) as error:
        cell.results()
    assert set(error.value.ranks) == {0, 1} and not error.value.lost
    assert all("KeyboardInterrupt" in text or "StageFailed" in text for text in error.value.tracebacks.values())
    assert two.run("len(pipe.run(p.data(2, 12)).losses)")[0].value == 2


def test_a_killed_stage_is_noticed_within_a_second() -> None:
    with ddip.Group(workers=2, name="pipeline-kill") as group:
        group.run(f"import sys; sys.path.insert(0, {str(SUPPORT)!r})\nimport torch, ddip, pipelines as p, os, signal, time")
        group.run(
            "class Dies(p.FailsAt):\n"
            "    def forward(self, x):\n"
            "        self.left -= 1\n"
            "        if self.left == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
            "        return self.inner(x)\n"
            "pipe = p.pipe_of([p.mlp(2)[0], Dies(11)])"
        )
        with pytest.raises(ddip.RankError) as error:
            group.run("pipe.run(p.data(5, 12))")
        assert list(error.value.lost) == [1]
        assert "PeerLost" in error.value.tracebacks[0]
