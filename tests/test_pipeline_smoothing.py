"""Smoothed gradients: each micro-batch goes through the pipe several times, on weights with noise of its own."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pipeline_groups import pipeline_group

import ddip
from ddip.schedule import make_plan


@pytest.fixture(scope="module")
def two() -> Iterator[ddip.Group]:
    with pipeline_group("pipeline-smoothing", "pipeline_smoothing as s") as group:
        yield group


@pytest.mark.parametrize(
    ("schedule", "stages", "passes", "options"),
    [
        ("seq", 2, 2, ""),
        ("gpipe", 2, 3, ""),
        ("1f1b", 2, 3, ""),
        ("1f1b", 2, 1, ""),
        ("1f1b", 2, 2, ", last=2"),  # fewer samples than micro-batches
        ("1f1b", 2, 2, ", accumulate=2"),
        ("1f1b", 2, 8, ", micro_batches=1"),
        ("gpipe", 2, 3, ", recompute=True"),
        ("interleaved", 4, 2, ", placement=[0, 1, 0, 1]"),
        ("zb1", 2, 3, ""),
        ("zbv", 4, 2, ", placement=[0, 1, 1, 0]"),
    ],
)
def test_a_step_is_the_mean_over_noisy_weights_as_in_one_process(
    two: ddip.Group, schedule: str, stages: int, passes: int, options: str
) -> None:
    for result in two.run(f"s.beside_one_process({schedule!r}, {stages}, {passes}{options})"):
        away, from_plain = result.value
        assert away < 1e-13 and from_plain > 1e-4


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb1"])
def test_with_noise_that_is_rounded_away_many_passes_are_one(two: ddip.Group, schedule: str) -> None:
    for result in two.run(f"s.nearly_nothing({schedule!r}, 4)"):
        assert max(result.value) < 1e-14


def test_the_gradient_is_that_of_the_function_convolved_with_the_noise(two: ddip.Group) -> None:
    places, radius = [-0.3, -0.05, 0.0, 0.1, 0.4], 0.2
    for result in two.run(f"s.of_the_absolute_value({places}, {radius})"):
        for place, found in zip(places, result.value, strict=True):
            # |w| convolved with a Gaussian has this slope; the mean of 1024 signs is off by 0.03 at the most.
            assert found == pytest.approx(math.erf(place / (radius * math.sqrt(2))), abs=0.12), place


CELLS = [
    ("gpipe", "sgd", {}),
    ("1f1b", "adam", {"recompute": True}),
    ("1f1b", "adamw", {"clip": 0.05}),
    ("zb1", "nadam", {}),
    ("seq", "sgd with decay", {"accumulate": 2}),
    ("1f1b", "sgd", {"precision": "bf16"}),
    ("1f1b", "sgd", {"precision": "fp16", "loss_scale": 2}),
]


@pytest.mark.parametrize(("schedule", "rule", "options"), CELLS)
def test_what_ran_is_computed_again_bit_for_bit(
    two: ddip.Group, tmp_path: Path, schedule: str, rule: str, options: dict[str, object]
) -> None:
    settings = {"smoothing": {"passes": 3, "radius": 0.05}, **options}
    call = f"p.replayed({str(tmp_path / 'ledger')!r}, {schedule!r}, 'none', {rule!r}, runs=2, **{settings!r})"
    assert [result.value for result in two.run(call)] == ["identical"] * 2


@pytest.mark.parametrize("lie", [{"radius": 0.06}, {"passes": 2}, {"passes": 6}, None])
def test_a_lie_about_the_noise_is_found(two: ddip.Group, tmp_path: Path, lie: dict[str, float] | None) -> None:
    path = str(tmp_path / "ledger")
    two.run(f"p.replayed({path!r}, 'gpipe', 'none', smoothing={{'passes': 3, 'radius': 0.05}})")
    header, *lines = Path(path).read_text().splitlines(keepends=True)
    told = json.loads(header)
    assert told["smoothing"] == {"passes": 3, "radius": 0.05}
    if lie:
        told["smoothing"] |= lie
    else:
        del told["smoothing"]
    Path(path).write_text("".join([json.dumps(told) + "\n", *lines]))
    call = f"p.replay_again({path!r}, 2, 1)"
    fewer = {"{'passes': 2}": 48, "None": 24}.get(str(lie))
    if fewer:
        with pytest.raises(ddip.RankError, match=f"the ledger has 72 micro-batches, the program {fewer}"):
            two.run(call)
        return
    difference = two.run(call)[0].value
    assert difference is not None and re.match(r"line \d+: stage \d, \w+", difference), difference


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("smoothing={'passes': 0, 'radius': 0.1}", "expected from 1 to 1024 passes"),
        ("smoothing={'radius': 0.1}", "expected None, or"),
        ("options={'nesterov_by_stage': True}", "option 'nesterov_by_stage' of none; expected none"),
    ],
)
def test_the_simulator_says_what_is_wrong_in_our_words(two: ddip.Group, options: str, said: str) -> None:
    call = (
        f"simulate(p.mlp(2), torch.nn.functional.mse_loss, p.data(2, 12), optimizer=p.sgd, schedule='1f1b', {options})"
    )
    with pytest.raises(ddip.RankError) as error:
        two.run(f"from ddip.pipeline.simulate import simulate\n{call}")
    assert all("ConfigError" in text and said in text for text in error.value.tracebacks.values())


@pytest.mark.parametrize("passes", [1, 3])
def test_the_simulator_ends_where_the_pipeline_does(two: ddip.Group, passes: int) -> None:
    for result in two.run(f"s.simulated({passes})"):
        assert result.value < 1e-13


def test_samples_and_targets_may_be_changed_in_place(two: ddip.Group) -> None:
    assert [result.value for result in two.run("s.changed_in_place()")] == [0, 0]


def test_phases_count_batches_and_not_passes(two: ddip.Group, tmp_path: Path) -> None:
    for result in two.run(f"s.phases({str(tmp_path / 'run')!r})"):
        assert result.value == [True, False]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_each_pass_that_is_under_way_has_a_copy_as_the_plan_says(two: ddip.Group, schedule: str) -> None:
    for result in two.run(f"s.copies({schedule!r})"):
        for kept, planned, predictions in result.value:
            assert 0 < kept <= planned and predictions == 2 * 4 * 3
        assert result.value[0][0] == {"gpipe": 12, "1f1b": 2}[schedule]


def test_a_run_that_was_saved_goes_on_with_its_noise(two: ddip.Group, tmp_path: Path) -> None:
    for result in two.run(f"s.resumed({str(tmp_path / 'run')!r})"):
        away, went = result.value
        assert away == 0 and went > 1e-4


def test_replicas_have_noise_of_their_own_and_the_same_weights(two: ddip.Group) -> None:
    for result in two.run("s.on_replicas()"):
        apart, from_one = result.value
        assert apart == 0 and from_one > 1e-4


def test_passes_fill_the_bubble(two: ddip.Group) -> None:
    """A batch that cannot be cut: one micro-batch, four stages."""
    bubbles = []
    for passes in (1, 8):
        plan = make_plan("1f1b", stages=4, micro_batches=passes, perturbs=True)
        assert plan.check().ok
        bubbles.append(plan.simulate().bubble)
    assert bubbles == pytest.approx([3 / 4, 3 / 11])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("'async_1f1b', smoothing={'passes': 4, 'radius': 0.1}", "smoothing= fills the bubbles of synchronous schedules, and async_1f1b has none; expected gpipe, 1f1b"),
        ("'1f1b', smoothing={'passes': 0, 'radius': 0.1}", "expected from 1 to 1024 passes and a radius above 0"),
        ("'1f1b', smoothing={'passes': 2, 'radius': float('nan')}", "expected from 1 to 1024 passes and a radius above 0"),
        ("'1f1b', smoothing={'passes': 2}", "expected None, or {\"passes\": 4, \"radius\": 0.01}"),
        ("'1f1b', smoothing=3", "smoothing=3: expected None, or"),
        ("'1f1b', staleness='stash', smoothing={'passes': 2, 'radius': 0.1}", "where nothing is stale, expected none"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_on_every_rank(two: ddip.Group, options: str, said: str) -> None:
    with pytest.raises(ddip.RankError) as error:
        two.run(f"p.pipe_of(p.mlp(2), {options})")
    assert sorted(error.value.ranks) == [0, 1]
    for text in error.value.tracebacks.values():
        assert said in text


def test_without_being_asked_nothing_is_planned_or_written(two: ddip.Group, tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    call = f"p.replayed({str(path)!r}, '1f1b', 'none')"
    assert two.run(call)[0].value == "identical"
    text = path.read_text()
    assert "smoothing" not in text and "perturbed" not in text
    assert (
        two.run("sum(a.kind in ('predict', 'stash') for r in p.pipe_of(p.mlp(2), '1f1b').plan.ranks for a in r)")[
            0
        ].value
        == 0
    )
