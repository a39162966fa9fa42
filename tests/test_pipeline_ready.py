"""order="ready": stages do what has come first. Whatever order it becomes, it is a right plan and is replayed bit for bit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pipeline_groups import pipeline_group
from support.waiting import wait_until

import ddip

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def three() -> Iterator[ddip.Group]:
    with pipeline_group("pipeline-ready", "pipeline_ready as r", "pipeline_failures", workers=3) as group:
        yield group


@pytest.fixture(scope="module")
def two() -> Iterator[ddip.Group]:
    with pipeline_group("pipeline-ready-two", "pipeline_ready as r") as group:
        yield group


CELLS = [
    ("async_1f1b", "none", "sgd", {"recompute": True}),
    ("async_1f1b", "stash", "sgd", {}),
    ("async_1f1b", "msnag", "sgd", {"window": [6, 3, 0]}),
    ("async_1f1b", "msnag+stash", "sgd", {"accumulate": 2, "window": [5, 4, 1]}),
    ("async_1f1b", "aggmsnag", "sgd with decay", {"accumulate": 3, "window": [7, 4, 0]}),
    ("async_1f1b", "spectrain", "sgd", {}),
    ("async_1f1b", "adam", "adam", {"window": [6, 3, 0]}),
    ("async_1f1b", "nadam+stash", "nadam", {}),
    ("async_1f1b", "gap_aware", "sgd", {"window": [4, 2, 0]}),
    ("async_1f1b", "msnag", "sgd", {"clip": 0.05, "recompute": True}),
    ("async_1f1b", "msnag", "sgd", {"warmup": 1, "flush_every": 2, "switch_at": 5}),
    ("virtual_async", "msnag", "sgd", {"max_staleness": 1}),
    ("paci", "none", "sgd", {"accumulate": 4, "window": [4, 2, 0]}),
]


@pytest.mark.parametrize(("schedule", "staleness", "rule", "options"), CELLS)
def test_what_ran_is_computed_again_bit_for_bit(
    three: ddip.Group, tmp_path: Path, schedule: str, staleness: str, rule: str, options: dict[str, object]
) -> None:
    path = str(tmp_path / "ledger")
    settings = {"stages": 3, "runs": 2, "order": "ready", **options}
    call = f"p.replayed({path!r}, {schedule!r}, {staleness!r}, {rule!r}, **{settings!r})"
    assert [result.value for result in three.run(call)] == ["identical"] * 3
    assert '"order": "ready"' in Path(path).read_text().partition("\n")[0]
    if staleness != "spectrain":  # it predicts by distance
        said = three.run(f"r.steps_between({path!r})")[0].value
        assert len(said) == 3 * 48 and all(n == came for n, came in said), "n is known when the forward begins"


def test_over_gloo_where_threads_wait_for_messages(two: ddip.Group, tmp_path: Path) -> None:
    path = str(tmp_path / "ledger")
    call = f"p.replayed({path!r}, 'async_1f1b', 'msnag', window=[3, 0], order='ready', ranks=ddip.comm('gloo'))"
    assert [result.value for result in two.run(call)] == ["identical"] * 2


@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_messages_that_grow(three: ddip.Group, backend: str) -> None:
    for result in three.run(f"r.growing(ddip.comm({backend!r}))"):
        assert result.value == ("", 24)


def test_skips_to_the_last_stage_empty_micro_batches_and_an_evaluation(three: ddip.Group, tmp_path: Path) -> None:
    path = str(tmp_path / "ledger")
    three.run("import pipeline_borders")
    for staleness in ("msnag", "stash"):
        call = f"pipeline_borders.skips_replayed({path!r}, 'async_1f1b', {staleness!r}, [2, 3, -1], [0, 1, 2], order='ready', window=[5, 2, 0])"
        assert [result.value for result in three.run(call)] == ["identical"] * 3
    # 7 samples in 12 parts
    call = f"p.replayed({path!r}, 'async_1f1b', 'msnag', stages=3, micro_batches=12, order='ready', window=[9, 4, 0], gaps=True)"
    assert [result.value for result in three.run(call)] == ["identical"] * 3


def test_what_was_done_is_a_right_plan_and_can_be_drawn(three: ddip.Group) -> None:
    three.run("pipe = p.pipe_of(p.mlp(3), 'async_1f1b', window=[5, 2, 0], order='ready', staleness='msnag+stash')")
    three.run("pipe.run(p.data(20, 12)); done = pipe.done_plan()")
    for result in three.run("(done.check().error, done.order)"):
        assert result.value == ("", "ready")
    assert three.run("len([one for one in done.ranks[1] if one.kind == 'backward'])")[0].value == 80
    assert "</svg>" in three.run("done.svg()")[0].value
    # What was not done is missed.
    for kind in ("step", "send", "backward"):
        assert "rank 1" in three.run(f"r.check_without(pipe, 1, {kind!r})")[0].value


def test_a_stage_whose_input_is_late_does_what_is_there(three: ddip.Group, tmp_path: Path) -> None:
    # By the plan the second stage does F4 before B3. The first one gives it F4 only when it has done B3.
    held = "r.held_back({path!r}, 3, 1, lambda k: 4 if k == 4 else 0, patience={patience}, order={order!r}, staleness='msnag')"
    three.run("pipe = " + held.format(path=str(tmp_path / "plan"), patience=2, order="plan"))
    assert "F4 B3" in three.run("r.order_of(pipe.plan, 1)")[0].value
    with pytest.raises(ddip.RankError, match="forward 4 was to wait for 4 steps"):
        three.run("pipe.run(p.data(3, 12))")
    three.run("pipe = " + held.format(path=str(tmp_path / "ready"), patience=60, order="ready"))
    assert len(three.run("pipe.run(p.data(3, 12)).losses")[0].value) == 3
    three.run("done = pipe.done_plan()")
    assert three.run("done.check().ok")[0].value
    order = three.run("r.order_of(done, 1)")[0].value.split()
    assert order.index("B3") < order.index("F4")


def test_a_window_wider_than_the_first_batches(two: ddip.Group) -> None:
    # One micro-batch a batch: the plan that a pipeline is made with must not be shorter than the window.
    for order in ("plan", "ready"):
        two.run(
            f"pipe = p.pipe_of(p.mlp(2), window=[40, 0], micro_batches=1, order={order!r}, ranks=ddip.comm('gloo'))"
        )
        assert len(two.run("pipe.run(p.data(60, 3)).losses")[0].value) == 60
        assert min(two.run("pipe._frames")[0].value) >= (41 if order == "ready" else 2)


def test_a_stage_that_raises_ends_all_of_them_and_they_run_again(three: ddip.Group) -> None:
    three.run(
        "pipe = p.pipe_of([*p.mlp(3)[:2], pipeline_failures.FailsAt(11)], 'async_1f1b', order='ready', window=[5, 2, 0])"
    )
    with pytest.raises(ddip.RankError) as error:
        three.run("pipe.run(p.data(5, 12))")
    assert "ValueError: no more today" in error.value.tracebacks[2]
    assert "stage 2 (FailsAt), forward of micro-batch 10 (rank 2)" in error.value.tracebacks[0]
    with pytest.raises(ddip.RankError, match="there is no run that came to its end"):
        three.run("pipe.done_plan()")
    losses = three.run("pipe.run(p.data(3, 12)).losses")
    assert len(losses[0].value) == 3 and losses[0].value == losses[2].value
    assert three.run("pipe.done_plan().check().error")[1].value == ""


def test_stop_and_a_killed_rank_are_noticed_while_it_waits(tmp_path: Path) -> None:
    with pipeline_group("pipeline-ready-kill", "pipeline_failures", workers=3) as group:
        # The others soon have nothing that is there, and wait for either message.
        group.run(f"import time\nslow = {str(tmp_path / 'sleeps')!r} if ddip.rank() == 2 else ''")
        group.run(
            "class Sleeps(torch.nn.Module):\n    def forward(self, x):\n        if slow:\n            open(slow, 'w').close(); time.sleep(600)\n        return x"
        )
        group.run("pipe = p.pipe_of([*p.mlp(3)[:2], torch.nn.Sequential(p.mlp(3)[2], Sleeps())], order='ready')")
        cell = group.run("pipe.run(p.data(5, 12))", wait=False)
        wait_until((tmp_path / "sleeps").exists, 60, "the last stage sleeps in its first forward")
        begun = time.monotonic()
        group.interrupt()
        cell.wait(30)
        assert time.monotonic() - begun < 5, "promised: a second"
        group.run("slow = ''")
        assert len(group.run("pipe.run(p.data(2, 12)).losses")[0].value) == 2
        group.run("pipe = p.pipe_of([*p.mlp(3)[:2], pipeline_failures.DiesAt(11)], order='ready', window=[5, 2, 0])")
        begun = time.monotonic()
        with pytest.raises(ddip.RankError) as killed:
            group.run("pipe.run(p.data(5, 12))")
        assert time.monotonic() - begun < 5, "promised: a second"
        assert list(killed.value.lost) == [2]
        assert "PeerLost" in killed.value.tracebacks[0] and "PeerLost" in killed.value.tracebacks[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("schedule='1f1b'", 'order="ready": 1f1b has one order; expected async_1f1b, virtual_async or paci'),
        ("replicas=2", "order='ready' is of one pipeline; expected replicas=1"),
        ("order='redy'", 'order="redy": expected plan or ready; did you mean ready?'),
        ("placement=[0, 1, 0]", 'order="ready": several stages are on one rank; expected a rank for each'),
        (
            "staleness='pipemare'",
            "order='ready': pipemare reckons with the plan's mean staleness; expected another policy, or order='plan'",
        ),
        (
            "clip=1.0, clipping='global'",
            "order='ready': stages do not wait for each other's norms; expected clipping='local'",
        ),
    ],
)
def test_what_cannot_be_in_this_order_is_refused_on_every_rank(two: ddip.Group, options: str, said: str) -> None:
    parts = 3 if "placement" in options else 2
    two.run(
        "def refused(make):\n    try:\n        make()\n    except Exception as error:\n        return type(error).__name__, str(error)"
    )
    call = f"refused(lambda: p.pipe_of(p.mlp({parts}), **{{'order': 'ready', **dict({options})}}))"
    assert [result.value for result in two.run(call)] == [("ConfigError", said)] * 2
