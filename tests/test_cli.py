"""The commands about groups, as a shell sees them: what they print, their exit codes, what they leave behind."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import stat
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import processes
from support.program import PROGRAM, Running, ddip
from support.waiting import wait_until

COMMANDS = [
    "up", "ls", "info", "down", "exec", "log", "why", "interrupt", "wait", "run", "study", "doctor", "completion",
]  # fmt: skip
STUCK = """
import ctypes, os, signal, time
keep = 1
if os.environ["RANK"] == "1":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print("stuck", flush=True)
    while True: ctypes.CDLL(None).sleep(100)
"""


@pytest.fixture
def groups(home: Path) -> Iterator[Path]:
    """Whatever groups the test starts are stopped."""
    yield home
    ddip("down", "--all")


@pytest.fixture
def group(groups: Path) -> Path:
    """One group of two workers, named g."""
    ddip("up", "g", "-n", "2")
    return groups


def answer(*arguments: str, code: int = 0) -> Any:
    return json.loads(ddip(*arguments, "--json", code=code).stdout)


def pids() -> list[int]:
    return [rank["pid"] for rank in answer("info")["ranks"]]


def running_cells() -> list[Any]:
    return list(answer("info")["cells"])


def complaint(*arguments: str, code: int = 2, **environment: str) -> str:
    """The one line on standard error; nothing on standard output."""
    done = ddip(*arguments, code=code, **environment)
    assert done.stdout == ""
    assert done.stderr.endswith("\n") and done.stderr.count("\n") == 1, done.stderr
    return done.stderr.rstrip("\n")


# ---- help and wrong requests


def test_version_and_overview() -> None:
    assert ddip("--version").stdout.startswith("ddip 0.")
    text = ddip("--help").stdout
    assert all(f"  {name} " in text for name in COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_an_example(command: str) -> None:
    text = ddip(command, "--help").stdout
    assert text.startswith(f"ddip {command}: ")
    assert f"usage: ddip {command}" in text
    assert "examples\n" in text and f"ddip {command}" in text.partition("examples\n")[2]
    assert max(len(line) for line in text.splitlines()) <= 120


BAD = [
    ([], "ddip: expected a command; ddip --help lists them"),
    (["lss"], "ddip lss: there is no such command; did you mean ls?"),
    (["frobnicate"], "ddip frobnicate: there is no such command; ddip --help lists the commands"),
    (["--hlep"], "ddip --hlep: there is no such flag; ddip --help lists the commands"),
    (["study", "x"], "ddip study x: expected staleness"),
    (["partition", "x"], "ddip partition: expected one FILE.py:FACTORY; ddip partition -h lists the flags"),
    (["partition", "x.py:f", "--out", "p"], "ddip partition: expected --stages; ddip partition -h lists the flags"),
    (["partition", "x.py:f", "--stages", "2"], "ddip partition: expected --out; ddip partition -h lists the flags"),
    (
        ["partition", "x.py:f", "--stages", "0", "--out", "p"],
        "ddip partition --stages 0: expected a number of stages from 1 to 4096",
    ),
    (["ls", "x"], "ddip ls x: expected flags only; ddip ls -h lists them"),
    (["ls", "--jsn"], "ddip ls --jsn: there is no such flag; did you mean --json?"),
    (["ls", "--json", "--names"], "ddip ls --json --names: expected one of the two"),
    (["up", "-n", "0"], "ddip up -n 0: expected a number of workers from 1 to 4096"),
    (["up", "--wrokers", "2"], "ddip up --wrokers: there is no such flag; did you mean --workers?"),
    (["up", "a", "b"], "ddip up b: expected one group's name, and a is given already"),
    (["up", "--python", "/no/python"], "ddip up --python /no/python: no such program; expected a Python"),
    (["info"], "ddip info: no group is running; ddip up starts one"),
    (["info", "x"], "ddip info x: no such group, and none is running; ddip up x starts it"),
    (["info", "a", "b"], "ddip info b: expected one group's name, and a is given already"),
    (["exec", "1"], "ddip exec: no group is running; ddip up starts one"),
    (["exec", "a", "b", "c"], "ddip exec c: expected NAME and CODE at most; quote the code: ddip exec NAME 'print(1)'"),
    (["exec", "--ranks", "1-", "x"], "ddip exec --ranks 1-: "),
    (["log", "nobody"], "ddip log nobody: no journal of a group of this name; no group has one"),
    (["log"], "ddip log: no group has a journal yet; ddip up starts one"),
    (["interrupt", "--cell", "zero"], "ddip interrupt --cell zero: expected a cell's number"),
    (["wait", "-t", "-1"], None),
    (["down", "x", "--all"], "ddip down x --all: expected a name or --all, not both"),
    (["doctor", "--python", "nopython"], "ddip doctor --python nopython: no such program; expected a Python"),
    (["completion", "csh"], "ddip completion csh: expected bash|zsh|fish; did you mean zsh?"),
    (["completion"], "ddip completion: expected a shell: bash, zsh or fish"),
    (["run", "-n", "2"], "ddip run: expected a program: ddip run -n 2 -- python train.py"),
    (["run", "--", "true"], "ddip run: expected -n N, the number of ranks"),
    (["run", "-n", "0", "--", "true"], "ddip run -n 0: expected a number of ranks from 1 to 4096"),
    (["run", "-n", "-1", "--", "true"], None),
    (["run", "-n", "1e9", "--", "true"], None),
    (
        ["run", "-n", "2", "--", "nosuchprogram"],
        "ddip run nosuchprogram: no such program; expected one in PATH, or a path to one",
    ),
    (
        ["run", "-n", "2", "tr.py"],
        "ddip run tr.py: no such program; a script is started by its Python: -- python tr.py",
    ),
    (["run", "-n", "2", "--slurm", "--", "true"], None),
    (
        ["run", "-n", "2", "--prefix", "--no-prefix", "--", "true"],
        "ddip run --prefix --no-prefix: expected one of the two",
    ),
    (["run", "-n", "2", "--env", "1=2", "--", "true"], "ddip run --env 1=2: expected K=V, K of letters, digits and _"),
    (["run", "-n", "2", "--master-port", "0", "--", "true"], None),
]


@pytest.mark.parametrize("arguments,line", BAD, ids=lambda value: " ".join(value) if isinstance(value, list) else "")
def test_wrong_requests_get_one_line_and_start_nothing(home: Path, arguments: list[str], line: str | None) -> None:
    said = complaint(*arguments)
    assert said.startswith("ddip") and len(said) < 300
    if line is not None:
        assert said.startswith(line)
    assert list(home.iterdir()) == [] and processes.of_runtime(str(home)) == []


def test_a_gpu_that_is_not_there_lists_those_that_are(home: Path) -> None:
    said = complaint("up", "-g", "7", DDIP_TEST_DEVICES="A100:80,T4:16")
    assert "A100" in said and "T4" in said
    assert list(home.iterdir()) == []


def test_code_that_cannot_be_is_refused_before_it_is_sent(group: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "latin.py").write_bytes(b"x = '\xe9'\n")
    assert "no such file" in complaint("exec", "g", str(tmp_path / "missing.py"))
    assert "not a plain file" in complaint("exec", "g", str(tmp_path / "pipe.py"))
    assert "not UTF-8" in complaint("exec", "g", str(tmp_path / "latin.py"))
    assert "no code" in complaint("exec", "g", "  ")
    assert "rank 5" in complaint("exec", "g", "--ranks", "5", "1")
    assert answer("info")["user_cells"] == 0


def test_a_name_is_needed_only_where_several_groups_run(groups: Path) -> None:
    ddip("up", "one", "-n", "1")
    assert ddip("exec", "print(41 + 1)").stdout == "42\n"
    ddip("up", "two", "-n", "1")
    assert complaint("exec", "1") == "ddip exec: 2 groups are running (one, two); expected one's name: ddip exec NAME"
    assert complaint("info", "tow") == "ddip info tow: no such group; did you mean two? running: one, two"
    assert ddip("ls", "--names").stdout == "one\ntwo\n"
    assert ddip("exec", "two", "print(1)").stdout == "1\n"


# ---- up, ls, info, down


def test_up_starts_a_group_that_outlives_the_command(groups: Path) -> None:
    said = ddip("up", "-n", "2", "--json")
    about = json.loads(said.stdout)
    assert about["action"] == "started" and about["name"] == "default" and about["world_size"] == 2
    listed = answer("ls")
    assert [(one["name"], one["state"], one["world_size"], one["cells"]) for one in listed] == [
        ("default", "running", 2, [])
    ]
    text = ddip("info").stdout
    assert "rank 0  ready" in text and "outlives this shell" in text
    assert all(processes.alive(pid) for pid in pids())


def test_up_again_attaches_and_another_shape_needs_a_word(groups: Path) -> None:
    ddip("up", "g", "-n", "1")
    first = pids()
    assert "is running already" in ddip("up", "g", "-n", "1").stdout and pids() == first
    ddip("exec", "x = 1")
    assert complaint("up", "g", "-n", "2").startswith("ddip up g: this group runs with 1 CPU worker")
    assert "restarted" in ddip("up", "g", "-r").stdout
    assert pids() != first
    ddip("exec", "x = 1")
    assert answer("up", "g", "-n", "2", "-r")["world_size"] == 2


def test_up_kill_and_info_are_the_notebooks_flags(group: Path) -> None:
    assert "rank 1  ready" in ddip("up", "g", "-i").stdout
    assert "group g stopped" in ddip("up", "g", "-k").stdout
    assert ddip("ls").stdout.startswith("no group is running")


def test_a_group_that_cannot_start_fails_with_one_line_and_leaves_nothing(groups: Path) -> None:
    lines = ddip("up", "g", "-n", "2", "--python", "/bin/false", code=1).stderr.splitlines()
    assert lines[-1].startswith("ddip up: ") and len(lines) <= 2
    wait_until(lambda: processes.of_runtime(str(groups)) == [], 2, "nothing is left")


def test_interrupting_up_leaves_nothing(groups: Path, tmp_path: Path) -> None:
    slow = tmp_path / "python"
    slow.write_text("#!/bin/sh\nexec sleep 100\n")
    slow.chmod(0o755)
    with Running("up", "g", "-n", "1", "--python", str(slow)) as up:
        wait_until(lambda: len(processes.of_runtime(str(groups))) >= 2, 10, "it starts")
        up.signal()
        assert up.end(5) == 1
        assert up.err[-1] == "ddip up: interrupted; nothing was left behind"
    wait_until(lambda: processes.of_runtime(str(groups)) == [], 2, "nothing is left")


def test_on_exit_stop_ends_the_group_with_the_shell(groups: Path) -> None:
    shell = subprocess.Popen(
        ["sh", "-c", f"{PROGRAM} up g -n 1 --on-exit stop >/dev/null && echo up && read line"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert shell.stdout is not None and shell.stdout.readline() == "up\n"
    assert ddip("ls", "--names").stdout == "g\n"
    shell.communicate("\n", timeout=10)
    wait_until(lambda: processes.of_runtime(str(groups)) == [], 5, "the group ended with its shell")


@pytest.mark.kills
def test_down_ends_even_a_coordinator_that_is_stopped(group: Path) -> None:
    os.kill(answer("info")["pid"], signal.SIGSTOP)
    assert "did not answer and was killed" in ddip("down", "g").stdout
    wait_until(lambda: processes.of_runtime(str(group)) == [], 2, "all gone")
    assert ddip("down", "--all").stdout == "no group is running\n"


# ---- exec


def test_exec_prints_by_rank_and_keeps_the_streams_apart(group: Path) -> None:
    done = ddip(
        "exec",
        "import os, sys; print('out', os.environ['RANK']); print('err', file=sys.stderr); os.environ['RANK'] * 2",
    )
    assert sorted(done.stdout.splitlines()) == ["[0] '00'", "[0] out 0", "[1] '11'", "[1] out 1"]
    assert sorted(done.stderr.splitlines()) == ["[0] err", "[1] err"]
    assert ddip("exec", "--ranks", "1", "--no-prefix", "print('x')").stdout == "x\n"


def test_exec_takes_code_from_a_file_or_a_pipe(group: Path, tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("value = 7\nprint(value)\n")
    assert ddip("exec", "g", str(tmp_path / "code.py"), "--ranks", "0").stdout == "[0] 7\n"
    assert ddip("exec", "-", "--ranks", "0", input="print(value + 1)\n").stdout == "[0] 8\n"
    assert ddip("exec", "g", "--ranks", "0", input="print(value + 2)\n").stdout == "[0] 9\n"
    assert ddip("exec", "--ranks", "0", "--", "-value").stdout == "[0] -7\n"


def test_a_failing_rank_is_exit_1_with_its_traceback_once(group: Path) -> None:
    done = ddip("exec", "raise ValueError('here')", code=1)
    assert done.stderr.count("Traceback (most recent call last)") == 1
    assert done.stderr.count("ValueError: here") == 2
    assert "\x1b" not in done.stderr
    assert done.stderr.splitlines()[-1] == "ddip exec: cell 1 failed on ranks 0,1"


def test_a_progress_bar_leaves_its_last_frame(group: Path) -> None:
    code = "for i in range(100): print(f'\\rbar {i}', end='')\nprint('\\nend', end='')"
    assert sorted(ddip("exec", code).stdout.splitlines()) == ["[0] bar 99", "[0] end", "[1] bar 99", "[1] end"]


def test_input_without_a_terminal_is_an_error_not_a_hang(group: Path) -> None:
    assert "needs a terminal" in ddip("exec", "--ranks", "0", "input('? ')", code=1).stderr


def test_ctrl_c_interrupts_all_ranks_and_keeps_processes_and_variables(group: Path) -> None:
    before = pids()
    with Running("exec", "keep = 5\nprint('go', flush=True)\nimport time\ntime.sleep(100)") as running:
        running.wait_for("go", 2)
        running.signal()
        assert running.end(5) == 1
        assert running.err[-1] == "ddip exec: cell 1 was interrupted on ranks 0,1"
    assert pids() == before
    assert sorted(ddip("exec", "print(keep)").stdout.splitlines()) == ["[0] 5", "[1] 5"]


def test_a_second_ctrl_c_replaces_only_the_ranks_that_are_stuck(group: Path) -> None:
    before = pids()
    with Running("exec", STUCK + "print('there', flush=True)\ntime.sleep(100)") as running:
        running.wait_for("stuck")
        running.wait_for("there")  # rank 0 too has set its variable
        running.signal()
        running.wait_for("Ctrl-C again replaces rank 1: all variables there are lost", seconds=5)
        assert any("rank 1 goes on: <cell 1>, line 7" in line for line in running.err)
        running.signal()
        assert running.end(20) == 1
    after = pids()
    assert after[0] == before[0] and after[1] != before[1]
    assert sorted(ddip("exec", "print('keep' in globals())").stdout.splitlines()) == ["[0] True", "[1] False"]


@pytest.mark.kills
def test_a_script_has_no_arguments_of_ours(group: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--epochs', default=3)\n"
        "print(parser.parse_args().epochs)"
    )
    assert sorted(ddip("exec", str(script)).stdout.splitlines()) == ["[0] 3", "[1] 3"]


def test_exec_says_so_when_its_group_is_lost(group: Path) -> None:
    coordinator = answer("info")["pid"]
    with Running("exec", "print('line', flush=True)\nimport time\ntime.sleep(100)") as running:
        running.wait_for("line", 2)
        os.kill(coordinator, signal.SIGKILL)
        assert running.end(5) == 1
        assert running.err[-1].startswith("ddip exec: group g was lost at ")
        assert running.err[-1].endswith(", 2 lines kept (ddip log g)")


# ---- why, interrupt, wait


@pytest.mark.timeout(120)
def test_why_names_who_never_arrived_and_where_it_is(groups: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("DDIP_PRELOAD", "torch")
    ddip("up", "g", "-n", "2")
    ddip("exec", "import time, torch\nfrom torch import distributed\ndistributed.init_process_group('gloo')")
    ddip(
        "exec",
        "-d",
        "if distributed.get_rank() == 0:\n    distributed.all_reduce(torch.ones(1))\nelse:\n    time.sleep(300)",
    )
    wait_until(lambda: "collective" in answer("why")["ranks"][0], 10, "rank 0 waits")
    told = answer("why")
    assert [rank["rank"] for rank in told["ranks"]] == [0, 1] and told["cells"][0]["cell"] == 2
    lines = ddip("why").stdout.splitlines()
    assert "all_reduce" in lines[0] or "wait" in lines[0]
    assert "rank 1" in lines[-1] and "never arrived" in lines[-1] and "(time.sleep(300))" in lines[-1]
    assert "innermost first" in ddip("why", "--stacks").stdout
    assert ddip("interrupt").stdout.splitlines()[-1] == "all ranks are free, with their variables"


def test_why_tells_stopped_and_lost_ranks_apart(group: Path) -> None:
    first, second = pids()
    os.kill(first, signal.SIGSTOP)
    os.kill(second, signal.SIGKILL)
    wait_until(lambda: answer("info")["ranks"][1]["status"] == "lost", 5, "rank 1 is lost")
    lines = ddip("why").stdout.splitlines()
    assert "stopped" in lines[0] and "SIGKILL" in lines[1]
    os.kill(first, signal.SIGCONT)
    assert "rank 1" in complaint("exec", "1")


def test_interrupt_says_what_ran_and_wait_waits(group: Path, tmp_path: Path) -> None:
    assert ddip("interrupt").stdout == "nothing runs in group g\n"
    assert ddip("exec", "-d", "import time; time.sleep(100)").stdout == "1\n"
    done = ddip("wait", "-t", "0.2", code=1)
    assert done.stderr.startswith("ddip wait: cell 1 still runs after 0.2 s: import time; time.sleep(100)\n")
    assert complaint("interrupt", "--cell", "9") == "ddip interrupt --cell 9: that cell is not running; running: 1"
    lines = ddip("interrupt", "--cell", "1").stdout.splitlines()
    assert lines[0].startswith("interrupted cell 1 on ranks 0,1, ") and lines[0].endswith(
        ": import time; time.sleep(100)"
    )
    assert ddip("wait").stdout == ""

    gate = tmp_path / "gate"
    ddip("exec", "-d", f"import os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)")
    with Running("wait", "-t", "30") as waiting:
        wait_until(lambda: len(answer("info")["clients"]) == 2, 5, "it is there")
        assert waiting.process.poll() is None
        gate.touch()
        assert waiting.end(10) == 0
    assert running_cells() == []


def test_interrupt_reports_stuck_ranks_and_kill_replaces_them(group: Path) -> None:
    before = pids()
    ddip("exec", "-d", STUCK)
    wait_until(lambda: "stuck" in ddip("log").stdout, 5, "rank 1 is stuck")
    told = answer("interrupt", code=1)
    assert [rank["rank"] for rank in told["stuck"]] == [1] and "<cell 1>, line 7" in told["stuck"][0]["where"]
    lines = ddip("interrupt", code=1).stdout.splitlines()
    assert lines[-1] == "ddip interrupt --kill replaces it; all variables there would be lost"
    lines = ddip("interrupt", "--kill").stdout.splitlines()
    assert lines[1] == "rank 1 is replaced: all variables there are lost"
    after = pids()
    assert after[0] == before[0] and after[1] != before[1] and running_cells() == []


# ---- log


def test_log_tail_shows_the_newest_lines(group: Path) -> None:
    ddip("exec", "--ranks", "0", "for i in range(10): print('line', i)")
    text = ddip("log").stdout.splitlines()
    assert ddip("log", "--tail", "3").stdout.splitlines() == text[-3:] == ["[0] line 7", "[0] line 8", "[0] line 9"]
    assert ddip("log", "--tail", "1000").stdout.splitlines() == text
    assert complaint("log", "--tail", "0").startswith("ddip log --tail 0: expected a number of lines from 1")
    with Running("log", "-f", "--tail", "1") as following:
        following.wait_for("[0] line 9")
        ddip("exec", "--ranks", "0", "print('later')")
        following.wait_for("[0] later")
        ddip("down", "g")
        assert following.end(5) == 0
        assert following.out[0] == "[0] line 9"


def test_info_of_a_lost_rank_shows_why_and_no_process(group: Path) -> None:
    ddip("exec", "--ranks", "1", "import os; os._exit(3)", code=1)
    lost = next(line for line in ddip("info").stdout.splitlines() if "rank 1" in line)
    assert "lost" in lost and "exit code 3" in lost and "pid" not in lost, lost


def test_log_replays_cells_and_follows(group: Path) -> None:
    with Running("log", "-f") as following:
        wait_until(lambda: len(answer("info")["clients"]) == 2, 5, "it follows")
        ddip("exec", "import os; print('one', os.environ['RANK'])")
        ddip("exec", "--ranks", "0", "1/0", code=1)
        following.wait_for("── cell 2 failed")
        ddip("down", "g")
        assert following.end(5) == 0
        assert any("stopped at" in line for line in following.err)
    text = ddip("log", "g").stdout.splitlines()
    assert [line for line in following.out if line in text] == text
    assert text[0].startswith("── cell 1, 20") and text[0].endswith(
        ", ranks 0,1: import os; print('one', os.environ['RANK'])"
    )
    assert sorted(text[1:3]) == ["[0] one 0", "[1] one 1"]
    only = ddip("log", "g", "1").stdout.splitlines()
    assert only == text[:3]
    assert complaint("log", "g", "77").startswith("ddip log g 77: no such cell in the journal")
    records = [json.loads(line) for line in ddip("log", "g", "1", "--json").stdout.splitlines()]
    assert [record["kind"] for record in records if record["kind"] != "output"] == [
        "cell_started",
        "rank_done",
        "rank_done",
        "cell_done",
    ]
    output = [record for record in records if record["kind"] == "output"]
    assert {"".join(record["text"] for record in output if record["rank"] == rank) for rank in (0, 1)} == {
        "one 0\n",
        "one 1\n",
    }
    assert {"sequence", "time", "cell", "rank", "kind", "stream", "text"} == {
        key for record in output for key in record
    }


@pytest.mark.kills
def test_after_a_coordinators_death_the_journal_is_there_and_says_so(group: Path) -> None:
    ddip("exec", "print('kept')")
    os.kill(answer("info")["pid"], signal.SIGKILL)
    wait_until(lambda: processes.of_runtime(str(group)) == [], 5, "its workers end")
    assert [(one["name"], one["state"], one["lines"]) for one in answer("ls")] == [("g", "lost", 2)]
    done = ddip("log")
    assert sorted(done.stdout.splitlines()[1:]) == ["[0] kept", "[1] kept"]
    assert done.stderr.startswith("ddip log: group g was lost at 20") and ", 2 lines kept" in done.stderr
    assert complaint("exec", "g", "1", code=1).startswith("ddip exec g: group g was lost at ")
    assert "was lost before" in ddip("down", "g").stdout
    assert answer("ls") == []


@pytest.mark.kills
def test_the_next_command_ends_what_a_lost_group_left_stopped(group: Path) -> None:
    """A stopped process in a session of its own, and nobody alive who could know of it."""
    code = "import subprocess; child = subprocess.Popen(['sleep', '1000'], start_new_session=True); print(child.pid)"
    survivor = int(ddip("exec", "--ranks", "0", "--no-prefix", code).stdout)
    coordinator = answer("info")["pid"]
    everyone = processes.of_runtime(str(group))
    processes.kill(everyone, signal.SIGSTOP)  # so that none of them can react to the others' deaths
    processes.kill([pid for pid in everyone if pid not in (survivor, coordinator)])
    processes.kill([coordinator])
    wait_until(lambda: processes.of_runtime(str(group)) == [survivor], 5, "only the stopped one is left")
    ddip("ls")
    wait_until(lambda: processes.of_runtime(str(group)) == [], 2, "swept")


# ---- doctor, completion, colours


@pytest.mark.timeout(120)
def test_doctor_has_a_verdict_and_a_remedy_for_each_line(home: Path) -> None:
    told = answer("doctor")
    assert told["ok"] is True
    checks = {check["name"]: check for check in told["checks"]}
    assert {"ddip", "Python", "ddip package", "torch", "fork safety", "GPUs", "runtime folder", "state folder", "memory",
            "locked memory", "open files", "/dev/shm", "ptrace"} <= set(checks)  # fmt: skip
    for check in checks.values():
        assert check["status"] in ("ok", "warn", "fail") and (check["status"] == "ok") == (check["remedy"] == ""), check
    home.chmod(0o755)
    said = ddip("doctor", "--python", "/bin/false", code=1).stdout
    home.chmod(0o700)
    assert "fail  runtime folder" in said and "→ chmod 700 " in said and "fail  Python" in said
    assert said.splitlines()[-1].endswith("2 failed")


def test_completion_knows_commands_flags_and_groups(group: Path) -> None:
    script = ddip("completion", "bash").stdout
    shell = f"""{script}
ddip() {{ {PROGRAM} "$@"; }}
ask() {{ COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _ddip; echo "${{COMPREPLY[*]}}"; }}
ask ddip in; ask ddip info --j; ask ddip info ''; ask ddip completion z; ask ddip run --no"""
    said = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=20)
    assert said.stderr == ""
    assert said.stdout.splitlines() == ["info interrupt", "--json", "g", "zsh", "--no-prefix --no-store"]
    assert "#compdef ddip" in ddip("completion", "zsh").stdout
    assert "__fish_seen_subcommand_from exec" in ddip("completion", "fish").stdout


def on_a_terminal(*arguments: str, **environment: str) -> bytes:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(PROGRAM, [PROGRAM, *arguments], {**os.environ, "TERM": "xterm", **environment})
    text = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:
            break
        if not part:
            break
        text += part
    os.close(terminal)
    os.waitpid(pid, 0)
    return text


class Asked:
    """`ddip exec` on a terminal, at a question of rank 0."""

    def __init__(self, code: str, prompt: bytes) -> None:
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.execve(
                PROGRAM, [PROGRAM, "exec", "--ranks", "0", code], {**os.environ, "TERM": "xterm", "NO_COLOR": "1"}
            )
        self.text = b""
        self.read_to(prompt)

    def read_to(self, prompt: bytes) -> None:
        while prompt not in self.text:
            self.text += os.read(self.terminal, 65536)

    def type(self, text: bytes) -> None:
        os.write(self.terminal, text)

    def end(self, typed: bytes) -> int:
        """The exit code, after all that is shown is in `text`."""
        self.type(typed)
        with contextlib.suppress(OSError):  # its other end is closed
            while part := os.read(self.terminal, 65536):
                self.text += part
        os.close(self.terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_what_is_typed_for_getpass_is_not_shown(group: Path) -> None:
    asked = Asked(
        "import getpass\nprint(getpass.getpass('secret? ')[::-1])\nprint('hello', input('name? '))", b"secret? "
    )
    asked.type(b"12345\n")
    asked.read_to(b"name? ")
    code = asked.end(b"somebody\n")
    assert code == 0 and b"12345" not in asked.text and b"54321" in asked.text, asked.text
    assert asked.text.count(b"somebody") == 2, "a plain question echoes again"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_program_that_is_ended_while_it_asks_for_a_secret_leaves_the_terminal_as_it_was(
    group: Path, number: int
) -> None:
    asked = Asked("import getpass\ngetpass.getpass('secret? ')", b"secret? ")
    assert not echoes(asked.terminal)
    os.kill(asked.pid, number)
    assert os.waitstatus_to_exitcode(os.waitpid(asked.pid, 0)[1]) == -number
    assert echoes(asked.terminal)
    os.close(asked.terminal)


def echoes(terminal: int) -> bool:
    return bool(termios.tcgetattr(terminal)[3] & termios.ECHO)


# The first rung of the interrupt is only counted, so that an answer, if one comes with it, has the time to be seen.
AT_A_QUESTION = """
import signal
rungs = []
def climb(*_):
    rungs.append(1)
    if len(rungs) > 1: raise KeyboardInterrupt
before = signal.signal(signal.SIGINT, climb)
try: print('got', input('name? '))
except KeyboardInterrupt: print('stopped'); raise
finally: signal.signal(signal.SIGINT, before)
"""


def test_ctrl_c_at_a_question_answers_nothing(group: Path) -> None:
    asked = Asked(AT_A_QUESTION, b"name? ")
    code = asked.end(b"half\x03")
    assert code == 1 and b"stopped" in asked.text and b"got" not in asked.text, asked.text
    assert ddip("exec", "--ranks", "0", "print('next')").stdout == "[0] next\n"


def test_colours_only_on_a_terminal_that_wants_them(group: Path) -> None:
    assert "\x1b" not in ddip("ls").stdout
    assert b"\x1b[1m" in on_a_terminal("ls", NO_COLOR="")
    assert b"\x1b" not in on_a_terminal("ls", NO_COLOR="1")
    assert b"\x1b[36m[0]" in on_a_terminal("exec", "print(1)", NO_COLOR="")


def test_folders_are_private(group: Path) -> None:
    for folder in (group, group / "g"):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
