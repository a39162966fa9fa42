"""I12 and TRUST's faults on one host: a rank fails or dies; it is named first, the others come out, nothing else is lost."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from support import processes
from support.text import without_colours
from support.waiting import Stopwatch, wait_until

import ddip

INIT = "import os, time, torch, torch.distributed as dist\nif not dist.is_initialized(): dist.init_process_group('gloo')\nrank = dist.get_rank()"


def failed(group: Any, code: str, **options: Any) -> ddip.RankError:
    with pytest.raises(ddip.RankError) as error:
        group.run(code, **options)
    for rank, text in error.value.tracebacks.items():
        error.value.tracebacks[rank] = without_colours(text)
    error.value.args = (without_colours(str(error.value)),)
    return error.value


def test_an_error_names_its_rank_its_line_and_its_message(either: Any) -> None:
    error = failed(either, "import os\nif os.environ['RANK'] == '1':\n    x = 1\n    raise ValueError('this one')")
    assert error.ranks == [1] and list(error.tracebacks) == [1] and error.lost == {}
    assert (
        "ValueError" in error.tracebacks[1]
        and "this one" in error.tracebacks[1]
        and "raise ValueError" in error.tracebacks[1]
    )
    assert "ddip/worker" not in error.tracebacks[1], "our own frames are not shown"
    assert "rank 1" in str(error)
    assert [result.value for result in either.run("globals().get('x')")] == [None, 1], (
        "the next cell runs, what was done stays"
    )


def test_the_same_error_on_all_ranks_is_shown_once(plain: Any) -> None:
    error = failed(plain, "1 / 0")
    assert sorted(error.ranks) == [0, 1] and str(error).count("ZeroDivisionError: division by zero") == 1


@pytest.mark.parametrize("code", ["raise SystemExit(3)", "import sys; sys.exit()", "exit()", "quit()"])
def test_an_exit_in_a_cell_is_an_error_not_the_end_of_the_worker(either: Any, code: str) -> None:
    pids = either.pids
    error = failed(either, code)
    assert sorted(error.ranks) == [0, 1] and "SystemExit" in str(error)
    assert either.pids == pids and [result.value for result in either.run("1")] == [1, 1]


@pytest.mark.parametrize(
    "code", ["def f(:", "x = = 1", "  indented", "'unclosed", "return 1", "\x00", "while True", "f = lambda:"]
)
def test_a_syntax_error_fails_the_cell_and_nothing_else(either: Any, code: str) -> None:
    error = failed(either, code)
    assert sorted(error.ranks) == [0, 1] and "Error" in str(error)
    assert [result.value for result in either.run("1")] == [1, 1]


def test_errors_whose_repr_or_str_fails_are_still_told(either: Any) -> None:
    error = failed(
        either,
        "class Bad(Exception):\n    def __str__(self): raise RuntimeError('no')\n    __repr__ = __str__\nraise Bad()",
    )
    assert sorted(error.ranks) == [0, 1] and "Bad" in str(error)
    assert [result.value for result in either.run("1")] == [1, 1]


def test_a_recursion_error_leaves_the_worker_usable(either: Any) -> None:
    assert "RecursionError" in str(failed(either, "def f(): f()\nf()"))
    assert [result.value for result in either.run("1")] == [1, 1]


def test_a_peer_blocked_in_a_collective_ends_and_the_first_failure_is_first(torched: Any) -> None:
    torched.run(INIT + "\nprecious = torch.arange(3)")
    pids = torched.pids
    with Stopwatch() as watch:
        error = failed(torched, "if rank == 1: raise ValueError('the cause')\ndist.all_reduce(torch.ones(1))")
    print(f"peer out after {watch.seconds:.2f} s")
    assert watch.seconds < 10, "promised: 2 s"
    assert error.ranks[0] == 1 and "the cause" in error.tracebacks[1]
    assert str(error).index("the cause") < str(error).index("rank 0")
    assert torched.pids == pids
    assert [result.value for result in torched.run("precious.tolist()")] == [[0, 1, 2]] * 2, (
        "the next cell runs, variables are kept"
    )
    torched.rebuild()
    assert [
        result.value
        for result in torched.run("x = torch.ones(1); dist.all_reduce(x); (x.item(), precious.sum().item())")
    ] == [(2.0, 3)] * 2
    torched.rebuild()
    torched.rebuild()
    assert [result.value for result in torched.run("x = torch.ones(1); dist.all_reduce(x); x.item()")] == [2.0] * 2, (
        "again and again"
    )
    torched.run("dist.destroy_process_group()")


@pytest.mark.parametrize(
    "close", ["os.close(1); os.close(2)", "os.closerange(0, 3)", "f = open('/dev/null'); os.close(1)"]
)
def test_a_cell_that_closes_its_streams_does_not_harm_later_ones(start: Any, close: str) -> None:
    group = start(2)
    code = f"import os\n{close}\nfile = open('/dev/null')\n[b'x' * 200_000, list(range(5))]"
    assert [result.value[1] for result in group.run(code)] == [[0, 1, 2, 3, 4]] * 2, "its own value comes, too"
    for _ in range(3):  # the first may still repair what the second needs
        results = group.run("print('python'); os.system('echo program; echo error >&2'); [b'x' * 200_000, 7]")
        assert [(one.value[1], one.stdout, one.stderr) for one in results] == [(7, "python\nprogram\n", "error\n")] * 2
    group.run("del file")
    assert [one.stdout for one in group.run("os.system('echo after')")] == ["after\n"] * 2


def test_a_rank_that_ddip_ends_says_so_and_why(start: Any) -> None:
    group = start(2)
    error = failed(group, "import os\nif os.environ['RANK'] == '1': os.execlp('sleep', 'sleep', '600')")
    assert error.lost[1].startswith("ended by ddip (SIGKILL): it closed its connection to ddip and lived on"), (
        error.lost
    )
    assert "by someone" not in str(error)
    assert "ended by ddip" in group.info()["ranks"][1]["why"]


@pytest.mark.parametrize(
    "code", ["x = '" + "a" * (17 << 20) + "'", "x = '''" + "\x01" * (3 << 20) + "'''"], ids=["here", "as JSON"]
)
def test_a_cell_that_is_too_large_is_refused_in_one_line_and_changes_nothing(start: Any, code: str) -> None:
    group = start(2)
    watcher = ddip.attach(group.name)
    watcher.client.request("watch", {}, 10.0)  # is told of every cell's source
    with pytest.raises(ddip.ConfigError, match=r"MiB.* read its data from a file, or push\(\) it") as error:
        group.run(code)
    assert "\n" not in str(error.value)
    assert [result.value for result in group.run("globals().get('x')")] == [None, None]
    assert watcher.info()["ranks"][0]["status"] == "ready"


def test_rebuild_inside_a_cell_works_too(torched: Any) -> None:
    torched.run(INIT)
    failed(torched, "if rank == 0: raise ValueError\ndist.all_reduce(torch.ones(1))")
    assert [
        result.value
        for result in torched.run("import ddip; ddip.rebuild(); x = torch.ones(1); dist.all_reduce(x); x.item()")
    ] == [2.0] * 2
    torched.run("dist.destroy_process_group()")


def test_rebuild_serves_after_one_rank_was_replaced(start: Any) -> None:
    group = start(torch=True)
    group.run(INIT + "\nprecious = 5")
    group.restart(ranks=[1])
    group.rebuild()
    code = "import torch, torch.distributed as dist; x = torch.ones(1) * (dist.get_rank() + 1); dist.all_reduce(x); (x.item(), globals().get('precious'))"
    assert [result.value for result in group.run(code)] == [(3.0, 5), (3.0, None)]


def test_rebuild_serves_after_rank_0_the_stores_host_was_replaced(start: Any) -> None:
    group = start(torch=True)
    group.run(INIT + "\nprecious = 5")
    group.restart(ranks=[0])
    group.rebuild()
    code = "import torch, torch.distributed as dist; x = torch.ones(1) * (dist.get_rank() + 1); dist.all_reduce(x); (x.item(), globals().get('precious'))"
    assert [result.value for result in group.run(code)] == [(3.0, None), (3.0, 5)]


def test_a_process_group_can_be_made_after_a_full_restart(start: Any) -> None:
    group = start(torch=True)
    for _ in range(3):
        assert [result.value for result in group.run(INIT + "\nx = torch.ones(1); dist.all_reduce(x); x.item()")] == [
            2.0,
            2.0,
        ]
        group.restart()


@pytest.mark.parametrize("backend", ["gloo", "ddip"])
def test_a_peer_that_comes_to_its_collective_later_is_not_left_there(start: Any, backend: str) -> None:
    """When it is asked to stop, it waits where a signal has no effect."""
    group = start(torch=True, settle=2)
    group.run(f"import torch, torch.distributed as dist, time, os; dist.init_process_group({backend!r})")
    with Stopwatch() as watch:
        error = failed(
            group,
            "if os.environ['RANK'] == '0': raise ValueError('the cause')\ntime.sleep(1.5)\ndist.all_reduce(torch.ones(1))",
        )
    assert watch.seconds < 20 and error.ranks == [0, 1]
    assert str(error).index("the cause") < str(error).index("rank 1")


def test_a_peer_that_computes_gets_the_soft_interrupt_after_settle(plain: Any) -> None:
    """`plain` has settle=0.5; the peer is in a loop that only a Python interrupt ends."""
    with Stopwatch() as watch:
        error = failed(
            plain,
            "import os, time\nif os.environ['RANK'] == '0': raise ValueError('the cause')\nwhile True: time.sleep(0.01)",
        )
    assert watch.seconds < 5 and error.ranks == [0, 1]
    assert str(error).index("the cause") < str(error).index("rank 1")


def test_a_peer_that_finishes_within_settle_is_left_alone(start: Any) -> None:
    group = start(settle=30)
    code = "import os, time\nif os.environ['RANK'] == '0': raise ValueError('x')\ntime.sleep(1.5)\nwhole = 1"
    error = failed(group, code)
    assert error.ranks == [0], "rank 1 finished in peace"
    assert group.run("whole", ranks=[1])[0].value == 1


def test_settle_asks_softly_and_only_once(start: Any) -> None:
    """A peer that catches the soft interrupt to save its weights is not shot at again, neither by signal nor by abort."""
    group = start(settle=0.3)
    code = """
import os, time
if os.environ['RANK'] == '0': raise ValueError('x')
interrupts = 0
end = time.monotonic() + 3
while time.monotonic() < end:
    try: time.sleep(0.01)
    except KeyboardInterrupt: interrupts += 1
"""
    failed(group, code)
    assert group.run("interrupts", ranks=[1])[0].value == 1


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_dead_rank_is_told_at_once_with_its_signal_and_last_lines(start: Any, number: int) -> None:
    group = start()
    group.run("precious = 1; print('of an older cell')")
    cell = group.run(
        "import time\nfor n in range(60): print('line', n)\nprint('in', flush=True); time.sleep(600)",
        ranks=[1],
        wait=False,
    )
    wait_until(lambda: (1, "in") in cell._lines, 10, "rank 1 sleeps")
    with Stopwatch() as watch:
        os.kill(group.pids[1], number)
        assert cell.wait(5)
    print(f"death told after {watch.seconds * 1e3:.0f} ms")
    assert watch.seconds < 0.5, "promised: 0.1 s"
    with pytest.raises(ddip.RankError) as error:
        cell.results()
    text = error.value.lost[1]
    assert signal.Signals(number).name in text
    told = text.split("its last lines:\n")[1].split("\n  where it was:")[0].splitlines()
    assert [line.strip() for line in told] == ["line 56", "line 57", "line 58", "line 59", "in"], "the others: %diplog"
    assert group.run("precious", ranks=[0])[0].value == 1


def test_last_lines_are_those_of_the_cell_it_died_in(start: Any) -> None:
    group = start()
    group.run("print('of an older cell')")
    with pytest.raises(ddip.RankError) as error:
        group.run("import os; os._exit(3)", ranks=[1])
    assert error.value.lost[1] == "exit code 3"


def test_an_exit_code_is_told(start: Any) -> None:
    group = start()
    error = failed(group, "import os; os._exit(41)", ranks=[1])
    assert error.ranks == [1] and "41" in error.lost[1]


def test_what_was_printed_before_a_sudden_end_is_among_the_last_lines(start: Any) -> None:
    group = start()
    error = failed(group, "import os\nfor n in range(20000): print('line', n)\nos._exit(41)", ranks=[1])
    assert "line 19999" in error.lost[1]


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "ctypes.string_at(0)"])
def test_lines_printed_right_before_a_kill_or_a_crash_were_said(start: Any, end: str) -> None:
    group = start()
    error = failed(group, f"import os, ctypes\nfor n in range(5): print('line', n)\n{end}", ranks=[1])
    assert "line 0" in error.lost[1] and "line 4" in error.lost[1]


def test_a_forked_child_of_a_cell_ends_without_a_word_of_its_own(start: Any) -> None:
    """It has the worker's os._exit, but not its control thread."""
    group = start()
    code = "import os\npid = os.fork()\nif pid == 0: os._exit(7)\nos.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])"
    assert [result.value for result in group.run(code)] == [7, 7]


def test_a_cell_on_a_lost_rank_is_refused_with_the_way_out_and_others_run(start: Any) -> None:
    group = start()
    group.run("x = 1")
    failed(group, "import os; os._exit(1)", ranks=[1])
    with pytest.raises(ddip.ConfigError, match=r"rank 1.*restart"):
        group.run("1")
    assert group.run("x", ranks=[0])[0].value == 1
    group.restart(ranks=[1])
    assert [result.value for result in group.run("globals().get('x')")] == [1, None]


def test_a_death_in_a_collective_ends_the_others_wait(start: Any) -> None:
    group = start(torch=True)
    group.run(INIT + "\nprecious = rank")
    cell = group.run("if rank == 1: os.kill(os.getpid(), 9)\ndist.all_reduce(torch.ones(1))", wait=False)
    with Stopwatch() as watch:
        assert cell.wait(10)
    with pytest.raises(ddip.RankError) as error:
        cell.results()
    assert watch.seconds < 10 and error.value.ranks[0] == 1 and list(error.value.lost) == [1]
    assert "SIGKILL" in error.value.lost[1]
    group.restart(ranks=[1])
    group.rebuild()
    assert [
        result.value
        for result in group.run(
            "import torch, torch.distributed as dist; x = torch.ones(1); dist.all_reduce(x); x.item()"
        )
    ] == [2.0] * 2
    assert group.run("precious", ranks=[0])[0].value == 0


def test_every_request_on_a_dying_rank_ends_exactly_once(start: Any) -> None:
    group = start()
    first = group.run("import time; print('in', flush=True); time.sleep(600)", ranks=[1], wait=False)
    queued = [group.run("1", ranks=[1], wait=False) for _ in range(20)] + [group.run("1", wait=False)]
    wait_until(lambda: first._lines, 10, "rank 1 sleeps")
    os.kill(group.pids[1], signal.SIGKILL)
    for cell in [first, *queued]:
        assert cell.wait(5) and cell.status == "lost" and len(cell.order) == len(cell.ranks)
    assert queued[-1].endings[0]["outcome"] == "ok"


def test_a_stopped_rank_is_named_by_why_and_goes_on_after_cont(start: Any) -> None:
    group = start()
    pid = group.pids[1]
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: processes.state(pid) == "T", 5, "it is stopped")
    with Stopwatch() as watch:
        ranks = group.why()["ranks"]
    assert watch.seconds < 2.5 and "stopped" in ranks[1]["silent"] and "silent" not in ranks[0]
    assert group.run("1", ranks=[0])[0].value == 1
    os.kill(pid, signal.SIGCONT)
    assert [result.value for result in group.run("1")] == [1, 1]


def test_out_of_descriptors_in_a_cell_is_the_cells_error_not_the_groups_end(start: Any) -> None:
    group = start()
    code = "import os, resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\nheld = []\nwhile True: held.append(os.open('/dev/null', os.O_RDONLY))"
    error = failed(group, code, ranks=[1])
    assert "Too many open files" in str(error)
    group.run("for fd in held: os.close(fd)", ranks=[1])
    assert [result.value for result in group.run("1")] == [1, 1]


def test_a_cell_that_closes_stdout_harms_only_itself(start: Any) -> None:
    group = start()
    group.run("import os; os.close(1); os.close(2)", ranks=[1])
    assert [result.stdout for result in group.run("print('back')")] == ["back\n"] * 2
    assert [result.stdout for result in group.run("import os; os.write(1, b'raw\\n'); None")] == ["raw\n"] * 2
