"""One pipeline over several runs: what a save holds, what rates and phases do, what is read of a stream, what a failed run leaves."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from ddip.errors import RankError
from ddip.pipeline.batches import Batches
from ddip.pipeline.micro_batches import micro_batches_of
from ddip.pipeline.stage_calls import to_device
from support.pipeline_groups import pipeline_group

import ddip


@pytest.fixture(scope="module")
def two() -> Iterator[ddip.Group]:
    with pipeline_group("pipeline-runs", "pipeline_runs as r") as group:
        yield group


# --- saves


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_save_is_as_large_as_what_is_in_it(two: ddip.Group, tmp_path: Path, optimizer: str) -> None:
    for result in two.run(f"r.save_size({str(tmp_path / 'save')!r}, {optimizer!r})"):
        assert 0.95 < result.value < 1.3


@pytest.mark.parametrize(
    ("saved", "here", "expected"),
    [
        ("dict(scheduler=r.step_lr)", "dict(scheduler=r.constant)", "was trained with StepLR; it is with LambdaLR here"),
        ("dict()", "dict(scheduler=r.constant)", "was trained without a scheduler; it is with LambdaLR here"),
        ("dict(staleness='msnag')", "dict(staleness='gap_aware')", "trained with staleness='msnag'; here it is 'gap_aware'"),
        ("dict(staleness='gap_aware')", "dict(staleness='msnag')", "trained with staleness='gap_aware'; here it is 'msnag'"),
    ],
)  # fmt: skip
def test_what_another_pipeline_has_saved_is_refused_and_changes_nothing(
    two: ddip.Group, tmp_path: Path, saved: str, here: str, expected: str
) -> None:
    for result in two.run(f"r.loaded_elsewhere({str(tmp_path / 'save')!r}, {saved}, {here})"):
        said, moved = result.value
        assert said.startswith("ConfigError: ") and expected in said
        assert moved == 0


def test_a_pipeline_may_go_on_with_another_policy_where_neither_remembers_anything(
    two: ddip.Group, tmp_path: Path
) -> None:
    options = "dict(staleness='msnag'), dict(staleness='none', schedule='1f1b')"
    for result in two.run(f"r.loaded_elsewhere({str(tmp_path / 'save')!r}, {options})"):
        said, moved = result.value
        assert said == "nothing" and moved > 0


def test_a_modules_extra_state_is_saved(two: ddip.Group, tmp_path: Path) -> None:
    assert [result.value for result in two.run(f"r.extra_state({str(tmp_path / 'save')!r})")] == ["a word"] * 2


def test_what_would_not_come_back_is_refused_and_nothing_is_left(two: ddip.Group, tmp_path: Path) -> None:
    first, last = (result.value for result in two.run(f"r.unsaved({str(tmp_path / 'save')!r})"))
    assert last[0].startswith(
        "ConfigError: stage 1: model._extra_state.what is a pipeline_runs.Thing, which cannot be saved; "
    )
    assert first[0].startswith("ConfigError: rank 1: stage 1:") and not first[1]


# --- rates


def test_a_rate_that_is_set_after_a_load_stays(two: ddip.Group, tmp_path: Path) -> None:
    for result in two.run(f"r.rate_after_load({str(tmp_path / 'save')!r})"):
        rates, moved = result.value
        assert rates == [pytest.approx(0.01)] and moved == 0


def test_a_rate_that_is_set_where_none_was_planned_scales_the_later_ones(two: ddip.Group) -> None:
    for result in two.run("r.rate_in_a_warmup('gpipe')"):
        rates, moved = result.value
        assert rates == [pytest.approx(0.001)] and moved < 1e-12


# --- optimizers


MIXED = "lambda ps: torch.optim.SGD(ps, 0.05, momentum=0.9) if ps[0].shape[1] == 6 else torch.optim.{other}(ps, 0.01)"


@pytest.mark.parametrize("other", ["Adam", "RMSprop"])
def test_a_stage_whose_optimizer_the_policy_does_not_know_is_refused_on_all_ranks(two: ddip.Group, other: str) -> None:
    with pytest.raises(RankError) as error:
        two.run(f"p.pipe_of(p.mlp(2), optimizer={MIXED.format(other=other)})")
    assert f"staleness='msnag': stage 1 (Linear) is trained by {other}" in str(error.value)
    assert all(result.value == "nothing" for result in two.run(
        f"r.said_by(lambda: p.pipe_of(p.mlp(2), staleness='stash', optimizer={MIXED.format(other=other)}).run(p.data(3, 12)))"
    ))  # fmt: skip


# --- phases


def test_a_warm_up_is_done_once_and_not_in_each_run(two: ddip.Group) -> None:
    without = two.run("r.staleness_of_runs(1)")[0].value[0]
    for result in two.run("r.staleness_of_runs(3, warmup=6)"):
        first, second, third = result.value
        assert first == 0 and 0 < second < without and third == without


def test_a_switch_counts_the_batches_of_earlier_runs(two: ddip.Group) -> None:
    without = two.run("r.staleness_of_runs(1)")[0].value[0]
    for result in two.run("r.staleness_of_runs(3, switch_at=6)"):
        first, second, third = result.value
        assert first == without and 0 < second < without and third == 0


# --- batches


def test_a_stream_without_an_end_is_read_part_by_part(two: ddip.Group) -> None:
    for result in two.run("r.read_twice()"):
        assert result.value == (3, 7, 0.0)


def test_a_stream_goes_on_after_a_failed_run_where_the_first_rank_was(two: ddip.Group) -> None:
    for result in two.run("r.stream_after_a_failure()"):
        said, losses, expected = result.value
        assert "once" in said and len(losses) == 4 and losses == pytest.approx(expected, rel=1e-12)


def test_a_stream_that_ends_too_early_says_so(two: ddip.Group) -> None:
    with pytest.raises(RankError, match="the batches ended after 2, though there were said to be 3 .*by count="):
        two.run("p.pipe_of(p.mlp(2)).run(iter(p.data(2, 12)), count=3)")


@pytest.mark.parametrize("count", ["-1", "2.5", "True", "'3'"])
def test_a_count_that_is_none_is_refused(two: ddip.Group, count: str) -> None:
    with pytest.raises(RankError, match="expected a whole number of batches, or None"):
        two.run(f"p.pipe_of(p.mlp(2)).run(p.data(2, 12), count={count})")


def test_after_a_failed_run_the_ranks_draw_the_same_random_numbers(two: ddip.Group) -> None:
    for result in two.run("r.noise_after_a_failure()"):
        said, losses = result.value
        assert "once" in said and losses == 8


def cut(x: object, y: object, micro_batches: int = 2) -> list[object]:
    batches = Batches([(x, y)], micro_batches)
    batches.start()
    read = batches.reader()
    return [read(number) for number in range(micro_batches)]


def test_tensors_of_other_lengths_are_refused() -> None:
    y = torch.zeros(4)
    for x in ((torch.zeros(4, 6), torch.zeros(6, 6)), {"a": torch.zeros(4), "b": [torch.zeros(8)]}):
        with pytest.raises(
            ddip.ConfigError, match="the inputs of batch 0 are tensors of 4, [68] samples; expected as many"
        ):
            cut(x, y)
    with pytest.raises(ddip.ConfigError, match="the targets of batch 0 are tensors of 4, 8 samples"):
        cut(torch.zeros(4, 6), (y, torch.zeros(8)))


def test_a_tensor_without_dimensions_goes_to_every_micro_batch() -> None:
    for x, y, samples in cut({"scale": torch.tensor(2.0), "x": torch.arange(4)}, torch.zeros(4)):  # type: ignore[misc]
        assert samples == 2 == len(x["x"]) == len(y) and x["scale"] == 2


Pair = namedtuple("Pair", ["one", "other"])


def test_named_tuples_stay_what_they_are() -> None:
    pair = Pair(torch.arange(4), torch.arange(4) + 10)
    for parts in (cut(pair, pair), micro_batches_of([(pair, pair)], 2)):
        assert [type(part[1]) for part in parts] == [Pair, Pair]  # type: ignore[index]
        assert parts[1][1].other.tolist() == [12, 13]  # type: ignore[index]
    assert to_device(pair, torch.device("meta")).one.device.type == "meta"


# --- arguments


@pytest.mark.parametrize(
    ("asked", "note"),
    [
        ("schedule='gpipe', flush_every=2", "gpipe is synchronous: warmup, switch_at and flush_every change nothing"),
        ("schedule='gpipe', window=[5, 0]", "window= changes nothing: the order of gpipe is fixed"),
        ("clipping='global'", "clipping='global' changes nothing without clip=, the largest norm"),
        ("program='file.py:model'", "program='file.py:model' changes nothing without ledger="),
    ],
)
def test_what_changes_nothing_is_said(two: ddip.Group, asked: str, note: str) -> None:
    assert all(note in result.value for result in two.run(f"p.pipe_of(p.mlp(2), {asked}).notes"))


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("stages=3", "stages=3: the list has 2; expected as many, or none said"),
        ("recompute='no'", "recompute='no': expected True or False"),
        ("gaps=1", "gaps=1: expected True or False"),
        ("warmup=1.5", "warmup=1.5: expected a whole number"),
        ("switch_at='3'", "switch_at='3': expected a whole number"),
        ("replicas=1.0", "replicas=1.0: expected a whole number from 1 on"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(two: ddip.Group, asked: str, expected: str) -> None:
    with pytest.raises(RankError) as error:
        two.run(f"p.pipe_of(p.mlp(2), {asked})")
    assert expected in str(error.value)
