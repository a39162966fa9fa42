"""Weights that a step of a pipeline has no gradient for: they stay as they are, as in plain PyTorch, moments and step counts too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pipeline_groups import pipeline_group

import ddip


@pytest.fixture(scope="module")
def two() -> Iterator[ddip.Group]:
    with pipeline_group("pipeline-unused", "sometimes_used as u") as group:
        yield group


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb1"])
@pytest.mark.parametrize("rule", ["sgd", "sgd with decay", "adam", "adamw", "nadam"])
def test_a_synchronous_pipeline_steps_what_one_process_steps(two: ddip.Group, schedule: str, rule: str) -> None:
    for result in two.run(f"u.beside_one_process({schedule!r}, {rule!r}, '--+-*-')"):
        away, never, steps = result.value
        assert away < 1e-12 and never == 0
        assert steps == ([0.0, 0.0] if "sgd" in rule else [2.0, 6.0]), "steps with a gradient for extra, and for body"


CELLS = [
    ("none", "sgd with decay"),
    ("stash", "adamw"),
    ("msnag", "sgd"),
    ("msnag", "sgd with decay"),
    ("msnag+stash", "sgd with decay"),
    ("aggmsnag", "sgd with decay"),
    ("aggmsnag", "adam"),
    ("aggmsnag", "nadam in two groups"),
    ("lwp", "sgd with decay"),
    ("spectrain", "sgd with decay"),
    ("spike", "momentum with decay"),
    ("gap_aware", "sgd with decay"),
    ("gap_aware", "plain sgd with decay"),
    ("gap_aware", "adamw"),
    ("pipemare", "sgd with decay"),
    ("aggmsnag", "adam with decay"),
    ("adam", "adam"),
    ("adam", "adam with decay"),
    ("nadam", "nadam with decay"),
    ("adamw", "adamw"),
    ("nadam", "nadam"),
    ("nadam", "nadam in two groups"),
]


@pytest.mark.parametrize(("staleness", "rule"), CELLS)
def test_an_asynchronous_one_is_computed_again_bit_for_bit(
    two: ddip.Group, staleness: str, rule: str, tmp_path: Path
) -> None:
    for result in two.run(f"u.replayed({str(tmp_path / 'ledger')!r}, {staleness!r}, {rule!r})"):
        assert result.value == "identical"


@pytest.mark.parametrize(
    ("staleness", "rule"),
    [("adam", "adam with decay"), ("nadam", "nadam with decay"), ("adamw", "adamw"), ("aggmsnag", "adam")],
)
def test_of_a_weight_that_has_not_stepped_nothing_is_predicted(two: ddip.Group, staleness: str, rule: str) -> None:
    """Its second moment would be zero, and a prediction divides by its root."""
    for result in two.run(f"u.seen_before_the_first_step({staleness!r}, {rule!r})"):
        before, later = result.value
        assert before == 0 and 0 < later < 1


@pytest.mark.parametrize(("staleness", "rule"), [("msnag", "sgd with decay"), ("adamw", "adamw"), ("spike", "sgd")])
def test_an_older_file_may_be_loaded_into_a_pipeline_that_went_on(
    two: ddip.Group, staleness: str, rule: str, tmp_path: Path
) -> None:
    for result in two.run(f"u.loaded_in_place({str(tmp_path / 'file')!r}, {staleness!r}, {rule!r})"):
        again, went = result.value
        assert again == 0 and went > 1e-3


@pytest.mark.parametrize("pattern", ["-+--*-", "--+---"])
def test_what_any_replica_has_a_gradient_for_all_of_them_step(two: ddip.Group, pattern: str) -> None:
    for result in two.run(f"u.in_replicas({pattern!r})"):
        assert result.value[0] < 1e-12


def test_a_gradient_of_one_replica_is_enough(two: ddip.Group) -> None:
    two.run("whole = u.data; u.data = lambda *a, **k: u.one_sided(whole(*a, **k))")
    try:
        for result in two.run("u.in_replicas('-+--+-')"):
            away, one_sided = result.value
            assert one_sided and away < 1e-12
    finally:
        two.run("u.data = whole")


@pytest.mark.parametrize("rule", ["sgd with decay", "adamw", "nadam"])
def test_a_weight_may_be_used_first_after_a_file_was_loaded(two: ddip.Group, rule: str, tmp_path: Path) -> None:
    for result in two.run(f"u.resumed({str(tmp_path / 'file')!r}, {rule!r})"):
        assert result.value == 0


@pytest.mark.parametrize(
    ("staleness", "rule"),
    [("adamw", "adamw"), ("aggmsnag", "adam"), ("msnag", "sgd with decay"), ("spike", "sgd"), ("gap_aware", "sgd"),
     ("nadam", "nadam"), ("pipemare", "sgd with decay")],
)  # fmt: skip
def test_a_stage_that_no_gradient_reaches_stays_as_it_is(two: ddip.Group, staleness: str, rule: str) -> None:
    found = [result.value for result in two.run(f"u.never_reached({staleness!r}, {rule!r})")]
    assert all(same for same, _ in found)
    assert any("stage 0 has not been trained" in note for _, notes in found for note in notes)
