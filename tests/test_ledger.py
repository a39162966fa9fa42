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
