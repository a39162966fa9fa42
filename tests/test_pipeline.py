"""Pipelines, on real ranks: each beside one process."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pipeline_groups import pipeline_group
from support.waiting import wait_until

import ddip


@pytest.fixture(scope="module")
def two() -> Iterator[ddip.Group]:
    with pipeline_group(
        "pipeline-two",
        "pipeline_actions",
        "pipeline_borders",
        "pipeline_endurance",
        "pipeline_failures",
        "pipeline_tied",
    ) as group:
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
    (
        "async_1f1b",
        "pipemare",
        "sgd",
        {"window": [3, 0], "staleness_options": {"annealing_steps": 9, "pipemare_decay": 0.5}},
    ),
    ("async_1f1b", "gap_aware", "sgd", {"window": [3, 0], "staleness_options": {"gap_decay": 0.9, "gap_eps": 1e-3}}),
    ("async_1f1b", "adam", "adam", {"window": [4, 0], "staleness_options": {"second_decays": True}}),
    ("async_1f1b", "none", "sgd", {"recompute": True}),
    ("async_1f1b", "msnag", "sgd", {"recompute": True, "clip": 0.05}),
    ("virtual_async", "msnag", "sgd", {"max_staleness": 1}),
    ("2bw", "stash", "sgd", {"accumulate": 4}),
    ("2bw", "none", "sgd", {"accumulate": 4}),
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


@pytest.mark.parametrize(
    ("staleness", "rule", "options", "lie"),
    [
        ("pipemare", "sgd", {"annealing_steps": 9, "pipemare_decay": 0.5}, {"annealing_steps": 8}),
        ("pipemare", "sgd", {"annealing_steps": 9, "pipemare_decay": 0.5}, {"pipemare_decay": 0.135}),
        ("gap_aware", "sgd", {"gap_decay": 0.9, "gap_eps": 1e-3}, {"gap_decay": 0.999}),
        ("gap_aware", "sgd", {"gap_decay": 0.9, "gap_eps": 1e-3}, {"gap_eps": 1e-8}),
        ("adam", "adam", {"second_decays": True}, {"second_decays": False}),
    ],
)
def test_a_ledger_has_the_policys_options_and_a_wrong_one_is_found(
    two: ddip.Group, tmp_path: Path, staleness: str, rule: str, options: dict[str, float], lie: dict[str, float]
) -> None:
    path = str(tmp_path / "ledger")
    # Without a recomputation a single layer's gradients do not depend on the weights of its backward, as pipemare has them.
    settings = {"window": [3, 0], "staleness_options": options, "recompute": True}
    two.run(f"p.replayed({path!r}, 'async_1f1b', {staleness!r}, {rule!r}, **{settings!r})")
    header, *lines = Path(path).read_text().splitlines(keepends=True)
    told = json.loads(header)
    assert told["options"] == options
    told["options"] |= lie
    Path(path).write_text("".join([json.dumps(told) + "\n", *lines]))
    difference = two.run(f"p.replay_again({path!r}, 2, 1)")[0].value
    assert difference is not None and re.match(r"line \d+: stage \d, \w+", difference), difference


@pytest.mark.parametrize(
    ("staleness", "options"),
    [
        ("none", {}),
        ("stash", {}),
        ("msnag", {}),
        ("msnag+stash", {"accumulate": 2}),
        ("pipemare", {}),
        ("spectrain", {}),
    ],
)
def test_how_far_the_weights_moved_is_what_the_replay_of_the_ledger_finds(
    two: ddip.Group, tmp_path: Path, staleness: str, options: dict[str, object]
) -> None:
    found, expected, text = two.run(f"p.gaps_and_replays({str(tmp_path / 'ledger')!r}, {staleness!r}, **{options!r})")[
        0
    ].value
    for (moved, error), (replayed_moved, replayed_error) in zip(found, expected, strict=True):
        assert moved == pytest.approx(replayed_moved, rel=1e-4) and error == pytest.approx(replayed_error, rel=1e-4)
    assert found[0][0] > 1e-3 and found[0][1] > 0.1 and found[1][0] == 0, "only the first stage waits"
    assert (found[0][1] == pytest.approx(1)) == (staleness in ("none", "stash", "pipemare"))
    assert "weights moved  error of what was used" in text


def test_without_being_asked_nobody_measures_how_far_weights_move(two: ddip.Group) -> None:
    report = two.run("r = p.pipe_of(p.mlp(2), 'async_1f1b').run(p.data(3, 12)); (r.stages[0].gap, str(r))")[0].value
    assert report[0] is None and "weights moved" not in report[1]


def test_an_option_that_the_policy_does_not_have_is_named(two: ddip.Group) -> None:
    for options, said in (
        ("staleness='gap_aware', staleness_options={'gap_decy': 0.9}", "option 'gap_decy' of gap_aware; expected gap_decay, gap_eps; did you mean gap_decay?"),
        ("staleness='msnag', staleness_options={'gap_decay': 0.9}", "option 'gap_decay' of msnag; expected none, it has no options"),
        ("staleness='gap_aware', staleness_options={'annealing_steps': 9}", "option 'annealing_steps' of gap_aware"),
        ("staleness='pipemare', staleness_options={'annealing_steps': 2.5}", "expected a whole number from 0 to 1e+15"),
        ("staleness='pipemare', staleness_options={'pipemare_decay': 2}", "option pipemare_decay is 2; expected a number from 1e-09 to 1"),
    ):  # fmt: skip
        two.run(
            f"try: p.pipe_of(p.mlp(2), 'async_1f1b', {options})\nexcept ddip.ConfigError as error: said = str(error)"
        )
        assert all(said in one and "\n" not in one for one in two.pull("said", rank="all")), two.pull(
            "said", rank="all"
        )


@pytest.mark.parametrize(
    ("schedule", "options"),
    [
        ("seq", {}), ("gpipe", {}), ("1f1b", {}), ("zb1", {}), ("async_1f1b", {}), ("async_1f1b", {"accumulate": 3, "window": [4, 0]}),
        ("async_1f1b", {"warmup": 1, "flush_every": 2}), ("async_1f1b", {"switch_at": 2}), ("virtual_async", {"max_staleness": 1}),
        ("2bw", {"accumulate": 4, "staleness": "stash"}), ("paci", {"accumulate": 4, "staleness": "none"}),
    ],
)  # fmt: skip
def test_modules_and_optimizers_see_what_the_plan_says_in_its_order(
    two: ddip.Group, schedule: str, options: dict[str, object]
) -> None:
    for result in two.run(f"pipeline_actions.trace_and_plan({schedule!r}, **{options!r})"):
        seen, planned = result.value
        assert len(seen) >= 36 and seen == planned


@pytest.mark.parametrize(
    ("schedule", "stages", "placement", "options"),
    [
        ("gpipe", 2, [0, 1], ""), ("1f1b", 3, [0, 1, 0], ""), ("zb1", 2, [0, 1], ""), ("interleaved", 4, [0, 1, 0, 1], ""),
        ("async_1f1b", 2, [0, 1], ", window=[3, 0]"), ("async_1f1b", 4, [0, 1, 1, 0], ""),
    ],
)  # fmt: skip
def test_the_communicator_is_given_the_plans_messages_in_its_order(
    two: ddip.Group, schedule: str, stages: int, placement: list[int], options: str
) -> None:
    for result in two.run(f"pipeline_actions.messages_of({schedule!r}, {stages}, {placement!r}{options})"):
        found, planned = result.value
        assert found == planned and all(planned)


# --- failures


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "async_1f1b"])
def test_a_stage_that_raises_ends_all_stages_with_one_error_that_names_it(two: ddip.Group, schedule: str) -> None:
    two.run(f"pipe, said = pipeline_failures.failing({schedule!r})")
    first, last = two.pull("said", rank="all")
    assert last == "ValueError: no more today"
    assert "stage 1 (FailsAt), forward of micro-batch 10 (rank 1): ValueError: no more today" in first, first
    # The pipeline, its channels and the ranks can be used again.
    losses = two.run("report = pipe.run(p.data(3, 12)); report.losses")
    assert len(losses[0].value) == 3 and losses[0].value == losses[1].value


def test_a_stage_that_raises_is_heard_also_when_all_channels_are_full(two: ddip.Group) -> None:
    first, last = two.run("pipeline_failures.failing_at_once()")
    assert last.value == "no more today"
    assert "stage 1 (FailsAt), forward of micro-batch 0 (rank 1): ValueError: no more today" in first.value


@pytest.mark.timeout(240)  # forty thousand micro-batches: nearly a minute where others compute, too
def test_memory_and_descriptors_stay_as_they_are_over_ten_thousand_micro_batches(two: ddip.Group) -> None:
    for result in two.run("pipeline_endurance.many(1250)"):
        growth, descriptors = result.value
        assert growth < 1.0 and descriptors == 0
    growth, _ = two.run("pipeline_endurance.many(1250, [p.mlp(2)[0], pipeline_endurance.Leaks()])")[1].value
    assert growth > 1.0, "a leak is seen"


@pytest.mark.parametrize("leaks", [False, True], ids=["as it is", "a leak is seen"])
def test_what_a_run_notes_of_a_micro_batch_is_small(leaks: bool) -> None:
    """In workers of its own: what others have given back would be used first."""
    with pipeline_group("pipeline-long", "pipeline_endurance") as group:
        results = group.run(
            f"pipeline_endurance.one_long_run(1250, 1000, {'[p.mlp(2)[0], pipeline_endurance.Leaks()]' if leaks else None})"
        )
    grown = [result.value[0] for result in results]
    assert grown[1] > 1.0 if leaks else max(grown) < 0.5, f"KiB for each micro-batch, until the run ends: {grown}"
    assert all(result.value[1] < 1.0 for result in results), "what the report keeps of it, in KiB"


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
    with pytest.raises(KeyboardInterrupt, match="was interrupted on ranks 0-1"):
        cell.results()
    assert two.run("len(pipe.run(p.data(2, 12)).losses)")[0].value == 2


def test_a_killed_stage_is_noticed_within_a_second() -> None:
    with pipeline_group("pipeline-kill", "pipeline_failures") as group:
        group.run("pipe = p.pipe_of([p.mlp(2)[0], pipeline_failures.DiesAt(11)])")
        begun = time.monotonic()
        with pytest.raises(ddip.RankError) as error:
            group.run("pipe.run(p.data(5, 12))")  # it dies within milliseconds
        assert time.monotonic() - begun < 5, "promised: a second"
        assert list(error.value.lost) == [1]
        assert "PeerLost" in error.value.tracebacks[0]


# --- borders, recomputation, resuming


@pytest.mark.parametrize("recompute", [False, True], ids=["kept graphs", "recomputed"])
@pytest.mark.parametrize(
    ("schedule", "staleness"), [("1f1b", "none"), ("async_1f1b", "msnag"), ("async_1f1b", "stash")]
)
def test_tuples_in_place_operators_dropout_and_batch_norm_cross_borders(
    two: ddip.Group, tmp_path: Path, schedule: str, staleness: str, recompute: bool
) -> None:
    call = f"pipeline_borders.borders_replayed({str(tmp_path / 'ledger')!r}, {schedule!r}, {staleness!r}, recompute={recompute})"
    assert [result.value for result in two.run(call)] == ["identical"] * 2


@pytest.mark.parametrize(
    ("schedule", "staleness", "rule"),
    [
        ("1f1b", "none", "sgd"),
        ("async_1f1b", "msnag", "sgd"),
        ("async_1f1b", "adam", "adam"),
        ("async_1f1b", "pipemare", "sgd"),
    ],
)
def test_a_run_that_was_saved_and_loaded_goes_on_as_if_nothing_had_happened(
    two: ddip.Group, tmp_path: Path, schedule: str, staleness: str, rule: str
) -> None:
    for result in two.run(f"p.resumed({str(tmp_path / 'saved')!r}, {schedule!r}, {staleness!r}, {rule!r})"):
        assert result.value == 0.0


def test_random_numbers_of_the_program_go_on_as_without_a_pipeline(two: ddip.Group) -> None:
    two.run(
        "torch.manual_seed(1); a = torch.rand(3); torch.manual_seed(1); pipe = p.pipe_of(pipeline_borders.borders(2)[:1] + pipeline_borders.borders(2)[1:])"
    )
    two.run("torch.manual_seed(1)\npipe.run(p.data(2, 12, dtype=torch.float32))\nb = torch.rand(3)")
    assert two.run("torch.equal(a, b)")[0].value


# --- refusals: before anything is computed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("schedule='1f2b'", "1f1b"),
        ("staleness='msnug'", "msnag"),
        ("micro_batches=0", "micro_batches=0, accumulate=1: expected whole numbers from 1 on"),
        ("precision='fp8'", "precision='fp8': expected fp32, bf16 or fp16"),
        ("window='wide'", "window='wide': expected a whole number for each stage, 'depth', or None"),
        ("window=[1.5, 0]", "window=[1.5, 0]: expected a whole number for each stage, 'depth', or None"),
        ("window=3", "window=3: expected a whole number for each stage, 'depth', or None"),
        ("replicas=3", "replicas=3: expected a divisor of the group's 2 ranks"),
        ("clip=-1.0", "clip=-1.0: expected a number above 0"),
        ("clip=1.0, clipping='globl'", "clipping='globl': expected auto, local, proportional or global"),
        ("replicas=2, ledger='x'", "ledger= is of one pipeline; expected replicas=1"),
        ("partition='mirrored'", "partition= needs example="),
        ("staleness='msnag', optimizer=p.RULES['adam']", "staleness='msnag'"),
        ("shedule='1f1b'", "ddip.Pipeline has no argument shedule=; did you mean schedule?"),
    ],
)
def test_what_cannot_be_is_refused_on_every_rank(two: ddip.Group, arguments: str, said: str) -> None:
    call = "dict(dict(loss=torch.nn.functional.mse_loss, optimizer=p.sgd), " + arguments + ")"
    code = f"try: ddip.Pipeline(p.mlp(2), **{call}); said = ''\nexcept ddip.ConfigError as error: said = str(error)"
    two.run(code)
    for line in two.pull("said", rank="all"):
        assert said in line and "\n" not in line, line


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb1"])
def test_a_weight_of_two_stages_is_trained_as_in_one_process(two: ddip.Group, schedule: str, stages: int) -> None:
    for result in two.run(f"pipeline_tied.tied_in_one_process({schedule!r}, {stages})"):
        assert result.value < 1e-13


@pytest.mark.parametrize(("schedule", "staleness"), [("gpipe", "none"), ("async_1f1b", "msnag")])
def test_a_weight_of_two_stages_is_simulated(two: ddip.Group, schedule: str, staleness: str) -> None:
    for result in two.run(f"pipeline_tied.tied_simulated({schedule!r}, {staleness!r})"):
        assert result.value == 0


@pytest.mark.parametrize("stages", [2, 4])
@pytest.mark.parametrize(
    ("schedule", "staleness", "options"),
    [("1f1b", "none", ""), ("async_1f1b", "msnag", ""), ("async_1f1b", "stash", ", accumulate=2"), ("async_1f1b", "none", ", recompute=True")],
)  # fmt: skip
def test_both_stages_use_one_version_of_their_weight_for_one_micro_batch(
    two: ddip.Group, tmp_path: Path, schedule: str, staleness: str, options: str, stages: int
) -> None:
    call = f"pipeline_tied.tied_replayed({str(tmp_path / 'ledger')!r}, {schedule!r}, {staleness!r}, {stages}{options})"
    (first, owned), (second, borrowed) = [result.value for result in two.run(call)]
    assert first == second == "identical"
    if "recompute" in options:
        return  # the owner computes twice, on other weights
    assert len(owned) == len(borrowed) == 20
    assert all((a == b).all() for a, b in zip(owned, borrowed, strict=True))
    assert len({tuple(weight.flatten().tolist()) for weight in owned}) > 3, "it is trained meanwhile"


@pytest.mark.parametrize(
    ("batches", "said"),
    [
        ("p.data(3 + ddip.rank(), 12)", "every rank must run the same pipeline on as many batches"),
        ("[(x + ddip.rank(), y) for x, y in p.data(3, 12)]", "is not the one that the first stage read"),
        ("p.data(3, 2)", "a batch of 2 samples cannot be cut into 4 micro-batches"),
        ("[1, 2]", "batch 0 is a int; expected a pair (x, y)"),
    ],
)
def test_batches_that_do_not_fit_are_found_and_not_trained_on(two: ddip.Group, batches: str, said: str) -> None:
    two.run("pipe = p.pipe_of(p.mlp(2)); before = pipe.state_dict()")
    with pytest.raises(ddip.RankError, match=".*") as error:
        two.run(f"pipe.run({batches})")
    assert said in str(error.value)
    assert two.run("len(pipe.run(p.data(2, 12)).losses)")[0].value == 2


# --- skips, stages that share a rank, other backends, mixed precision


@pytest.mark.parametrize(
    ("cut", "placement"),
    [([4, -1], [0, 1]), ([2, 3, -1], [0, 1, 0]), ([2, 2, 2, -1], [0, 1, 1, 0])],
    ids=["two", "three", "four"],
)
@pytest.mark.parametrize(
    ("schedule", "staleness"), [("1f1b", "none"), ("async_1f1b", "msnag"), ("async_1f1b", "stash")]
)
def test_every_layer_may_be_connected_to_the_last_one(
    two: ddip.Group, tmp_path: Path, schedule: str, staleness: str, cut: list[int], placement: list[int]
) -> None:
    call = f"pipeline_borders.skips_replayed({str(tmp_path / 'ledger')!r}, {schedule!r}, {staleness!r}, {cut!r}, {placement!r})"
    assert [result.value for result in two.run(call)] == ["identical"] * 2


@pytest.mark.parametrize(
    ("schedule", "options"),
    [
        ("seq", ""),
        ("gpipe", ""),
        ("virtual_async", ", max_staleness=1"),
        ("2bw", ", accumulate=4"),
        ("paci", ", accumulate=2"),
    ],
)
def test_a_skip_is_carried_by_the_other_schedules_too(
    two: ddip.Group, tmp_path: Path, schedule: str, options: str
) -> None:
    call = f"pipeline_borders.skips_replayed({str(tmp_path / 'ledger')!r}, {schedule!r}, 'auto', [2, 3, -1], [0, 1, 0]{options})"
    assert [result.value for result in two.run(call)] == ["identical"] * 2


@pytest.mark.parametrize(
    ("schedule", "cut", "placement"),
    [("interleaved", [2, 2, 2, -1], [0, 1, 0, 1]), ("zb1", [4, -1], [0, 1]), ("zbv", [2, 2, 2, -1], [0, 1, 1, 0])],
)
def test_interleaved_and_zero_bubble_schedules_train_like_one_process(
    two: ddip.Group, schedule: str, cut: list[int], placement: list[int]
) -> None:
    for result in two.run(f"pipeline_borders.skips_in_one_process({schedule!r}, {cut!r}, {placement!r})"):
        assert result.value < 1e-6


@pytest.mark.parametrize("schedule", ["1f1b", "zb1"])
def test_a_split_backward_computes_nothing_twice(two: ddip.Group, schedule: str) -> None:
    """Stage 1: 4 layers, 2 batches of 3 micro-batches, each layer 1 product forward and 2 backward."""
    away, products, seen, notes = two.run(f"pipeline_actions.split_backward({schedule!r})")[1].value
    assert away < 1e-13 and notes == []
    assert products == 2 * 3 * 4 * 3
    assert seen.count("gradient") == 2 * 3 * 8 and seen.count("backward") == 2 * 3
    # Whole: the gradients of a micro-batch's weights come before its input's, the last thing of its backward. Split: some
    # micro-batch's input comes first.
    first = seen.index("backward")
    assert (first == 0) if schedule == "zb1" else (first == 8)


def test_what_computes_both_gradients_at_once_is_not_split(two: ddip.Group) -> None:
    away, calls, notes = two.run("pipeline_actions.backward_that_cannot_be_split()")[1].value
    assert away < 1e-13 and calls == 3 * 4
    assert notes == ["stage 1: its backward is not split, because WeighsInPythonBackward computes both parts at once"]


def test_a_split_backward_is_in_the_ledger(two: ddip.Group, tmp_path: Path) -> None:
    call = f"p.replayed({str(tmp_path / 'ledger')!r}, 'zb1', 'none')"
    assert [result.value for result in two.run(call)] == ["identical"] * 2
    lines = [json.loads(line) for line in (tmp_path / "ledger").read_text().splitlines()[1:]]
    later = [line for line in lines if line["kind"] == "weight_gradient"]
    split = [line for line in lines if line.get("split")]
    assert {line["stage"] for line in later} == {1} and len(later) == len(split) > 0


def test_a_pipeline_runs_over_gloo(two: ddip.Group) -> None:
    for result in two.run("p.on_backend('gloo')"):
        assert result.value < 1e-13


def test_over_gloo_a_pipeline_outlives_the_timeout_and_hears_every_neighbour() -> None:
    """What waits for an alarm is no message that is late. Rank 1 has two neighbours, and the second one fails."""
    with pipeline_group("pipeline-gloo", "pipeline_failures", "time", workers=3) as group:
        group.run(
            "pipe = p.pipe_of(p.mlp(3), '1f1b', ranks=ddip.comm('gloo', timeout=6.0))\nfirst = pipe.run(p.data(2, 12)).losses"
        )
        group.run("time.sleep(7)")
        first, second = group.run("first, pipe.run(p.data(2, 12)).losses")[0].value
        assert second[0] < first[0]
        said = "\ntry: other.run(p.data(4, 12)); said = ''\nexcept Exception as error: said = str(error)"
        group.run(
            "other = p.pipe_of([*p.mlp(3)[:2], pipeline_failures.FailsAt(5)], '1f1b', ranks=ddip.comm('gloo'))" + said
        )
        assert all("no more today" in line for line in group.pull("said", rank="all"))


@pytest.mark.parametrize(("staleness", "notes"), [("stash", 0), ("msnag", 1)])
def test_under_autocast_a_policy_without_stash_recomputes(two: ddip.Group, staleness: str, notes: int) -> None:
    said, first, last = two.run(f"p.mixed({staleness!r})")[0].value
    assert len([note for note in said if "recompute=True" in note]) == notes
    assert last < 0.8 * first


@pytest.mark.parametrize("backend", ["shm", "gloo"])
@pytest.mark.parametrize("schedule", ["seq", "gpipe", "1f1b"])
def test_shapes_may_change_from_batch_to_batch(two: ddip.Group, schedule: str, backend: str) -> None:
    for result in two.run(f"p.changing_shapes({schedule!r}, ranks=ddip.comm({backend!r}))"):
        assert result.value < 1e-13


def test_targets_cross_no_link(two: ddip.Group) -> None:
    narrow, wide = two.run("(p.bytes_with_targets_of(3), p.bytes_with_targets_of(30000))")[0].value
    assert narrow == wide and min(narrow) > 0


@pytest.mark.parametrize(("schedule", "staleness"), [("async_1f1b", "stash"), ("async_1f1b", "auto"), ("2bw", "auto")])
def test_a_step_may_take_more_batches_than_any_short_plan_has(
    two: ddip.Group, tmp_path: Path, schedule: str, staleness: str
) -> None:
    call = f"p.stepping_rarely({str(tmp_path / 'ledger')!r}, {schedule!r}, {staleness!r})"
    assert [result.value for result in two.run(call)] == ["identical"] * 2


@pytest.mark.parametrize("call", ["'gpipe'", "'async_1f1b', staleness='stash', accumulate=4", "'2bw', accumulate=4"])
def test_an_empty_micro_batch_leaves_no_copy_of_the_weights(two: ddip.Group, call: str) -> None:
    assert [result.value for result in two.run(f"p.kept_after_small_batches({call})")] == [[0], [0]]


def test_labels_may_be_made_of_the_inputs(two: ddip.Group) -> None:
    for result in two.run("p.next_words()"):
        away, moved = result.value
        assert away < 1e-13 and moved > 1e-3


def test_predictions_use_the_rates_that_the_scheduler_really_comes_to(two: ddip.Group, tmp_path: Path) -> None:
    assert [result.value for result in two.run(f"p.scheduled({str(tmp_path / 'ledger')!r})")] == ["identical"] * 2
    lines = [json.loads(line) for line in (tmp_path / "ledger").read_text().splitlines()[1:]]
    first = [line for line in lines if line["stage"] == 0]
    came = {line["step"]: line["rates"][0] for line in first if line["kind"] == "step"}
    looked = [line["weights"] for line in first if line["kind"] == "forward" and line["weights"]["kind"] == "predicted"]
    assert max(seen["n"] for seen in looked) == 3 and len(set(came.values())) == len(came)
    for seen in looked:
        ahead = [came[seen["version"] + k] for k in range(1, seen["n"] + 1) if seen["version"] + k in came]
        assert seen["rates"][0][: len(ahead)] == pytest.approx(ahead, rel=1e-12)
