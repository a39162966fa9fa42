"""TRUST's faults in training: a rank is killed inside an all-reduce, runs out of memory, or has a gradient that is NaN."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.waiting import Stopwatch, wait_until

import ddip

pytest.importorskip("torch")
if (Path(__file__).parent.parent / ".setup" / "without_engine").exists():
    pytest.skip(
        "make setup left the data plane out: it does not compile with this machine's torch", allow_module_level=True
    )

SUPPORT = Path(__file__).parent / "support"
INIT = f"import sys; sys.path.insert(0, {str(SUPPORT)!r}); import ddip, faults as f, survivors as s"
DETECT = 0.1  # promised, in seconds; a deadline is five times that
COMPRESSORS = ["none", "fp16", "bf16", "int8", "topk:0.1", "powersgd"]
KEEPERS = ["int8", "topk:0.1", "powersgd"]


@pytest.fixture
def three(start: Any) -> Any:
    group = start(3, torch=True)
    group.run(INIT)
    return group


@pytest.fixture(scope="module")
def two() -> Iterator[Any]:
    with ddip.Group(workers=2, name="training-faults") as group:
        group.run(INIT)
        yield group


def values(group: Any, code: str, ranks: Any = None) -> list[Any]:
    return [result.value for result in group.run(code, ranks=ranks)]


# --- 1: SIGKILL


def test_a_rank_killed_inside_an_all_reduce_is_told_in_time_and_no_half_step_stays(three: Any, tmp_path: Path) -> None:
    """Ranks 1 and 2 are in the all-reduce of the first bucket; rank 0 is held back in its backward. Rank 1 is killed."""
    held, killed = tmp_path / "held", tmp_path / "killed"
    three.run(
        f"t = f.Training(); [t.step() for _ in range(3)]; before = t.state()\nheld, killed = {str(held)!r}, {str(killed)!r}"
    )
    cell = three.run("said, told_at = t.interrupted_step(held, killed)", wait=False)

    def inside() -> bool:
        """By the word of the ranks' own communicators."""
        waits = [" ".join(rank.get("communicators", [])) for rank in three.why()["ranks"]]
        return held.exists() and all(
            waits[rank].startswith("all_reduce") and "rank 0 has not come" in waits[rank] for rank in (1, 2)
        )

    wait_until(inside, 10, "ranks 1 and 2 are in all_reduce")
    killed_at = time.monotonic()
    os.kill(three.pids[1], signal.SIGKILL)
    killed.touch()
    assert cell.wait(10)
    with pytest.raises(ddip.RankError) as failed:
        cell.results()
    assert list(failed.value.lost) == [1] and "SIGKILL" in failed.value.lost[1]
    found = values(three, "(said, told_at, t.done, f.same(before, t.state()), t.gradients(), f.digest(before))", [0, 2])
    for said, told_at, done, same, gradients, _ in found:
        assert said.startswith("rank 1 is lost during all_reduce"), said
        assert told_at - killed_at < 5 * DETECT, f"told after {told_at - killed_at:.3f} s"
        assert done == 3 and same, "parameters and momentum are those before the step"
        assert gradients == [None] * 6
    assert found[0][-1] == found[1][-1], "the survivors are equal, bit by bit"


def test_whenever_a_rank_is_killed_the_others_have_done_the_same_steps(three: Any) -> None:
    """Steps run freely; the moment is drawn. What the survivors have is what one process has after as many steps."""
    draw = random.Random(5)
    for _ in range(4):
        cell = three.run("t = f.Training(); said = t.steps_until_lost()", wait=False)
        wait_until(
            lambda cell=cell: len([line for line in cell._lines if line[1] == "trains"]) == 3, 20, "all ranks train"
        )
        # The moment itself is what is drawn; nothing waits for it.
        time.sleep(draw.random() * 0.02)
        os.kill(three.pids[1], signal.SIGKILL)
        assert cell.wait(10)
        with pytest.raises(ddip.RankError):
            cell.results()
        (first, second) = values(three, "(t.done, f.digest(t.state()), said, t.apart_from_one_process())", [0, 2])
        assert first[:2] == second[:2], (first, second)
        assert first[0] > 0 and max(first[3], second[3]) < 1e-12
        assert "rank 1 is lost" in first[2] and "rank 1 is lost" in second[2]
        three.restart(ranks=[1])
        three.run(INIT, ranks=[1])
        three.rebuild()


# --- resize


@pytest.mark.parametrize("lost", [1, 2])
@pytest.mark.parametrize("compress", KEEPERS)
def test_survivors_of_a_resize_keep_what_compression_has_left_over(three: Any, compress: str, lost: int) -> None:
    """What arrived and what is left over is what was asked for, through the loss of a rank in the middle of a step and a
    communicator of the two that are left. What was left over on the lost rank is lost with it, and nothing else."""
    import torch

    left = [rank for rank in range(3) if rank != lost]
    three.run(f"t = s.Session({compress!r}); [t.step() for _ in range(4)]")
    of_the_lost = three.run("(t.rests(), t.asked)")[lost].value
    before = values(three, "t.rests()", left)
    with pytest.raises(ddip.RankError) as failed:
        three.run(f"said = s.die_in_the_middle(t, {lost})")
    assert list(failed.value.lost) == [lost]
    for rests, (said, after) in zip(before, values(three, "(said, t.rests())", left), strict=True):
        assert f"rank {lost} is lost" in said
        assert all(torch.equal(a, b) for a, b in zip(rests, after, strict=True)), (
            "the step that was lost left something"
        )
    three.run(f"t.resize({left}.index(t.name), 2); t.step(); t.step(); t.step()", ranks=left)
    ended = values(three, "(t.arrived, t.asked, t.rests())", left)
    for index, arrived in enumerate(ended[0][0]):
        assert torch.equal(arrived, ended[1][0][index]), "the survivors got the same"
        asked = ended[0][1][index] + ended[1][1][index] + of_the_lost[1][index]
        rest = ended[0][2][index] + ended[1][2][index] + of_the_lost[0][index]
        assert (arrived + rest - asked).abs().max() < 1e-4
    assert max(rest.abs().max() for rest in before[0]) > 0.01, "there was something to keep"


# --- 23: NaN


@pytest.mark.parametrize("nonfinite", ["None", "'skip'", "'keep'"])
@pytest.mark.parametrize("compress", COMPRESSORS)
@pytest.mark.parametrize("bad", ["nan", "inf"])
def test_a_gradient_that_is_not_finite_on_one_rank_is_counted_and_the_replicas_stay_equal(
    two: Any, compress: str, nonfinite: str, bad: str
) -> None:
    found = values(two, f"f.with_a_bad_gradient({compress!r}, {nonfinite}, {bad!r})")
    drops = nonfinite == "'skip'" or (nonfinite == "None" and compress != "none")
    assert found[0] == found[1], "step by step, bit by bit"
    for one in found:
        assert one["nonfinite"] == [0, 0, 1, 0], one
        assert one["skipped"] == [0, 0, int(drops or compress != "none"), 0]
        assert one["gradients are there"] == (not drops)
        assert one["flagged"] == (not drops), "whoever looks at the gradients sees it, on every rank"
        assert one["moved by the bad step"] == (not drops)
        assert one["finite at the end"] == drops


@pytest.mark.parametrize("where", ["late", "sparse", "unused", "large"])
def test_only_what_travelled_is_looked_at_and_all_of_it(two: Any, where: str) -> None:
    """A gradient that travels alone counts; what lies unused in a bucket, or is large and finite, does not."""
    assert values(two, f"f.bad_place({where!r})") == [1 if where in ("late", "sparse") else 0] * 2


# --- 6: out of memory

HERE = "/sys/fs/cgroup/memory"


@pytest.fixture
def limited() -> Iterator[Path]:
    """A memory cgroup below our own; gone afterwards."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    ours = next((line.split(":", 2)[2] for line in lines if "memory" in line.split(":")[1].split(",")), None)
    if ours is None:
        pytest.skip("no memory cgroup of version 1 here (version 2: MemoryWatch's own tests)")
    folder = Path(HERE + ours) / f"ddip-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield folder
    wait_until(lambda: not (folder / "cgroup.procs").read_text(), 5, "nobody is in the cgroup")
    folder.rmdir()


IN_CGROUP = """
import json, os, sys, time
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
import ddip
with ddip.Group(workers=2) as group:
    group.run("precious = 5")
    begun = time.monotonic()
    try:
        group.run("held = []\\nwhile True: held.append(bytearray(b'x' * (1 << 22)))", ranks=[1])
        lost = {}
    except ddip.RankError as error:
        lost = error.lost
    seconds = time.monotonic() - begun
    alive = group.run("precious", ranks=[0])[0].value
    group.restart(ranks=[1])
    again = [result.value for result in group.run("globals().get('precious')")]
    # One that somebody kills is not said to be out of memory, although another was before.
    try:
        group.run("import os; os.kill(os.getpid(), 9)", ranks=[0])
    except ddip.RankError as error:
        killed = error.lost[0]
print(json.dumps({"lost": lost.get(1, ""), "seconds": seconds, "alive": alive, "again": again, "killed": killed}))
"""


def test_a_rank_that_the_kernel_kills_for_want_of_memory_is_told_with_the_limit_and_the_others_go_on(
    limited: Path,
) -> None:
    megabytes = 400
    (limited / "memory.limit_in_bytes").write_text(str(megabytes << 20))
    run = subprocess.run(
        [sys.executable, "-c", IN_CGROUP, str(limited)], capture_output=True, text=True, timeout=50, check=False
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    kills = (limited / "memory.oom_control").read_text().split("oom_kill ")[1].split()[0]
    assert kills == "1", "the kernel has killed exactly one"
    assert found["lost"].startswith(
        f"out of memory: the kernel killed it (SIGKILL); the limit of its cgroup is {megabytes} MiB; it had "
    ), found["lost"]
    print(f"told after {found['seconds']:.2f} s, with the time to fill the memory")
    assert found["seconds"] < 10, "promised: 2 s"
    assert found["alive"] == 5 and found["again"] == [5, None]
    assert found["killed"].startswith("killed by SIGKILL"), found["killed"]


def test_an_allocation_beyond_a_limit_is_an_error_that_says_so_and_the_others_go_on(three: Any) -> None:
    """In training: rank 1 cannot make its activations. It is the first failure; the others come out of their backward."""
    three.run("t = f.Training(); t.step(); before = t.state()")
    limit = 64 << 10  # MiB: far more than torch reserves
    three.run(f"f.limit_address_space({limit} << 20)", ranks=[1])
    with Stopwatch() as watch, pytest.raises(ddip.RankError) as failed:
        three.run(f"t.too_large_step(1, ({limit} << 20) // 8)")
    print(f"all ranks out after {watch.seconds:.2f} s")
    assert watch.seconds < 10, "promised: 2 s"
    assert failed.value.ranks[0] == 1 and failed.value.lost == {}
    assert (
        f"out of memory: this process may have {limit} MiB of address space (RLIMIT_AS)" in failed.value.tracebacks[1]
    )
    assert values(three, "f.same(before, t.state())") == [True] * 3, "no rank has taken the step"
    three.rebuild()
    assert max(values(three, "t.step(); t.apart_from_one_process()")) < 1e-12
