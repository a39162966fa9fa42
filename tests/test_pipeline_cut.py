"""A whole model becomes a pipeline: measured and cut by rank 0, alike on all ranks."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pipeline_groups import pipeline_group

import ddip


@pytest.fixture(scope="module")
def two() -> Iterator[ddip.Group]:
    with pipeline_group("cut-two", "pipeline_actions", "pipeline_borders", "pipeline_whole") as group:
        yield group


def said_by(two: ddip.Group, call: str) -> list[str]:
    two.run(f"try: {call}; said = ''\nexcept ddip.ConfigError as error: said = str(error)")
    return list(two.pull("said", rank="all"))


@pytest.mark.parametrize(("schedule", "stages"), [("1f1b", 2), ("interleaved", 4)])
def test_a_whole_model_is_cut_by_itself_and_trains_like_one_process(
    two: ddip.Group, schedule: str, stages: int
) -> None:
    plans = []
    for result in two.run(f"pipeline_whole.whole_in_one_process({schedule!r}, {stages})"):
        away, plan, here = result.value
        assert away < 1e-13 and here == stages // 2
        plans.append(plan)
    assert plans[0] == plans[1], "both ranks cut by the plan of one"


def test_a_whole_model_with_a_weight_that_it_uses_twice(two: ddip.Group) -> None:
    for result in two.run("pipeline_whole.whole_and_tied()"):
        assert result.value < 1e-13


def test_a_plan_that_a_person_has_edited_is_followed(two: ddip.Group, tmp_path: Path) -> None:
    plan = json.loads(two.run("str(pipeline_whole.whole_pipe().cut.plan)")[0].value)
    layers = [layer["name"] for layer in plan["layers"]]
    plan["stages"] = [{"device": 0, "layers": layers[:2]}, {"device": 1, "layers": layers[2:]}]
    (tmp_path / "edited").write_text(json.dumps(plan))
    for result in two.run(f"pipeline_whole.whole_pipe(partition={str(tmp_path / 'edited')!r}).cut.plan.stages"):
        assert result.value == [layers[:2], layers[2:]]
    plan["stages"] = [{"device": 0, "layers": layers[2:]}, {"device": 1, "layers": layers[:2]}]
    (tmp_path / "edited").write_text(json.dumps(plan))
    for line in said_by(two, f"pipeline_whole.whole_pipe(partition={str(tmp_path / 'edited')!r})"):
        assert str(tmp_path / "edited") in line and "stage" in line and "\n" not in line, line


def test_a_value_goes_to_other_ranks_as_it_was_before_its_stage_changes_it(two: ddip.Group, tmp_path: Path) -> None:
    plan = json.loads(two.run("pipeline_whole.whole_and_in_place('')")[0].value[0])
    stages = [
        ["first"],
        ["a", "relu", "b"],
        ["up", "add", "c"],
        ["last"],
    ]  # what `up` needs, rank 1 has made and changed
    plan["stages"] = [{"device": device, "layers": names} for device, names in enumerate(stages)]
    (tmp_path / "edited").write_text(json.dumps(plan))
    for result in two.run(f"pipeline_whole.whole_and_in_place({str(tmp_path / 'edited')!r})"):
        made, away = result.value
        assert [stage["layers"] for stage in json.loads(made)["stages"]] == stages and away < 1e-13


def test_the_rank_that_measures_goes_on_with_the_weights_of_the_others(two: ddip.Group) -> None:
    first, second = (result.value for result in two.run("pipeline_whole.limited_rows()"))
    assert first == second


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("partition='mirored'", "partition='mirored': expected single, mixed, mirrored or the file of a plan; there is no such file"),
        ("partition='/dev/null'", "/dev/null"),
        ("stages=3", "stages=3: expected a multiple of the pipeline's 2 ranks"),
        ("leaves=['Linar']", "leaves=Linar: no such module; did you mean Linear?"),
        ("leaves=[torch.nn.Conv2d]", "leaves=Conv2d: no such module"),
    ],
)  # fmt: skip
def test_what_cannot_be_cut_is_said_by_every_rank(two: ddip.Group, options: str, said: str) -> None:
    for line in said_by(two, f"pipeline_whole.whole_pipe({options})"):
        assert said in line and "\n" not in line, line


def test_whatever_fails_on_rank_0_is_said_by_every_rank(two: ddip.Group) -> None:
    two.run("import ddip.pipeline.cutting as cutting; made_plan = cutting.made_plan")
    two.run("def fails(*given): raise KeyError('a layer\\nof its own')\ncutting.made_plan = fails")
    try:
        for line in said_by(two, "pipeline_whole.whole_pipe()"):
            assert line == "rank 0 cannot cut the model: KeyError: 'a layer\\nof its own'", line
    finally:
        two.run("cutting.made_plan = made_plan")


@pytest.mark.parametrize("stages", ["0", "-2", "2.0", "'2'", "True"])
def test_stages_that_are_no_count_are_refused(two: ddip.Group, stages: str) -> None:
    for call in (
        f"pipeline_whole.whole_pipe(stages={stages})",
        f"p.pipe_of(torch.nn.Sequential(torch.nn.Linear(2, 2)), stages={stages})",
    ):
        for line in said_by(two, call):
            assert line == f"stages={stages}: expected a whole number from 1 on, or None: one for each rank"


@pytest.mark.parametrize("leaves", ["['Pair']", "[pipeline_whole.Pair]"])
def test_modules_that_stay_whole_are_not_cut(two: ddip.Group, leaves: str) -> None:
    for result in two.run(f"pipeline_whole.pairs({leaves})"):
        stages, away = result.value
        assert stages == [["0"], ["1", "2"]] or stages == [["0", "1"], ["2"]], stages
        assert away < 1e-13
    cut_anywhere = two.run("pipeline_whole.pairs([])")[0].value[0]
    assert sorted(layer for stage in cut_anywhere for layer in stage) != ["0", "1", "2"], (
        "else nothing was to be kept whole"
    )


def test_leaves_need_an_example(two: ddip.Group) -> None:
    for line in said_by(two, "p.pipe_of(p.mlp(2), leaves=['Linear'])"):
        assert line == "leaves= needs example=, the inputs of one micro-batch"


def test_without_an_example_a_module_cannot_be_cut(two: ddip.Group) -> None:
    for line in said_by(two, "p.pipe_of(pipeline_borders.AllToLast(4))"):
        assert line.startswith("AllToLast can be cut only with example=")


def test_the_window_is_as_wide_as_the_links_are_slow(two: ddip.Group) -> None:
    """W_0 = ceil((c + 2x) / c): as many micro-batches as fit into the way there and back."""
    for slowness in (0.0, 0.4, 3.3):
        for result in two.run(f"pipeline_actions.window_of_a_link({slowness})"):
            window, costs, links = result.value
            c = max(sum(cost) for cost in costs)
            assert window == [math.ceil((c + 2 * links[0]) / c - 1e-6), 0]
            assert links[0] == pytest.approx(slowness * c)
    assert two.run("pipeline_actions.window_of_a_link(3.3)")[0].value[0] == [8, 0]
    assert two.run("pipeline_actions.window_of_a_link(3.3, window='depth')")[0].value[0] == [1, 0]
