"""Pipelines in unusual circumstances: what is left out, empty, not a number, stopped half-way, changed between runs, or of another
shape. Each beside plain PyTorch, or refused before anything has changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from ddip.errors import RankError
from support.pipeline_groups import pipeline_group

import ddip


@pytest.fixture(scope="module")
def two() -> Iterator[ddip.Group]:
    with pipeline_group("pipeline-corners", "pipeline_corners as c") as group:
        yield group


def said(group: ddip.Group, call: str) -> str:
    with pytest.raises(RankError) as error:
        group.run(call)
    return str(error.value)


# --- optimizers


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        ("lambda ps: torch.optim.SGD(ps[:1], 0.1)", "leaves out"),
        ("lambda ps: torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], 0.1)", "took others"),
        ("lambda ps: torch.optim.LBFGS(ps)", "LBFGS asks for new gradients"),
    ],
)
def test_an_optimizer_that_cannot_be_is_refused(two: ddip.Group, optimizer: str, expected: str) -> None:
    assert expected in said(two, f"p.pipe_of(p.mlp(2), optimizer={optimizer})")


def test_an_optimizer_is_made_for_the_stages_own_parameters(two: ddip.Group) -> None:
    two.run("shapes = []; make = lambda ps: (shapes.append({q.dim() for q in ps}), torch.optim.SGD(ps, 0.1))[1]")
    two.run("p.pipe_of(p.mlp(2), optimizer=make)")
    assert all(result.value == [{1, 2}] * 2 for result in two.run("shapes"))


@pytest.mark.parametrize("staleness", ["msnag", "aggmsnag"])
def test_a_loss_may_count_in_fractions(two: ddip.Group, staleness: str) -> None:
    for result in two.run(f"c.fractional_counts({staleness!r})"):
        assert result.value < 1e-9


@pytest.mark.parametrize("call", ["'stash'", "'msnag+stash'", "'gap_aware'", "'none', '2bw', accumulate=4"])
def test_small_and_empty_batches_may_come_anywhere(two: ddip.Group, call: str) -> None:
    for result in two.run(f"c.small_batches({call})"):
        assert result.value > 0


@pytest.mark.parametrize("staleness", ["stash", "msnag"])
def test_micro_batches_that_count_nothing_are_no_step(two: ddip.Group, staleness: str) -> None:
    assert all(result.value for result in two.run(f"c.masked({staleness!r})"))


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("stage", [0, 1])
def test_a_loss_of_a_stage_weighs_what_it_says_whatever_the_models_loss_counts(
    two: ddip.Group, stage: int, schedule: str
) -> None:
    for result in two.run(f"c.auxiliary({stage}, {schedule!r})"):
        assert result.value < 1e-12


def test_a_gradient_that_is_not_a_number_spoils_all_stages_as_it_does_in_torch(two: ddip.Group) -> None:
    for result in two.run("c.not_a_number()"):
        stages, torchs = result.value
        assert stages == [torchs, torchs] == [True, True]


def test_a_loss_that_is_not_a_number_is_said(two: ddip.Group) -> None:
    two.run(
        "pipe = p.pipe_of(p.mlp(2), '1f1b'); pipe.run([(x * (1 if k < 2 else float('nan')), y) for k, (x, y) in enumerate(p.data(4, 12))])"
    )
    for result in two.run("pipe.notes"):
        assert any("nan in batch 2 of a run: " in note for note in result.value)


@pytest.mark.parametrize("scheduler", ["onecycle", "cyclic", "lambda", "exponential"])
def test_a_rate_set_by_hand_scales_what_follows_and_can_be_undone(two: ddip.Group, scheduler: str) -> None:
    call = f"c.rates_after({scheduler!r}, [(3, 0.002), (6, 0.0), (8, 0.004)], 12)"
    for result in two.run(call):
        mine, planned = result.value
        assert mine[:3] == pytest.approx(planned[:3])
        assert mine[3:6] == pytest.approx([rate * 0.002 / planned[3] for rate in planned[3:6]])
        assert mine[6:8] == [0.0, 0.0]
        assert mine[8:] == pytest.approx([rate * 0.004 / planned[8] for rate in planned[8:]])


# --- a step that is stopped, or fails


def test_a_stop_never_leaves_half_a_step(two: ddip.Group) -> None:
    first, _ = two.run("c.stopped_within_a_step()")
    raised, steps, at_the_end = first.value
    assert raised == "stopped"
    assert steps == {3.0}, "the parameters of a stage have done the same steps"
    assert at_the_end == 4


def test_replicas_are_equal_again_after_one_of_them_failed(two: ddip.Group) -> None:
    for result in two.run("c.replicas_after_a_failure()"):
        what, equal, notes, own = result.value
        assert "no step today" in what
        assert equal
        assert any("are equal again" in note for note in notes)
        assert own == [True], "their running statistics are their own"


# --- modules that somebody changes between runs


def test_a_second_pipeline_of_the_same_modules_is_noticed(two: ddip.Group) -> None:
    for result in two.run("c.another_pipeline()"):
        assert "has got other memory since the pipeline was made" in result.value


@pytest.mark.parametrize(
    ("freeze", "expected"), [(True, "has been frozen since"), (False, "was frozen when the pipeline was made")]
)
def test_parameters_frozen_or_thawed_since_are_noticed(two: ddip.Group, freeze: bool, expected: str) -> None:
    for result in two.run(f"c.other_parameters({freeze})"):
        assert expected in result.value


def test_layers_left_in_evaluation_stay_so(two: ddip.Group) -> None:
    for result in two.run("c.left_in_evaluation()"):
        assert result.value == (True, True, True)


# --- files


def test_a_file_of_another_model_changes_no_rank(two: ddip.Group, tmp_path: Path) -> None:
    for result in two.run(f"c.loaded_into_another({str(tmp_path / 'saved')!r})"):
        what, moved = result.value
        assert "is float64[3, 8] there and float64[4, 8] here" in what
        assert moved == 0.0


def test_rates_that_are_numpys_are_saved_and_loaded(two: ddip.Group, tmp_path: Path) -> None:
    for result in two.run(f"c.numbers_of_numpy({str(tmp_path / 'saved')!r})"):
        assert result.value == 0.0


# --- batches, losses, arguments


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ("[(x, list(range(len(x)))) for x, y in p.data(2, 12)]", "are a list of numbers or strings; expected tensors"),
        ("[(x, y.numpy()) for x, y in p.data(2, 12)]", "are of type ndarray; expected tensors"),
    ],
)
def test_targets_that_cannot_be_cut_are_refused(two: ddip.Group, batches: str, expected: str) -> None:
    two.run("pipe = p.pipe_of(p.mlp(2))")
    assert expected in said(two, f"pipe.run({batches})")


def test_targets_may_be_named(two: ddip.Group) -> None:
    for result in two.run("c.named_targets()"):
        assert result.value < 1e-12


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("(out.sum(), {})", "loss= gave (a tensor [], dict); expected one number"),
        ("(1.0, 2)", "loss= gave (1.0, 2); expected one number"),
        ("(out.sum(),)", "loss= gave (a tensor []); expected one number"),
        ("(out, 3)", "loss= gave (a tensor [3, 3], 3); expected one number"),
        ("(out.sum(), -8)", "loss= gave (a tensor [], -8); expected one number"),
        ("(out.sum(), float('nan'))", "loss= gave (a tensor [], nan); expected one number"),
    ],
)
def test_a_loss_that_is_none_is_said(two: ddip.Group, loss: str, expected: str) -> None:
    two.run(f"pipe = p.pipe_of(p.mlp(2), loss=lambda out, y: {loss})")
    assert expected in said(two, "pipe.run(p.data(1, 12))")


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("clip=float('nan')", "clip=nan: expected a number above 0"),
        ("clip='1'", "clip=1: expected a number above 0"),
        ("seed=-1", "seed=-1: expected a whole number from 0 on"),
        ("seed=0.5", "seed=0.5: expected a whole number from 0 on"),
    ],
)
def test_numbers_that_cannot_be_are_refused(two: ddip.Group, argument: str, expected: str) -> None:
    assert expected in said(two, f"p.pipe_of(p.mlp(2), {argument})")


# --- made many times


@pytest.mark.timeout(90)  # it takes two seconds
def test_pipelines_over_gloo_are_made_while_its_threads_free_tensors_of_python(two: ddip.Group, tmp_path: Path) -> None:
    ledger = str(tmp_path / "ledger")  # which gathers objects of Python right before
    two.run(f"gloo = ddip.comm('gloo')\nfor _ in range(100): p.pipe_of(p.mlp(2), ranks=gloo, ledger={ledger!r})")
    assert two.run("len(p.pipe_of(p.mlp(2), ranks=gloo).run(p.data(2, 12)).losses)")[0].value == 2


@pytest.mark.parametrize("options", ["", ", recompute=True", ", precision='bf16'"])
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            "another's",
            "computes with 0.weight of stage 0 by a reference that torch does not know, and would not train it",
        ),
        (
            "another's, in place",
            "computes with 0.weight of stage 0 by a reference that torch does not know, and would not train it",
        ),
        ("nobody's", "computes with a weight of 3 elements that is in no stage, and would not train it"),
        ("nobody's, not trained", None),
        ("made anew", None),
        ("its own", None),
    ],
)
def test_a_weight_that_a_stage_has_not_is_refused_before_a_step(
    two: ddip.Group, kind: str, expected: str | None, options: str
) -> None:
    for rank, result in enumerate(two.run(f"c.hidden({kind!r}{options})")):
        said, moved = result.value
        if expected is None:
            assert said == ["nothing"] * 2 and moved > 0
            continue
        begins = "ConfigError: stage 1 (Calls)" if rank == 1 else "StageFailed: stage 1 (Calls)"
        for of_run in said:
            assert of_run.startswith(begins) and expected in of_run, of_run
        assert moved == 0
