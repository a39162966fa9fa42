"""Pipelines, on real ranks: each beside one process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import ddip

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
