"""I1, I6: a group starts, runs, restarts and stops; each process that is said to be new is, each that is said to be gone is."""

from __future__ import annotations

import os
from typing import Any

import pytest
from support import processes
from support.scripts import Script
from support.waiting import Stopwatch, wait_until

import ddip


def test_a_started_group_has_one_live_process_per_rank_in_rank_order(either: Any) -> None:
    said = [result.value for result in either.run("import os; (int(os.environ['RANK']), os.getpid())")]
    assert [rank for rank, _ in said] == [0, 1]
    assert [pid for _, pid in said] == either.pids, "info() names the processes that really run the cells"
    assert len(set(either.pids)) == 2 and os.getpid() not in either.pids
    assert all(processes.alive(pid) for pid in either.pids)


def test_info_tells_shape_phase_and_status_of_every_rank(either: Any) -> None:
    info = either.info()
    assert info["name"] == either.name and info["world_size"] == either.world_size == 2
    assert [(rank["rank"], rank["status"], rank["device"]) for rank in info["ranks"]] == [
        (0, "ready", "cpu"),
        (1, "ready", "cpu"),
    ]
    assert info["phase"] == "running" and processes.alive(info["pid"])
    assert info["agent"]["start"] == ("exec" if either.name == "exec" else "fork"), (
        "the start method that was asked for"
    )


def test_one_process_beside_warm_parent_and_ranks(start: Any, home: Any) -> None:
    group = start()
    info = group.info()
    assert sorted(processes.of_runtime(str(home))) == sorted([info["pid"], info["agent"]["warm_parent"], *group.pids])


def test_the_coordinator_is_detached_from_its_client(plain: Any) -> None:
    pid = plain.info()["pid"]
    assert os.getsid(pid) != os.getsid(0) and os.getpgid(pid) != os.getpgid(0)
    assert processes.parent_of(pid) != os.getpid()


def test_results_carry_rank_value_output_and_seconds(either: Any) -> None:
    results = either.run("import sys; print('out'); print('err', file=sys.stderr); 6 * 7")
    for rank, result in enumerate(results):
        assert (result.rank, result.value, result.stderr) == (rank, 42, "err\n")
        assert result.stdout.startswith("out\n")
        assert 0 < result.seconds < 5


def test_variables_stay_from_cell_to_cell_in_main(either: Any) -> None:
    either.run("x = {'rank': __import__('os').environ['RANK']}")
    assert [result.value for result in either.run("x['rank']")] == ["0", "1"]
    assert [result.value for result in either.run("__name__, __import__('sys').modules['__main__'].x is x")] == [
        ("__main__", True)
    ] * 2


def test_the_torchrun_variables_are_there(either: Any) -> None:
    import json

    values = [
        json.loads(result.value)
        for result in either.run(
            "import os, json; json.dumps({k: os.environ.get(k) for k in ('RANK','LOCAL_RANK','WORLD_SIZE','MASTER_ADDR','MASTER_PORT')})"
        )
    ]
    assert [value["RANK"] for value in values] == [value["LOCAL_RANK"] for value in values] == ["0", "1"]
    assert {value["WORLD_SIZE"] for value in values} == {"2"} and {value["MASTER_ADDR"] for value in values} == {
        "127.0.0.1"
    }
    assert {value["MASTER_PORT"] for value in values} == {str(either.info()["port"])}


def test_a_cell_runs_only_on_the_ranks_it_is_given(either: Any) -> None:
    either.run("only_there = 1", ranks=[1])
    assert [result.value for result in either.run("'only_there' in globals()")] == [False, True]
    assert [result.rank for result in either.run("1", ranks=[1])] == [1]
    assert [result.rank for result in either.run("1", ranks="0-1")] == [0, 1]
    assert [result.rank for result in either.run("1", ranks=0)] == [0]


@pytest.mark.parametrize("ranks", [[2], [-1], [0, 0], "x", "1-", []])
def test_wrong_ranks_are_refused_in_one_line(plain: Any, ranks: Any) -> None:
    with pytest.raises(ddip.ConfigError) as error:
        plain.run("ran = 1", ranks=ranks)
    assert "\n" not in str(error.value)
    assert [result.value for result in plain.run("'ran' in globals()")] == [False, False]


@pytest.mark.parametrize("method", ["fork", "exec"])
def test_restart_gives_new_processes_without_the_old_variables(start: Any, method: str) -> None:
    group = start(start=method)
    group.run("x = 1")
    before = group.pids
    group.restart()
    assert not set(before) & set(group.pids)
    processes.assert_gone(before, 0.5, "after restart() returned")
    assert [result.value for result in group.run("'x' in globals(), int(__import__('os').environ['RANK'])")] == [
        (False, 0),
        (False, 1),
    ]


@pytest.mark.parametrize("method", ["fork", "exec"])
def test_restart_of_one_rank_keeps_the_other_and_its_variables(start: Any, method: str) -> None:
    group = start(3, start=method)
    group.run("import os; x = int(os.environ['RANK'])")
    before = group.pids
    group.restart(ranks=[1])
    after = group.pids
    assert (after[0], after[2]) == (before[0], before[2]) and after[1] != before[1]
    assert [result.value for result in group.run("globals().get('x')")] == [0, None, 2]
    assert [result.value for result in group.run("__import__('os').environ['RANK']")] == ["0", "1", "2"]


def test_restart_ends_running_cells_as_lost_on_that_rank_only(start: Any) -> None:
    group = start()
    cell = group.run(
        "import time, os\nif os.environ['RANK'] == '1':\n    print('in', flush=True); time.sleep(600)", wait=False
    )
    wait_until(lambda: (1, "in") in cell._lines, 10, "rank 1 sleeps")
    group.restart(ranks=[1])
    with pytest.raises(ddip.RankError) as error:
        cell.results()
    assert list(error.value.lost) == [1] and error.value.ranks == [1]
    assert [result.value for result in group.run("1")] == [1, 1]


def test_attach_to_a_group_that_is_not_there_says_so(home: Any) -> None:
    assert ddip.groups() == []
    with pytest.raises(ddip.ConfigError, match="no group is running"):
        ddip.attach("nobody")


def test_attach_to_a_wrong_name_lists_those_that_run(start: Any) -> None:
    start(name="right")
    assert ddip.groups() == ["right"]
    with pytest.raises(ddip.ConfigError, match="right"):
        ddip.attach("rihgt")


def test_attach_gives_the_same_processes_and_variables(start: Any) -> None:
    group = start(name="one")
    group.run("x = 5")
    other = ddip.attach("one")
    assert other.pids == group.pids and other.pull("x") == 5 and other["x"] == 5
    with other:
        pass
    assert group.run("x")[0].value == 5, "leaving an attached group does not stop it"


def test_a_second_group_of_a_taken_name_is_refused_and_harms_nothing(start: Any, home: Any) -> None:
    group = start(name="taken")
    group.run("x = 1")
    count = len(processes.of_runtime(str(home)))
    with pytest.raises(ddip.ConfigError, match="taken.*running"):
        ddip.Group(2, name="taken")
    assert [result.value for result in group.run("x")] == [1, 1]
    assert len(processes.of_runtime(str(home))) == count


def test_stop_returns_when_everything_is_gone(start: Any, home: Any) -> None:
    group = start(name="brief")
    pids = processes.of_runtime(str(home))
    assert len(pids) == 4
    group.stop()
    processes.assert_gone(pids, 0.5, "after stop() returned")
    assert ddip.groups() == [] and list(home.iterdir()) == []
    group.stop()
    with pytest.raises(ddip.PeerLost):
        group.run("1")


def test_stop_of_a_group_that_somebody_else_stopped_returns(start: Any) -> None:
    for asked_before in (False, True):
        group = start(1)
        if asked_before:
            group.info()
        ddip.attach(group.name).stop()
        with Stopwatch() as watch:
            group.stop()
        assert watch.seconds < 5
        with pytest.raises(ddip.PeerLost):
            group.info()


def test_stop_leaves_the_next_group_of_that_name_alone(start: Any) -> None:
    former = start(1, name="again")
    former.info()
    ddip.attach("again").stop()
    group = start(1, name="again")
    former.stop()
    with pytest.raises(ddip.PeerLost, match="another one has its name"):
        former.info()
    assert group.run("1 + 1")[0].value == 2


def test_a_group_that_does_not_stop_is_an_error_but_not_before_the_users_own(
    start: Any, monkeypatch: Any, capsys: Any
) -> None:
    group = start(1)
    with monkeypatch.context() as deaf:
        deaf.setattr("ddip.group.STOPPED", 0.1)
        deaf.setattr(group.control, "send", lambda *what: None)
        with pytest.raises(ddip.TimedOut, match="still runs"):
            group.stop()
        with pytest.raises(ZeroDivisionError), group:
            1 / 0  # noqa: B018
    assert "still runs" in capsys.readouterr().err


def test_a_broken_control_connection_is_made_anew(start: Any) -> None:
    group = start(1)
    pids = group.pids
    with pytest.raises(ddip.PeerLost):
        group.control._native.request("interrupt", {"cell": 0, "kill": "no"}, 5.0)  # a frame that nobody could mean
    assert group.pids == pids and group.why()["ranks"]
    with pytest.raises(ddip.PeerLost):
        group.control._native.request("interrupt", {"cell": 0, "kill": "no"}, 5.0)
    group.stop()
    processes.assert_gone(pids, 2.0)


@pytest.mark.parametrize("wrong", [{"kill": "no"}, {"kill": 1}, {"cell": "1"}, {"cell": None}])
def test_an_interrupt_of_something_else_is_refused(plain: Any, wrong: dict[str, Any]) -> None:
    with pytest.raises(ddip.ConfigError, match="expected a cell's number, and True or False"):
        plain.interrupt(**wrong)
    assert plain.run("1", ranks=[0])[0].value == 1


IN_A_CHILD = """
import ddip, os
with ddip.Group(1, name="forked") as group:
    cell = group.run("import time; time.sleep(600)", wait=False)
    child = os.fork()
    if child == 0:
        for use in (lambda: group.run("1"), group.info, group.stop, lambda: group.push({"x": 1}), cell.wait, cell.cancel, lambda: list(cell.lines())):
            try:
                use()
            except ddip.ConfigError as error:
                print(error, flush=True)
        group.__exit__(None, None, None)
        with ddip.attach("forked") as here:
            here.interrupt()
        os._exit(0)
    print("child ended", os.waitpid(child, 0)[1], flush=True)
    print(group.run("1 + 1")[0].value)
"""


def test_a_forked_child_is_told_to_attach_by_itself(home: Any) -> None:
    with Script(IN_A_CHILD) as script:
        for _ in range(7):
            line = script.hear()
            assert "this is a child of it; ddip.attach('forked') connects this one" in line, line
        assert script.hear() == "child ended 0"
        assert script.hear() == "2"
        assert script.wait() == 0


def test_stop_ends_a_cell_that_ignores_everything(start: Any, home: Any) -> None:
    group = start()
    group.run(
        "import signal; [signal.signal(s, signal.SIG_IGN) for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]; None"
    )
    cell = group.run("import ctypes; print('in', flush=True); ctypes.PyDLL(None).sleep(600)", wait=False)
    wait_until(lambda: {(0, "in"), (1, "in")} <= set(cell._lines), 10, "both ranks hold the GIL")
    with Stopwatch() as watch:
        group.stop()
    assert watch.seconds < 2
    processes.assert_gone(processes.of_runtime(str(home)), 0.5, "after stop() returned")
    wait_until(cell.done, 2, "the cell's end is told to its waiter")
    assert cell.status == "lost"


def test_atexit_functions_run_at_an_orderly_stop(start: Any, tmp_path: Any) -> None:
    group = start()
    group.run(
        f"import atexit, os, pathlib; atexit.register(lambda: pathlib.Path({str(tmp_path)!r}, os.environ['RANK']).write_text('bye'))"
    )
    group.stop()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"]


def test_the_context_manager_stops_the_group_also_after_an_error(home: Any) -> None:
    with pytest.raises(ddip.RankError), ddip.Group(2) as group:
        pids = [*group.pids, group.info()["pid"]]
        group.run("1 / 0")
    processes.assert_gone(pids, 0.5, "after the with block")


@pytest.mark.kills
def test_a_script_that_ends_without_stop_takes_its_group_along(home: Any) -> None:
    with Script("import ddip\ngroup = ddip.Group(2)\nprint(*group.pids)\n") as script:
        pids = [int(word) for word in script.hear().split()]
        script.wait()
        processes.assert_gone(pids, 5.0, "after the script's end")
        wait_until(lambda: not processes.of_runtime(str(home)), 5, "coordinator and warm parent are gone too")


def test_workers_run_in_the_clients_folder_with_its_module_path(start: Any, tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "beside_me.py").write_text("answer = 42\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    group = start()
    assert [result.value for result in group.run("import os, beside_me; (os.getcwd(), beside_me.answer)")] == [
        (str(tmp_path), 42)
    ] * 2


def test_env_reaches_the_workers_and_nobody_else(start: Any) -> None:
    group = start(env={"MY_WORD": "a b=c"})
    assert [result.value for result in group.run("import os; os.environ['MY_WORD']")] == ["a b=c"] * 2
    assert "MY_WORD" not in os.environ


def test_three_cells_sent_at_once_run_in_order(plain: Any) -> None:
    cells = [plain.run(f"globals().setdefault('seen', []).append({number})", wait=False) for number in range(3)]
    for cell in cells:
        cell.results()
    assert [result.value for result in plain.run("seen")] == [[0, 1, 2]] * 2


def test_errors_are_the_same_classes_after_the_worker_half_was_imported(home: Any) -> None:
    """It comes with any value that refers to a worker's own function, such as its SIGINT handler."""
    source = "import ddip\nddip.ConfigError\nimport ddip._worker\ntry:\n    ddip.Group(0)\nexcept ddip.ConfigError:\n    print('caught')\nexcept Exception as error:\n    print(type(error))"
    with Script(source) as script:
        assert script.hear() == "caught"
