"""A plan that somebody has written is run as it is, or refused before anything runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pipeline_groups import pipeline_group

import ddip


@pytest.fixture(scope="module")
def two() -> Iterator[ddip.Group]:
    with pipeline_group("pipeline-own-plan", "pipeline_own_plan as o") as group:
        yield group


@pytest.mark.parametrize("options", ["", ", clip=1e9", ", recompute=True"])
def test_its_order_is_run_and_trains_like_one_process(two: ddip.Group, tmp_path: Path, options: str) -> None:
    for result in two.run(f"o.runs({str(tmp_path / 'plan')!r}{options})"):
        away, own, usual, both = result.value
        assert away < 1e-13 and both < 1e-13
        assert own[:8] == ["f0", "f1", "f2", "b0", "b1", "f3", "b2", "b3"]
        assert usual == ["f0", "f1", "b0", "f2", "b1", "f3", "b2", "b3"], "the next run has the usual one"


def test_modules_see_its_order(two: ddip.Group, tmp_path: Path) -> None:
    first, _ = two.run(f"o.seen({str(tmp_path / 'plan')!r})")
    f, b = "forward", "backward"
    assert first.value == [f, f, f, b, b, f, b, b]


def test_an_asynchronous_one_is_computed_again_bit_for_bit(two: ddip.Group, tmp_path: Path) -> None:
    for result in two.run(f"o.replayed({str(tmp_path / 'plan')!r}, {str(tmp_path / 'ledger')!r})"):
        assert result.value is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("", "ran"),
        (", clip=1e9, clipping='local'", "ran"),
        (", clip=1e9", "is on the other side of a step, in which all stages wait for each other's gradients"),
        (", precision='fp16'", "is on the other side of a step"),
    ],
)
def test_where_steps_wait_for_each_other_all_that_they_need_comes_before(
    two: ddip.Group, tmp_path: Path, options: str, said: str
) -> None:
    for result in two.run(f"o.steps_first({str(tmp_path / 'plan')!r}{options})"):
        assert said in result.value, result.value


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("another schedule", "the plan has schedule=gpipe, this run 1f1b"),
        ("other batches", "the plan has batches=3, this run 2"),
        ("staler weights", "the plan has weights of stage 0 that are 3 steps old, the pipeline at most 1; expected a pipeline with a window"),
        ("another needs", "another staleness policy: a stale forward has predicted weights in it, and weights that it keeps in the pipeline"),
        ("a deadlock", "nobody can go on"),
        ("batches that go back", "goes back from batch 1 to batch 0: they are read one after the other"),
        ("no plan", "plan= is of type int; expected a ddip.schedule.Plan, or the file of one"),
        ("no file", "No such file"),
        ("ready", 'a plan has an order; with order="ready" it is found'),
        ("on one rank only", "every rank must run the same pipeline"),
        ("nothing to run", "plan= without batches"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_on_every_rank(two: ddip.Group, tmp_path: Path, what: str, said: str) -> None:
    for result in two.run(f"o.refused({what!r}, {str(tmp_path / 'plan')!r})"):
        assert said in result.value, result.value
