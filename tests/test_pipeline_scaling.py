"""Half precision: the loss is scaled, steps whose gradients are too large are left out, and the scale follows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.pipeline_groups import pipeline_group

import ddip


@pytest.fixture(scope="module")
def two() -> Iterator[ddip.Group]:
    with pipeline_group("scaling-two", "scaling as s") as group:
        yield group


def on(group: ddip.Group, call: str) -> list[Any]:
    return [result.value for result in group.run(call)]


@pytest.mark.parametrize(
    ("schedule", "options"),
    [
        ("gpipe", ""),
        ("1f1b", ""),
        ("zb1", ""),
        ("seq", ""),
        ("1f1b", ", clip=0.05"),
        ("1f1b", ", clip=0.05, clipping='local'"),
        ("1f1b", ", recompute=True"),
    ],
)
def test_a_synchronous_pipeline_is_one_process_with_a_grad_scaler(two: ddip.Group, schedule: str, options: str) -> None:
    for found in on(two, f"s.beside_grad_scaler({schedule!r}{options})"):
        pipelines, torchs = found["scale"]
        assert pipelines == torchs < 2**20
        steps, expected = found["left out"]
        assert steps == [expected, expected] and 4 < expected < 30
        assert found["first stage alone"] > 0, "a stage alone could have decided"
        assert found["grew"]
        if "local" not in options:  # torch has the norm of all stages only
            assert found["far"] < 1e-6 < 1e-3 < found["moved"]
        assert f"loss scale {pipelines:g}, {expected} steps left out" in found["said"]


CELLS = [
    ("async_1f1b", "stash", "accumulate=1"),
    ("async_1f1b", "msnag", "accumulate=2"),
    ("async_1f1b", "aggmsnag", "accumulate=3, window=[4, 0], batches=80"),
    ("async_1f1b", "msnag+stash", "clip=0.05"),
    ("async_1f1b", "pipemare", "window=[3, 0]"),
    ("async_1f1b", "gap_aware", "window=[3, 0]"),
    ("async_1f1b", "none", "loss=s.half_loss, batches=40"),
    ("async_1f1b", "stash", "runs=[3, 9, 18]"),
    ("async_1f1b", "stash", "loss_scale=64"),
    ("async_1f1b", "msnag", "warmup=5, flush_every=4"),
    ("2bw", "none", "accumulate=4, batches=90"),
    ("1f1b", "none", "clip=0.05"),
    ("gpipe", "none", "runs=[10, 20]"),
]


@pytest.mark.parametrize(("schedule", "staleness", "options"), CELLS)
def test_what_ran_is_computed_again_bit_for_bit(
    two: ddip.Group, tmp_path: Path, schedule: str, staleness: str, options: str
) -> None:
    found = on(two, f"s.proved({str(tmp_path / 'l')!r}, {schedule!r}, {staleness!r}, {options})")[0]
    assert found["difference"] is None and found["same"]
    assert math.isfinite(found["moved"]) and found["moved"] > 1e-4
    first, last = found["left out"]
    if "loss_scale=64" in options:
        assert set(found["scales"]) == {64.0}
        return
    assert len(set(found["scales"])) > 4 and first, "nothing was too large: this shows nothing"
    grew = [b for a, b in zip(found["scales"], found["scales"][1:], strict=False) if b > a]
    assert grew
    if schedule in ("1f1b", "gpipe"):
        assert first == last
    else:
        assert first != last, "each stage leaves out what it cannot use itself"


def changed(
    kind: str, stage: int, which: Callable[[dict[str, Any]], bool], change: Callable[[dict[str, Any]], None]
) -> Any:
    def lie(lines: list[dict[str, Any]]) -> None:
        change(
            next(line for line in lines if line["kind"] == kind and line.get("stage", stage) == stage and which(line))
        )

    return lie


def any_line(_: dict[str, Any]) -> bool:
    return True


def all_scales(lines: list[dict[str, Any]]) -> None:
    """Of one micro-batch, on all stages: they agree with each other."""
    for line in lines:
        if line["kind"] == "backward" and line["micro_batch"] == 50:
            line["loss_scale"] *= 2


LIES: list[tuple[str, Any]] = [
    ("one stage's scale", changed("backward", 0, lambda line: line["micro_batch"] == 50, lambda line: line.update(loss_scale=2.0))),
    ("a micro-batch's scale", all_scales),
    ("the first scale", changed("header", 0, any_line, lambda line: line["loss_scale"].update(initial=2.0**19))),
    ("the interval", changed("header", 0, any_line, lambda line: line["loss_scale"].update(interval=5))),
    ("the delay", changed("header", 0, any_line, lambda line: line.update(norm_delay=line["norm_delay"] + 1))),
    ("a step was not left out", changed("step", 0, lambda line: line.get("left_out"), lambda line: line.pop("left_out"))),
    ("a step was left out", changed("step", 0, lambda line: not line.get("left_out"), lambda line: line.update(left_out=True))),
    ("another precision", changed("header", 0, any_line, lambda line: (line.update(precision="bf16"), line.pop("loss_scale")))),
]  # fmt: skip


@pytest.mark.parametrize("schedule", ["1f1b", "async_1f1b"])
def test_a_lie_is_found(two: ddip.Group, tmp_path: Path, schedule: str) -> None:
    path = tmp_path / "ledger"
    call = f"s.replay({str(path)!r}, s.stages(), s.mse_loss, s.data(30, 12, 7)).difference"
    found = on(two, f"s.proved({str(path)!r}, {schedule!r}, {'none' if schedule == '1f1b' else 'stash'!r})")[0]
    assert found["difference"] is None
    truth = [json.loads(line) for line in path.read_text().splitlines()]
    for name, lie in LIES:
        lines = json.loads(json.dumps(truth))
        lie(lines)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        said = two.run(call, ranks=[0])[0].value
        assert said is not None, f"{name}: not found"


@pytest.mark.parametrize("schedule", ["1f1b", "async_1f1b"])
def test_a_run_that_was_saved_goes_on_with_its_scale(two: ddip.Group, tmp_path: Path, schedule: str) -> None:
    states = []
    for far, (whole, again, ends) in on(two, f"s.resumed({str(tmp_path / 'run.pt')!r}, {schedule!r})"):
        assert far == 0 and whole == again and ends[0] == ends[1] != 2**20
        states.append(whole)
    assert states[0] is None and states[1] is not None  # it is where the loss is


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_replicas_have_one_scale(two: ddip.Group, schedule: str) -> None:
    found = on(two, f"s.replicas({schedule!r})")
    assert found[0]["state"] == found[1]["state"]
    for one in found:
        assert one["scale"] == one["expected"] < 2**20
        assert one["left out"][0] == one["left out"][1] > 4
        assert one["far"] < 1e-6


def test_a_last_stage_that_is_frozen_hears_of_gradients_that_are_too_large(two: ddip.Group) -> None:
    for found in on(two, "s.frozen_last()"):
        assert found["scale"] < 2**20 and found["left out"][0] > 4 and found["left out"][1] == 0
        assert found["moved"] > 1e-5 and found["finite"]


@pytest.mark.parametrize("schedule", ["1f1b", "async_1f1b"])
def test_after_a_failure_it_goes_on(two: ddip.Group, schedule: str) -> None:
    for found in on(two, f"s.after_a_failure({schedule!r})"):
        assert found["failed"] and math.isfinite(found["loss"]) and found["scale"] < 2**20


@pytest.mark.parametrize(("options", "says"), [
    ("loss_scale=3", "loss_scale=3: expected a power of two from 2**-24 to 2**24"),
    ("loss_scale=0", "loss_scale=0: expected a power of two from 2**-24 to 2**24"),
    ("loss_scale=float('nan')", "loss_scale=nan: expected a power of two from 2**-24 to 2**24"),
    ("loss_scale=True", "loss_scale=True: expected 'auto', a power of two, or a dict of initial and interval"),
    ("loss_scale='dynamic'", "loss_scale='dynamic': expected 'auto', a power of two, or a dict of initial and interval"),
    ("loss_scale={'intervall': 3}", "loss_scale has 'intervall'; expected initial or interval; did you mean interval?"),
    ("loss_scale={'interval': 2.5}", "loss_scale: interval 2.5: expected a whole number of steps up to 2**31, 0: it stays"),
    ("precision='bf16', loss_scale=1024", "loss_scale=1024 is of precision='fp16'; it is 'bf16' here"),
    ("clip=1.0, clipping='global'", "precision='fp16': the norm of all stages some steps ago may be of a step that was left out; "
                                    "expected clipping='local' or 'proportional'"),
    ("order='ready', staleness='stash'", "order='ready': stages do not tell each other of gradients that are too large; "
                                         "expected precision='bf16'"),
    ("parts=[part.half() for part in s.stages()]", "precision='fp16': '0.weight' of stage 0 (Sequential) is of half precision itself, "
                                                   "and its gradients could not be unscaled; expected float32"),
])  # fmt: skip
def test_what_cannot_be_is_refused_on_every_rank(two: ddip.Group, options: str, says: str) -> None:
    with pytest.raises(ddip.RankError) as refused:
        two.run(f"s.pipe_of('async_1f1b', {options})")
    assert sorted(refused.value.ranks) == [0, 1]
    assert all(says in text for text in refused.value.tracebacks.values()) or says in str(refused.value)


@pytest.mark.parametrize("schedule", ["1f1b", "async_1f1b"])
@pytest.mark.parametrize(
    ("sizes", "which", "count"),
    [({0: 1, 1: 0}, [0], 1), ({0: 1, 1: 0}, [3, 7, 11], 12), ({0: 4, 1: 3}, [1, 2, 5, 6, 7], 12)],
)
def test_replicas_stay_equal_though_one_has_no_samples_for_a_step(
    two: ddip.Group, schedule: str, sizes: dict[int, int], which: list[int], count: int
) -> None:
    first, second = on(two, f"s.uneven({schedule!r}, {sizes}, {which}, {count})")
    assert first["state"] == second["state"]
    assert math.isfinite(first["moved"]) and first["moved"] > 1e-5


SYNCHRONOUS: dict[str, Any] = {"schedule": "1f1b"}
ASYNCHRONOUS: dict[str, Any] = {"schedule": "async_1f1b", "staleness": "stash"}
WIDE = ASYNCHRONOUS | {"window": [4, 0]}
SINGLE = ASYNCHRONOUS | {"precision": "fp32", "loss_scale": "auto", "clip": 1.0, "clipping": "global"}


@pytest.mark.parametrize(
    ("first", "second"),
    [(SYNCHRONOUS, ASYNCHRONOUS), (ASYNCHRONOUS, SYNCHRONOUS), (ASYNCHRONOUS, WIDE), (WIDE, ASYNCHRONOUS), (SINGLE, WIDE)],
)  # fmt: skip
def test_a_run_of_another_schedule_or_precision_takes_over_what_it_can_know(
    two: ddip.Group, tmp_path: Path, first: dict[str, Any], second: dict[str, Any]
) -> None:
    """Each square that will be asked for tells what became of one scale that is under way."""
    found = on(two, f"s.loaded({str(tmp_path / 'run.pt')!r}, {first!r}, {second!r})")[1]
    scale, _, under_way = found["before"]
    assert scale == (found["saved"][0] if found["saved"] else 2**20)
    assert len(under_way) <= found["delay"]
    assert found["squares"] == list(range(-len(under_way), 0))
    assert len(found["after"][2]) == found["delay"]


def test_a_scale_that_is_fixed_stays_whatever_is_loaded(two: ddip.Group, tmp_path: Path) -> None:
    fixed = ASYNCHRONOUS | {"loss_scale": 64}
    found = on(two, f"s.loaded({str(tmp_path / 'run.pt')!r}, {ASYNCHRONOUS!r}, {fixed!r})")[1]
    assert found["saved"][0] != 64 and found["before"][0] == found["after"][0] == 64


@pytest.mark.parametrize(
    ("parts", "schedule", "options"),
    [
        ("with_auxiliary_loss", "1f1b", {}),
        ("with_auxiliary_loss", "async_1f1b", {"staleness": "stash"}),
        ("tied_stages", "1f1b", {}),
        ("tied_stages", "async_1f1b", {"staleness": "stash"}),
        ("four_stages", "interleaved", {"placement": [0, 1, 0, 1]}),
        ("four_stages", "zbv", {"placement": [0, 1, 1, 0]}),
        ("four_stages", "async_1f1b", {"staleness": "stash", "placement": [0, 1, 0, 1], "accumulate": 3}),
    ],
)
def test_where_nothing_is_too_large_it_ends_near_single_precision(
    two: ddip.Group, parts: str, schedule: str, options: dict[str, Any]
) -> None:
    for found in on(two, f"s.beside_fp32(s.{parts}, {schedule!r}, **{options!r})"):
        assert found["left out"] == 0
        assert found["far"] < 3e-4 and found["far"] < found["moved"] / 20


def test_a_loss_of_half_precision_is_told_though_its_sum_is_too_large_for_it(two: ddip.Group) -> None:
    for found in on(two, "s.told(1.0, 1.0, 400)"):  # 1200 samples in each micro-batch, of a hundred each
        assert all(90 < loss < 110 for loss in found["losses"]) and found["said"] == []
        assert found["finite"] and found["left out"] == [0, 0]


def test_steps_that_are_left_out_are_not_said_to_spoil_the_weights(two: ddip.Group) -> None:
    for found in on(two, "s.told(2.0**24, 1000.0, 1)"):  # loss and scale are infinite in half precision
        assert found["finite"] and found["left out"] == [4, 4]
        loss, all_of_them = found["said"][0], found["said"][1:]
        assert loss.startswith("the loss is inf in batch 0 of a run: steps whose gradients are not finite are left out")
        assert [line.split(",")[0] for line in all_of_them] == [
            f"stage {stage} has left out all 4 steps of a run" for stage in (0, 1)
        ]


def test_what_was_too_large_does_not_spoil_a_run_in_single_precision(two: ddip.Group, tmp_path: Path) -> None:
    """Norms of steps that were left out are no limits for later ones."""
    for found in on(two, f"s.left_out_and_loaded({str(tmp_path / 'run.pt')!r})"):
        assert found["left out"] > 0 and found["finite"] and found["moved"] > 1e-6
