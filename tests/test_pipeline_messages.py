"""Messages between stages in unusual circumstances: kinds of numbers, sizes that grow, stops that come twice, long silence."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.pipeline_groups import pipeline_group

import ddip


@pytest.fixture(scope="module")
def two() -> Iterator[ddip.Group]:
    with pipeline_group("pipeline-messages", "pipeline_messages as m") as group:
        yield group


@pytest.mark.parametrize(("output", "gradient"), [(True, False), (False, True), (True, True)])
def test_numbers_that_are_conjugated_when_they_are_read_arrive_so(
    two: ddip.Group, output: bool, gradient: bool
) -> None:
    for result in two.run(f"m.conjugates({output}, {gradient})"):
        assert result.value < 1e-6


@pytest.mark.parametrize(
    ("staleness", "optimizer", "refused"),
    [
        ("adam", "lambda ps: torch.optim.Adam(ps, 0.01)", True),
        ("gap_aware", "m.sgd", True),
        ("stash", "lambda ps: torch.optim.Adam(ps, 0.01)", False),
        ("auto", "lambda ps: torch.optim.Adam(ps, 0.01)", False),
        ("msnag", "lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9)", False),
    ],
)
def test_policies_that_would_square_complex_weights_are_refused(
    two: ddip.Group, staleness: str, optimizer: str, refused: bool
) -> None:
    for result in two.run(f"m.complex_weights({staleness!r}, {optimizer})"):
        assert (f"{staleness} takes roots and squares" in result.value) == refused
        assert refused or result.value == "nothing"


@pytest.mark.parametrize("backend", ["gloo", "shm"])
def test_as_many_larger_messages_go_as_the_plan_was_checked_for(two: ddip.Group, backend: str) -> None:
    assert [result.value for result in two.run(f"m.growing({backend!r})")] == [2, 2]


@pytest.mark.parametrize("stops", [1, 100])
def test_stops_that_come_while_a_run_ends_leave_the_ranks_usable(two: ddip.Group, stops: int) -> None:
    stopped, other = (result.value for result in two.run(f"m.stopped_many_times({stops})"))
    assert stopped[0].startswith("KeyboardInterrupt") and "KeyboardInterrupt" in other[0]
    assert stopped[1:] == other[1:] == ["nothing"] * 2


def test_a_run_that_cannot_begin_after_a_long_silence_leaves_the_ranks_usable(two: ddip.Group) -> None:
    first, last = (result.value for result in two.run("m.failed_after_silence()"))
    assert first[0] == last[0] == "nothing"
    assert "frozen" in first[1] and "frozen" in last[1]
    assert first[2:] == last[2:] == ["nothing"] * 2
