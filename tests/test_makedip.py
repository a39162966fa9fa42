"""%makedip: groups are started, shown, joined, restarted and stopped from a notebook."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pytest
from ddip.group import default_name
from ddip.magics.group_info import joined
from lab.shell import TerminalShell
from support import processes
from support.waiting import wait_until

import ddip

pytest.importorskip("IPython", reason="the magics need IPython")


def test_info_and_kill_without_a_group_say_so(shell: TerminalShell) -> None:
    assert "no group here" in shell.do("%makedip -i").out
    assert "nothing to stop" in shell.do("%makedip -k").out


def test_a_group_starts_shows_itself_and_stops(shell: TerminalShell, home: Any) -> None:
    said = shell.do("%makedip -n 2")
    assert default_name() in said.out and "2 CPU workers" in said.out and "without use" in said.out
    info = shell.do("%makedip -i").out
    pids = ddip.attach(default_name()).pids
    assert all(f"rank {rank}: pid {pid}, cpu, ready" in info for rank, pid in enumerate(pids)), info
    assert "stopped" in shell.do("%makedip -k").out
    processes.assert_gone(pids, 2.0)
    assert ddip.groups() == [] and "no group here" in shell.do("%makedip --info").out


def test_no_flags_make_two_workers_where_there_is_no_gpu(shell: TerminalShell) -> None:
    assert "2 CPU workers" in shell.do("%makedip").out
    assert len(ddip.attach(default_name()).pids) == 2


def test_verbose_tells_port_seed_and_journal(shell: TerminalShell) -> None:
    text = shell.do("%makedip -n 1 -v --seed 77 --name loud").out
    assert "seed 77" in text and "127.0.0.1:" in text and "journal" in text and "loud" in text


def test_the_same_shape_attaches_and_says_so(shell: TerminalShell) -> None:
    shell.do("%makedip -n 2")
    shell.do("%%dip\nx = 1")
    pids = ddip.attach(default_name()).pids
    assert "attached" in shell.do("%makedip -n 2").out
    assert "attached" in shell.do("%makedip").out
    assert ddip.attach(default_name()).pids == pids and shell.do("%%dip\nprint(x)").out == "1\n"


def test_another_shape_replaces_a_group_in_which_no_cell_has_run(shell: TerminalShell) -> None:
    shell.do("%makedip -n 2")
    before = ddip.attach(default_name()).pids
    assert "3 CPU workers" in shell.do("%makedip -n 3").out
    assert len(ddip.attach(default_name()).pids) == 3
    processes.assert_gone(before, 2.0)


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")  # of the async cell's thread
def test_another_shape_is_refused_once_a_cell_has_run_and_r_replaces(shell: TerminalShell) -> None:
    shell.do("%makedip -n 2")
    shell.do("%%dip --async job\nimport time\nprint('begun'); time.sleep(600)")
    before = ddip.attach(default_name()).pids
    text = shell.run("%makedip -n 3").usage_error()
    assert default_name() in text and "cell 1" in text and f"--attach {default_name()}" in text and "-r -n 3" in text, (
        text
    )
    assert ddip.attach(default_name()).pids == before, "a refusal changes nothing"
    assert "3 CPU workers" in shell.do("%makedip -r -n 3").out
    processes.assert_gone(before, 2.0)


def test_restart_gives_new_empty_workers(shell: TerminalShell) -> None:
    shell.do("%makedip -n 2")
    shell.do("%%dip\nx = 1")
    before = ddip.attach(default_name()).pids
    assert "restarted" in shell.do("%makedip -r").out
    assert not set(before) & set(ddip.attach(default_name()).pids)
    assert shell.do("%%dip\nprint('x' in globals())").out == "False\n"


def test_restart_without_a_group_starts_one(shell: TerminalShell) -> None:
    assert "2 CPU workers" in shell.do("%makedip -r -n 2").out


def test_a_named_group_can_be_described_attached_and_killed_by_name(shell: TerminalShell) -> None:
    shell.do("%makedip -n 1 --name other")
    shell.do("%%dip\nx = 'there'")
    shell.magics.here.group = None
    assert "group other" in shell.do("%makedip -i --name other").out
    assert "other" in shell.do("%makedip -i").out, "info without a group of this notebook lists those that run"
    assert "attached to group other" in shell.do("%makedip --attach other").out
    assert shell.do("%%dip\nprint(x)").out == "there\n"
    shell.do("%makedip -k --name other")
    assert ddip.groups() == []


def test_attach_without_a_name_joins_this_notebooks_group(shell: TerminalShell) -> None:
    shell.do("%makedip -n 2")
    shell.do("%%dip\nx = 7")
    shell.magics.here.group = None
    assert "attached" in shell.do("%makedip --attach").out
    assert shell.do("%%dip\nprint(x)").out == "7\n"


def test_attach_to_nobody_lists_the_nearest(shell: TerminalShell) -> None:
    shell.do("%makedip -n 1 --name right")
    assert "right" in shell.run("%makedip --attach rihgt").usage_error()


def test_a_group_that_died_is_named_once_and_the_next_makedip_starts_anew(shell: TerminalShell) -> None:
    shell.do("%makedip -n 2")
    shell.do("%%dip\nx = 1")
    info = ddip.attach(default_name()).info()
    processes.kill([info["pid"]])
    processes.assert_gone([info["pid"], *[rank["pid"] for rank in info["ranks"]]], 5.0)
    text = shell.run("%%dip\nx").usage_error()
    assert default_name() in text and "%makedip" in text, text
    assert "no group here" in shell.do("%makedip -i").out
    assert "2 CPU workers" in shell.do("%makedip -r -n 2").out
    assert shell.do("%%dip\nprint('x' in globals())").out == "False\n"


def test_flags_of_the_workers_reach_them(shell: TerminalShell) -> None:
    shell.do(
        "%makedip -n 2 --env COLOUR=green --env 'SPACED=a b' --threads 1 --seed 5 --start exec --gc off -t 50 --idle 30m --name flags"
    )
    said = shell.do(
        "%%dip\nimport os\nprint(os.environ['COLOUR'], os.environ['SPACED'], os.environ['OMP_NUM_THREADS'])"
    )
    assert said.out == "green a b 1\n"
    info = ddip.attach("flags").info()
    assert info["agent"]["start"] == "exec" and info["seed"] == 5 and info["idle"] == 1800


def test_on_exit_stop_is_said(shell: TerminalShell) -> None:
    assert "ends with this kernel" in shell.do("%makedip -n 1 --on-exit stop").out


def test_gpus_in_the_users_order(shell: TerminalShell, monkeypatch: Any) -> None:
    monkeypatch.setenv("DDIP_TEST_DEVICES", "4")
    text = shell.do("%makedip -g 3,1").out
    assert "3" in text and "1" in text
    info = shell.do("%makedip -i").out
    assert "cuda:0" in info or "GPU 3" in info, info
    said = shell.do("%%dip\nimport os\nprint(os.environ['CUDA_VISIBLE_DEVICES'])")
    assert said.out == "3,1\n"


def test_a_python_that_is_not_there_is_refused_and_nothing_stays(shell: TerminalShell, home: Any) -> None:
    text = shell.run("%makedip --python /nowhere/python").usage_error()
    assert "/nowhere/python" in text
    left = processes.of_runtime(str(home))
    wait_until(lambda: not any(processes.alive(pid) for pid in left), 2, "the coordinator is gone")


def test_a_gpu_that_is_not_there_lists_those_that_are(shell: TerminalShell, monkeypatch: Any) -> None:
    monkeypatch.setenv("DDIP_TEST_DEVICES", "2")
    text = shell.run("%makedip -g 7").usage_error()
    assert "7" in text and "0" in text and "1" in text, text
    monkeypatch.setenv("DDIP_TEST_DEVICES", "0")
    assert "no GPU" in shell.run("%makedip -g 7").usage_error()


# ---- what a client has not seen


def test_attaching_shows_what_this_client_missed_once(shell: TerminalShell) -> None:
    shell.do("%makedip -n 2")
    shell.do("%%dip\nprint('seen before')")
    other = ddip.attach(default_name(), "somebody-else")
    other.run("print('said meanwhile')")
    shell.magics.here.group = None
    lines = shell.do("%makedip --attach " + default_name()).out.splitlines()
    assert lines.count("said meanwhile") == 1 and not any("seen before" in line for line in lines), lines
    assert "said meanwhile" not in shell.do("%makedip").out


def test_a_cell_that_finds_its_group_again_shows_first_what_was_missed_and_once(shell: TerminalShell) -> None:
    shell.do("%makedip -n 2")
    shell.do("%%dip\nprint('seen before')")
    ddip.attach(default_name(), "somebody-else").run("print('said meanwhile')")
    shell.magics.here.group = None
    lines = shell.do("%%dip\nprint('new')").out.splitlines()
    assert lines[0].startswith(f"attached to group {default_name()}: 2 CPU workers"), lines
    assert lines.count("said meanwhile") == 1 and lines[-1] == "new" and "seen before" not in lines, lines
    assert shell.do("%%dip\nprint('new')").out == "new\n"
    assert "said meanwhile" not in shell.do("%makedip").out


def test_looking_at_the_group_first_hides_nothing_from_the_cell_after_it(shell: TerminalShell) -> None:
    shell.do("%makedip -n 1")
    shell.do("%%dip\nprint('seen before')")
    ddip.attach(default_name(), "somebody-else").run("print('said meanwhile')")
    shell.magics.here.group = None
    assert "said meanwhile" not in shell.do("%makedip -i").out
    assert shell.do("%%dip\nprint('new')").out.splitlines().count("said meanwhile") == 1


def test_a_question_does_not_wait_for_a_cell_that_still_runs(shell: TerminalShell) -> None:
    shell.do("%makedip -n 2")
    shell.do("%%dip\n1")
    cell = ddip.attach(default_name(), "somebody-else").run("print('begun'); import time; time.sleep(600)", wait=False)
    wait_until(lambda: len(cell._lines) == 2, 10, "both ranks sleep")
    shell.magics.here.group = None
    said = shell.do("%dipwhy").out
    assert "begun" in said and "rank 0: " in said, said
    cell.cancel()
    assert cell.wait(10)


def test_stop_while_the_missed_is_shown_sends_nothing(shell: TerminalShell) -> None:
    shell.do("%makedip -n 1")
    shell.do("%%dip\n1")
    shell.magics.here.group = None
    other = ddip.attach(default_name(), "somebody-else")
    cell = other.run("import time; time.sleep(600)", wait=False)

    def press() -> None:
        ours = lambda: [one for one in other.info()["clients"] if one["client"] == default_name()]  # noqa: E731
        wait_until(lambda: len(ours()) == 3, 10, "one connection for cells, one for questions, one that watches")
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    finger = threading.Thread(target=press)
    finger.start()
    said = shell.run("%%dip\nprint('not sent')")
    finger.join()
    assert isinstance(said.error, KeyboardInterrupt) and "Traceback" not in said.text, said.text
    assert other.info()["user_cells"] == 2 and cell.status == "running", "neither sent nor stopped"
    cell.cancel()
    assert cell.wait(10)


# ---- what somebody who attaches is told


def test_attaching_names_the_cells_that_run_and_the_way_to_their_output(shell: TerminalShell) -> None:
    shell.do("%makedip -n 2")
    shell.do("%%dip\nprint('before')")
    assert "%diplog last" in shell.do("%makedip").out
    other = ddip.attach(default_name(), "somebody-else")
    cell = other.run("print('begun'); import time; time.sleep(600)", wait=False)
    info = other.info()
    text = joined(info)
    assert f"cell {cell.number} is running on ranks 0-1 for " in text and f"%diplog {cell.number}" in text, text
    assert f"cell {cell.number} is running on ranks 0-1 for " in shell.do("%makedip -i").out
    cell.cancel()
    assert cell.wait(10)
    assert joined(info).splitlines()[0] == shell.do("%makedip").out.splitlines()[0]


def test_attaching_to_a_group_with_a_lost_rank_says_why_and_what_brings_it_back(shell: TerminalShell) -> None:
    shell.do("%makedip -n 2")
    shell.do("%%dip\nx = 1")
    shell.run("%%dip --ranks 1\nimport os; os._exit(3)")
    lost = next(line for line in shell.do("%makedip -n 2").out.splitlines() if "lost" in line)
    assert "rank 1 is lost (exit code 3)" in lost, lost
    assert "rank 1: lost: exit code 3, cpu" in shell.do("%makedip -i").out
    assert "pid 0" not in shell.do("%makedip -i").out
    refused = shell.run("%%dip\nx").usage_error()
    for said in (lost, refused):
        assert "%makedip -r --ranks 1" in said, said
    survivor = ddip.attach(default_name()).pids[0]
    assert "rank 1 restarted, empty" in shell.do("%makedip -r --ranks 1").out
    assert ddip.attach(default_name()).pids[0] == survivor
    assert shell.do("%%dip\nprint('x' in globals())").out == "[0] True\n[1] False\n"
    assert "lost" not in shell.do("%makedip").out


def test_joining_again_keeps_the_connection_and_what_dipper_bound(shell: TerminalShell) -> None:
    shell.do("%makedip -n 2")
    shell.do("%dipper group")
    group = shell.names["group"]
    for _ in range(3):
        shell.do("%makedip -n 2")
        shell.do("%makedip --attach")
    assert shell.magics.here.group is group
    wait_until(lambda: len(group.info()["clients"]) == 2, 5, "one connection for cells, one for questions")


def test_restart_of_some_ranks_echoes_nothing(shell: TerminalShell) -> None:
    shell.do("%makedip -n 2")
    shell.do("%dipper group")
    said = shell.do("group.restart(ranks=[1])")
    assert said.value is None and said.text == ""


def test_rebuild_makes_process_groups_again_and_keeps_variables(shell: TerminalShell, torched: Any) -> None:
    shell.magics.here.group, shell.magics.here.client_name = torched, "tests"
    shell.do("%%dip\nimport torch, torch.distributed as dist\ndist.init_process_group('gloo'); old = dist.group.WORLD")
    assert "process groups made again" in shell.do("%makedip --rebuild").out
    said = shell.do("%%dip\nx = torch.ones(1); dist.all_reduce(x); print(x.item(), old is not dist.group.WORLD)")
    assert said.out == "2.0 True\n"
    shell.do("%%dip\ndist.destroy_process_group()")


def test_a_request_without_source_has_a_headline_in_the_journal(shell: TerminalShell) -> None:
    shell.do("%makedip -n 1")
    shell.do("%makedip --rebuild")
    assert shell.do("%diplog last").out.rstrip().endswith(": rebuild")


def test_what_was_said_between_cells_is_shown_with_its_rank(shell: TerminalShell, home: Any) -> None:
    shell.do("%makedip -n 2 --name late")
    shell.do(f"""%%dip
import os, threading, time
def speak(rank):
    while not os.path.exists({str(home / "gate")!r}): time.sleep(0.005)
    os.write(1, b'native \\xc3\\xa4 of %d\\n' % rank)
    open('{home}/said%d' % rank, 'w').close()
threading.Thread(target=speak, args=(int(os.environ['RANK']),)).start()""")
    (home / "gate").touch()
    wait_until(lambda: (home / "said0").exists() and (home / "said1").exists(), 10, "both have spoken")
    shown = shell.do("%makedip --attach late").out
    shown += shell.do("%makedip --attach late").out  # the pipe may be read a moment later
    assert shown.count("[0] native ä of 0\n") == shown.count("[1] native ä of 1\n") == 1 and "b'" not in shown, shown
    for name in ("gate", "said0", "said1"):
        (home / name).unlink()
