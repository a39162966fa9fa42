"""Ledgers that pipelines write: of whatever they did, a replay says "identical"."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ddip

SUPPORT = Path(__file__).parent / "support"


@pytest.fixture(scope="module")
def two() -> Iterator[ddip.Group]:
    with ddip.Group(workers=2, name="ledger-two") as group:
        group.run(f"import sys; sys.path.insert(0, {str(SUPPORT)!r})\nimport torch, ddip, pipelines as p, ledgers as l")
        yield group


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


CELLS = [
    "'async_1f1b', 'none'",
    "'async_1f1b', 'msnag', window=[3, 0]",
    "'async_1f1b', 'aggmsnag', accumulate=3, window=[3, 0]",
    "'async_1f1b', 'adam', optimizer=p.RULES['adam'], window=[3, 0]",
    "'async_1f1b', 'none', clip=0.05, clipping='global'",
    "'1f1b', 'none', accumulate=2",
    "'gpipe', 'none', clip=0.05, clipping='global'",
    "'zb1', 'none'",
]


@pytest.mark.parametrize("call", CELLS)
@pytest.mark.parametrize("sizes", [(8, 1, 8, 3), (8, 8, 2, 8, 1)])
def test_batches_with_fewer_samples_than_micro_batches_are_replayed(
    two: ddip.Group, tmp_path: Path, call: str, sizes: tuple[int, ...]
) -> None:
    """Those that have none keep their numbers, and a step without any makes a version all the same."""
    path = tmp_path / "ledger"
    for runs in ([], [3, len(sizes) - 3]):
        found = two.run(f"l.replays({str(path)!r}, l.batches_of({sizes}), {call}, runs={runs})")
        assert [one.value for one in found] == ["identical"] * 2
        assert lines_of(path)[0]["micro_batches"] == 4 * len(sizes)


@pytest.mark.parametrize("policy", ["pipemare", "spike"])
@pytest.mark.parametrize(("sizes", "runs"), [([8] * 6, [1, 5]), ([8, 1, 8, 8], [3, 1]), ([8] * 3, [3])])
def test_each_run_has_its_own_mean_staleness(
    two: ddip.Group, tmp_path: Path, policy: str, sizes: list[int], runs: list[int]
) -> None:
    path = tmp_path / "ledger"
    call = f"'async_1f1b', {policy!r}, window=[3, 0], micro_batches=2, runs={runs}"
    found = two.run(f"l.replays({str(path)!r}, l.batches_of({sizes}), {call})")
    assert [one.value for one in found] == ["identical"] * 2
    begins = [line for line in lines_of(path) if line["kind"] == "run" and line["stage"] == 0]
    assert [line["planned"] for line in begins] == [2 * count for count in runs]
    assert [line["micro_batch"] for line in begins] == [0, 2 * runs[0]][: len(runs)]


def test_a_wrong_mean_or_place_of_a_run_is_found(two: ddip.Group, tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    two.run(f"l.replays({str(path)!r}, l.batches_of([8] * 4), 'async_1f1b', 'spike', window=[3, 0], runs=[1, 3])")
    lines = lines_of(path)
    second = [i for i, line in enumerate(lines) if line["kind"] == "run" and line["stage"] == 0][1]
    for key, value, says in (("mean_staleness", 2.6, "mean_staleness is"), ("planned", 11, "its runs have 15"),
                             ("micro_batch", 5, "the run begins with micro-batch 5")):  # fmt: skip
        changed = [dict(line) for line in lines]
        changed[second][key] = value
        path.write_text("".join(json.dumps(line) + "\n" for line in changed))
        again = f"l.replay({str(path)!r}, l.parts(), torch.nn.functional.mse_loss, l.batches_of([8] * 4)).difference"
        assert says in two.run(again)[0].value


@pytest.mark.parametrize("rate", ["1e30", "1e38"])
@pytest.mark.parametrize(
    "call", ["'async_1f1b', 'none', clip=1.0", "'1f1b', 'none', clip=1e38", "'1f1b', 'none', clip=1.0"]
)
def test_norms_that_are_no_numbers_are_null(two: ddip.Group, tmp_path: Path, call: str, rate: str) -> None:
    path = tmp_path / "ledger"
    call += f", clipping='global', optimizer=lambda p: torch.optim.SGD(p, {rate})"
    found = two.run(f"l.replays({str(path)!r}, l.batches_of([8] * 5), {call})")
    assert [one.value for one in found] == ["identical"] * 2
    assert None in [line["norm"] for line in lines_of(path) if line["kind"] == "step"]


# aggmsnag's prediction takes what is pending for whole samples: the engine's own affair.
@pytest.mark.parametrize("call", [call for call in CELLS if "aggmsnag" not in call])
def test_micro_batches_that_count_nothing_and_counts_that_are_no_whole_numbers_are_replayed(
    two: ddip.Group, tmp_path: Path, call: str
) -> None:
    path = tmp_path / "ledger"
    batches = "l.hidden(l.batches_of([8] * 4), (1, 0, 2), (2, 0, 8), (3, 6, 8))"  # micro-batches of two samples
    found = two.run(f"l.replays({str(path)!r}, {batches}, {call}, loss=l.counting)")
    assert [one.value for one in found] == ["identical"] * 2
    counts = [line["count"] for line in lines_of(path) if line["kind"] == "step"]
    assert any(count != int(count) for count in counts) and ("accumulate" in call or 0 in counts)
    assert sum(line["kind"] == "backward" for line in lines_of(path)) == 2 * 16
