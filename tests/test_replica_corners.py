"""Corners of ddip.DataParallel and what it stands on, each of which went wrong once (tests/support/corners.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.waiting import wait_until

import ddip

pytest.importorskip("torch")
if (Path(__file__).parent.parent / ".setup" / "without_engine").exists():
    pytest.skip(
        "make setup left the data plane out: it does not compile with this machine's torch", allow_module_level=True
    )

SUPPORT = Path(__file__).parent / "support"
INIT = f"import sys; sys.path.insert(0, {str(SUPPORT)!r}); import corners as c"
EXACT = 1e-12


@pytest.fixture(scope="module", params=[2, 3])
def ranks(request: Any) -> Any:
    with ddip.Group(workers=request.param, name=f"corners-{request.param}", timeout=300) as group:
        group.run(INIT)
        yield group


@pytest.fixture(scope="module")
def two() -> Any:
    with ddip.Group(workers=2, name="corners-two", timeout=300) as group:
        group.run(INIT)
        yield group


@pytest.fixture(scope="module")
def three() -> Any:
    with ddip.Group(workers=3, name="corners-three", timeout=300) as group:
        group.run(INIT)
        yield group


def values(group: Any, code: str, seconds: float = 40) -> list[Any]:
    """A rank that waits without end is a failure here, and not of the whole run."""
    cell = group.run(code, wait=False)
    if not cell.wait(seconds):
        why = group.why()
        group.interrupt(kill=True)
        pytest.fail(f"still waiting: {why}")
    return [result.value for result in cell.results()]


# --- late gradients


def test_a_late_gradient_is_everybodys_and_keeps_its_history(ranks: Any) -> None:
    for found in values(ranks, "c.late_with_history()"):
        assert all(apart < EXACT and history for apart, history in found), found


def test_a_late_all_reduce_that_fails_is_an_error_and_leaves_no_gradient(ranks: Any) -> None:
    for said, times, dropped in values(ranks, "c.late_that_fails()"):
        assert said.startswith("PeerLost: the communicator was aborted"), said
        assert times == 1, "nothing was late"
        assert dropped == [True, True]


def test_a_backward_whose_end_failed_is_over(ranks: Any) -> None:
    world = ranks.world_size
    for said, dropped, gradients in values(ranks, "c.late_with_an_error_of_another_kind()"):
        assert said == "MemoryError: no room for a copy"
        assert dropped == [True, True]
        assert gradients == pytest.approx([1.0 + (world - 1) / 2, 1.0])


@pytest.mark.parametrize("options", ["find_unused=False", "static_graph=True"])
def test_layers_are_frozen_and_thawed_where_all_is_expected(ranks: Any, options: str) -> None:
    for found in values(ranks, f"c.frozen_where_all_is_expected({options})"):
        assert found == [["nothing", frozen, True] for frozen in (False, False, True, True, False)]


# --- join


@pytest.mark.parametrize("change", ["nothing", "thawed", "thawed inside", "float"])
def test_what_changed_before_a_join_is_known_inside(ranks: Any, change: str) -> None:
    assert values(ranks, f"c.joined_after({change!r})") == [True] * ranks.world_size


def test_a_model_that_changes_inside_a_join_is_refused(ranks: Any) -> None:
    for said in values(ranks, "c.changed_inside_join()"):
        assert said == (
            "ConfigError: the model has changed inside join, where the ranks cannot plan anew: change it before"
        )


def test_a_join_that_failed_is_over_on_ranks_without_data_too(three: Any) -> None:
    for said, gradient in values(three, "c.join_that_failed_for_who_had_no_data()"):
        assert "one rank is in forward, another in backward" in said
        assert gradient == 3.0


def test_a_rank_without_data_takes_part_in_what_is_sparse(ranks: Any) -> None:
    assert all(worst < EXACT for worst in values(ranks, "c.sparse_join_where_all_is_expected()"))


def test_a_sparse_gradient_that_is_missing_is_named(ranks: Any) -> None:
    said = values(ranks, "c.sparse_that_is_missing()")
    assert said[0] == (
        "ConfigError: parameter words.weight got no gradient in this backward; find_unused=True allows that"
    )
    assert said[1:] == ["nothing"] * (ranks.world_size - 1)


def test_an_optimizers_state_goes_to_the_ranks_of_the_model_only(three: Any) -> None:
    assert values(three, "c.joined_with_an_optimizer_in_a_part_of_the_group()") == [None, 0.0, 0.0]


# --- what nobody used


@pytest.mark.parametrize("compress", ["none", "fp16", "int8", "topk:0.1", "powersgd:1"])
def test_what_nobody_used_keeps_its_gradient_though_it_was_expected(ranks: Any, compress: str) -> None:
    assert values(ranks, f"c.unused_keeps_its_gradient({compress!r})") == [0.0] * ranks.world_size


def test_a_gradient_of_a_ranks_own_stays_its_own_though_it_was_expected(ranks: Any) -> None:
    assert values(ranks, "c.bystander_that_was_expected()") == [[float(rank)] * 2 for rank in range(ranks.world_size)]


# --- compression


@pytest.mark.parametrize("shape", [(60, 50), (600, 500)])
def test_powersgd_is_exact_for_matrices_of_low_rank(ranks: Any, shape: tuple[int, int]) -> None:
    assert all(worst < 1e-5 for worst in values(ranks, f"c.of_low_rank{shape}"))


@pytest.mark.parametrize("compress", ["int8", "topk:1", "powersgd", "bf16"])
def test_gradients_near_the_smallest_numbers_stop_nothing(ranks: Any, compress: str) -> None:
    for dropped, smallest in values(ranks, f"c.denormal({compress!r})"):
        assert dropped == 0 and smallest == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("compress", ["int8", "topk:0.1", "powersgd:1"])
def test_what_is_left_over_goes_with_its_parameter(ranks: Any, compress: str) -> None:
    for found in values(ranks, f"c.rests_of_parameters_that_moved({compress!r})"):
        new, first, second, still_new, still_second = found
        assert new[0] == still_new[0] == 0.0, "what it got was another's"
        assert all(arrived > 0 for arrived, _ in (first, second, still_second))
        assert all(apart < 1e-5 for _, apart in found), found


@pytest.mark.parametrize("compress", ["int8", "topk:0.1", "powersgd:1"])
def test_nothing_is_lost_by_compression_of_uneven_inputs(ranks: Any, compress: str) -> None:
    assert all(gap < 1e-5 for gap in values(ranks, f"c.rests_of_uneven_inputs({compress!r})"))


@pytest.mark.parametrize("compress", ["int8", "topk:0.1", "powersgd:1"])
def test_a_compressed_run_that_is_resumed_ends_as_one_that_never_stopped(ranks: Any, compress: str) -> None:
    assert values(ranks, f"c.resumed({compress!r})") == [[True, False]] * ranks.world_size


def test_what_was_left_over_by_another_model_is_refused(two: Any) -> None:
    assert values(two, "c.refused_rests()")[0] == [
        "ConfigError: left over by compression: rest.rows.7 is of no parameter here",
        "ConfigError: left over by compression: rest.rows.0 has 3 numbers, the parameter 480",
        "ConfigError: the order of gradients that was saved is not one of this model's parameters",
        "ConfigError: this model's gradients travel whole: it cannot take what compression has left over",
        "nothing",
    ]


def test_one_ranks_wrong_rests_are_refused_by_all(two: Any) -> None:
    assert values(two, "c.one_ranks_wrong_rests()") == [
        "ConfigError: left over by compression: rest.rows.7 is of no parameter here",
        "ConfigError: rank 0 refuses what it was given",
    ]


@pytest.mark.parametrize("compress", ["int8", "topk:0.1"])
def test_a_resumed_run_keeps_its_buckets_though_its_first_step_uses_less(two: Any, compress: str) -> None:
    assert values(two, f"c.resumed_with_fewer({compress!r})") == [True, True]


# --- buffers


def test_constants_among_the_buffers_are_not_written_to(ranks: Any) -> None:
    for rank, (said, gradient, count) in enumerate(values(ranks, "c.constants_in_the_graph()")):
        assert said == "nothing" and gradient == [4.0] * 3
        assert count == 3.0 + rank, "what is no constant is rank 0's before each forward"


# --- wrappers and helpers


def test_a_wrapper_that_could_not_be_made_takes_nothing_over(ranks: Any) -> None:
    for refused, trained in values(ranks, "c.wrapped_again_in_vain()"):
        assert refused.startswith("ConfigError: compress='zip' is unknown") and trained == "nothing"


@pytest.mark.parametrize(
    "frozen, where", [([1], "rank 1 and trained on ranks 0, 2"), ([0, 2], "ranks 0, 2 and trained on rank 1")]
)
def test_a_parameter_that_is_frozen_on_some_ranks_only_is_named_with_them(
    three: Any, frozen: list[int], where: str
) -> None:
    for said, everywhere in values(three, f"c.frozen_on_some({frozen})"):
        assert said == (
            f"ConfigError: parameter 2.bias is frozen (requires_grad=False) on {where}: freeze it on all ranks or on none"
        )
        assert everywhere == "nothing"


def test_a_parameter_without_a_shape_is_refused(two: Any) -> None:
    line = "ConfigError: parameter 1.weight has no shape yet: call the model once on all ranks, then wrap it"
    assert values(two, "c.of_no_shape()") == [line] * 2


@pytest.mark.parametrize("of_ddp", [False, True])
@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize("inner, head", [(False, True), (True, True), (False, False), (True, False)])
def test_a_model_with_a_part_named_module_loads_what_it_saved(
    two: Any, inner: bool, head: bool, around: bool, of_ddp: bool
) -> None:
    assert values(two, f"c.loaded_by_name({inner}, {head}, {around}, {of_ddp})") == [True, True]


def test_what_is_registered_through_the_wrapper_is_the_models(two: Any) -> None:
    keys = ["bias", "head.bias", "head.weight", "mean", "scale", "weight"]
    assert values(two, "c.registered_through_the_wrapper()") == [[keys, True, True, True]] * 2


@pytest.mark.parametrize("root", [0, 1])
def test_what_cannot_be_pickled_is_an_error_on_all_ranks(ranks: Any, root: int) -> None:
    for rank, (gathered, told, after) in enumerate(values(ranks, f"c.unpicklable({root})")):
        for said in (gathered, told):
            if rank == root:
                assert "pickle" in said and "lambda" in said
            else:
                assert said == f"ConfigError: what rank {root} gave cannot be pickled; its own error says why"
        assert after == "nothing"


def test_metrics_of_other_names_are_not_mixed_up(ranks: Any) -> None:
    first, second = values(ranks, "c.metrics()")[:2]
    assert first == [
        "ConfigError: rank 0 has metrics ['correct', 'loss'], but rank 1 has ['loss', 'right']",
        "ConfigError: op='median' is unknown, one of mean, sum, min, max was expected",
        "{}",
    ]
    assert second[0] == "ConfigError: rank 1 has metrics ['loss', 'right'], but rank 0 has ['correct', 'loss']"


def test_what_a_rank_without_samples_says_does_not_count(ranks: Any) -> None:
    weight = 3.0 * sum(range(ranks.world_size))
    assert values(ranks, "c.metrics_of_who_had_no_samples()") == [{"loss": 2.0, "weight": weight}] * ranks.world_size


def test_a_batch_norm_in_two_places_stays_one(ranks: Any) -> None:
    assert values(ranks, "c.batch_norm_in_two_places()") == [["SyncBatchNorm", True, True]] * ranks.world_size


def test_batch_norm_is_over_the_ranks_that_the_model_was_given(three: Any) -> None:
    (none, *parts), wholes = zip(*values(three, "c.batch_norm_in_a_part_of_the_group()"), strict=True)
    assert none is None and all(apart < EXACT for apart in (*parts, *wholes))


def test_sparse_gradients_travel_over_torchs_gloo(ranks: Any) -> None:
    assert all(worst < EXACT for worst in values(ranks, "c.sparse_over_gloo()"))


# --- communicators


def test_a_communicator_is_let_go_while_its_end_calls_python(ranks: Any) -> None:
    world = ranks.world_size
    assert values(ranks, "c.let_go_while_something_is_under_way()") == [([float(world)] * 4, [1])] * world


def test_a_works_future_is_done_when_the_work_is(ranks: Any) -> None:
    assert values(ranks, "c.futures_of_works_that_are_over()") == [0] * ranks.world_size


def test_another_timeout_counts_for_messages_too(ranks: Any) -> None:
    for rank, said in enumerate(values(ranks, "c.messages_after_another_timeout()")):
        peer = (rank - 1) % ranks.world_size
        line = f"RuntimeError: rank {rank} met its timeout of 0.2 s waiting for a message of rank {peer}"
        assert said == [line, line]


@pytest.mark.timeout(180)
def test_a_rank_that_is_lost_while_others_come_is_missed_at_once() -> None:
    with ddip.Group(workers=3, name="corners-lost", timeout=300) as group:
        group.run(INIT)
        cell = group.run("found = c.lost_while_others_come()", wait=False)
        assert cell.wait(120)
        for result in group.run("found", ranks=[0, 2]):
            said, seconds = result.value
            assert said.startswith("PeerLost: rank 1 is lost"), said
            assert seconds < 30, "the timeout of 60 s noticed it"


def test_replicas_are_compared_over_the_group_that_was_made_again() -> None:
    with ddip.Group(workers=2, name="corners-rebuilt") as group:
        group.run("import torch, ddip\ndp = ddip.DataParallel(torch.nn.Linear(3, 2))")
        waiting = group.run("dp.check_replicas()", ranks=[1], wait=False)
        wait_until(lambda: "all_" in json.dumps(group.why()), 30, "rank 1 waits for rank 0")
        group.interrupt()
        waiting.wait(30)
        group.rebuild()
        assert values(group, "dp.check_replicas()") == [[], []]
        # It compares, and does not make them equal.
        found = values(group, "with torch.no_grad(): dp.module.bias += ddip.rank()\ndp.check_replicas()")
        assert found == [["bias"], ["bias"]]
