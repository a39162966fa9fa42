"""`ddip run`: any program on N ranks; what it is told, what it says, how it ends, what is left of it."""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path

import pytest
from support import processes
from support.program import Running, ddip
from support.waiting import wait_until

TRAIN = """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")  # env://, as under torchrun
total = torch.ones(3) * (dist.get_rank() + 1)
dist.all_reduce(total)
print("rank", dist.get_rank(), "of", dist.get_world_size(), total.tolist(), dist.is_torchelastic_launched())
dist.destroy_process_group()
"""


def left(home: Path) -> list[int]:
    return processes.of_runtime(str(home))


def run(*arguments: str, code: int = 0) -> list[str]:
    return ddip("run", *arguments, code=code).stdout.splitlines()


# ---- what ranks are told


def test_any_program_gets_torchruns_variables() -> None:
    names = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR TORCHELASTIC_RESTART_COUNT TORCHELASTIC_USE_AGENT_STORE GLOO_SOCKET_IFNAME".split()
    command = "echo " + " ".join(f"${name}" for name in names)
    assert sorted(run("-n", "2", "--", "sh", "-c", command)) == [
        "0 0 2 2 0 127.0.0.1 0 True lo",
        "1 1 2 2 0 127.0.0.1 0 True lo",
    ]


def test_the_master_port_is_one_for_all_and_held_on_loopback_only(home: Path) -> None:
    with Running("run", "-n", "2", "--", "sh", "-c", "echo port $MASTER_PORT; exec sleep 100") as running:
        running.wait_for("port", 2)
        ports = {int(line.split()[1]) for line in running.out}
        assert len(ports) == 1
        assert processes.listening_addresses([running.pid]) == {("0100007F", ports.pop())}
        running.signal(signal.SIGTERM)
        running.end(5)


def test_without_a_store_the_port_is_the_programs_own() -> None:
    code = "import os, socket; s = socket.socket(); s.bind(('127.0.0.1', int(os.environ['MASTER_PORT']))); print(os.environ['TORCHELASTIC_USE_AGENT_STORE'])"
    assert run("-n", "1", "--no-store", "--", sys.executable, "-c", code) == ["False"]


def test_a_port_that_is_taken_is_named_and_nothing_starts(home: Path, tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        done = ddip("run", "-n", "1", "--master-port", str(port), "--", "touch", str(tmp_path / "ran"), code=2)
    assert str(port) in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "ran").exists()


def test_extra_variables_and_words_reach_the_program() -> None:
    assert run("-n", "1", "--env", "A=x y", "--", "sh", "-c", 'echo "$A" "$1" "$2"', "sh", "--json", "-n") == [
        "x y --json -n"
    ]
    assert run("-n", "1", "echo", "-n", "3") == ["3"]  # the program begins at the first word that is no flag


@pytest.mark.timeout(180)
@pytest.mark.parametrize("wrap", [[], ["sh", "-c", 'exec "$@"', "sh"]], ids=["python", "through a shell"])
def test_an_unchanged_torchrun_script_runs(tmp_path: Path, wrap: list[str]) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    lines = run(
        "-n",
        "2",
        *(["--python", sys.executable] if wrap else []),
        "--",
        *wrap,
        sys.executable,
        str(tmp_path / "train.py"),
    )
    assert sorted(lines) == ["rank 0 of 2 [3.0, 3.0, 3.0] True", "rank 1 of 2 [3.0, 3.0, 3.0] True"]


def test_where_python_has_no_torch_a_knock_is_answered_by_a_word(tmp_path: Path) -> None:
    bare = tmp_path / "python3"
    bare.write_text("#!/bin/sh\necho \"No module named 'torch'\" >&2\nexit 1\n")
    bare.chmod(0o755)
    with Running(
        "run", "-n", "1", "--python", str(bare), "--", "sh", "-c", "echo port $MASTER_PORT; exec sleep 100"
    ) as running:
        running.wait_for("port")
        with socket.create_connection(("127.0.0.1", int(running.out[0].split()[1]))):
            running.wait_for("no store for torch.distributed")
        assert "No module named 'torch'" in running.err[-1] and "--python" in running.err[-1]
        running.signal(signal.SIGTERM)
        running.end(5)


# ---- what ranks say


def test_lines_are_never_mixed_and_none_is_lost() -> None:
    code = (
        "import os, sys\n"
        "r = os.environ['RANK']\n"
        "for i in range(2000):\n"
        "    for piece in (r * 20, ' ', str(i), ' ', r * 20, '\\n'):\n"
        "        os.write(1, piece.encode())\n"
    )
    seen: dict[str, list[int]] = {"0": [], "1": [], "2": []}
    for line in run("-n", "3", "--prefix", "--", sys.executable, "-S", "-c", code):
        prefix, first, number, last = line.split(" ")
        rank = prefix.strip("[]")
        assert first == last == rank * 20, line
        seen[rank].append(int(number))
    assert seen == {rank: list(range(2000)) for rank in seen}


def test_streams_stay_apart_and_a_last_line_needs_no_newline() -> None:
    done = ddip("run", "-n", "2", "--prefix", "--", "sh", "-c", "printf out$RANK; printf err$RANK >&2")
    assert sorted(done.stdout.splitlines()) == ["[0] out0", "[1] out1"]
    assert sorted(done.stderr.splitlines()) == ["[0] err0", "[1] err1"]
    assert sorted(run("-n", "2", "--", "sh", "-c", "echo $RANK")) == ["0", "1"]  # a pipe: no prefix unless asked for


def test_a_reader_that_goes_ends_the_run(home: Path) -> None:
    import subprocess

    from support.program import PROGRAM

    shell = f"{PROGRAM} run -n 2 --grace 1 -- yes | head -n 3; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, timeout=20)
    assert done.stdout.splitlines() == ["y", "y", "y", "141"]
    assert left(home) == []


# ---- how it ends


def test_the_first_failing_ranks_code_is_ours_and_ends_the_others(home: Path) -> None:
    done = ddip("run", "-n", "3", "--", "sh", "-c", "test $RANK = 1 && exit 3; exec sleep 100", code=3)
    assert "ddip run: rank 1 failed: exit code 3 (pid " in done.stderr and done.stderr.endswith(
        "; stopping the other 2\n"
    )
    assert left(home) == []


def test_a_signal_is_128_and_its_number(home: Path) -> None:
    assert (
        "rank 0 failed: killed by SIGKILL"
        in ddip("run", "-n", "2", "--", "sh", "-c", "test $RANK = 0 && kill -9 $$; exec sleep 100", code=137).stderr
    )
    ddip("run", "-n", "1", "--", "sh", "-c", "kill -SEGV $$", code=139)


def test_ranks_that_ignore_sigterm_are_killed_after_the_grace(home: Path) -> None:
    command = "trap '' TERM; if test $RANK = 1; then exit 4; fi; while true; do sleep 100; done"
    ddip("run", "-n", "2", "--grace", "0.2", "--", "sh", "-c", command, code=4)
    assert left(home) == []


@pytest.mark.parametrize("number,code", [(signal.SIGINT, 7), (signal.SIGTERM, 8)])
def test_signals_reach_every_rank(home: Path, number: int, code: int) -> None:
    command = "trap 'echo caught $RANK; exit 7' INT; trap 'echo caught $RANK; exit 8' TERM; echo ready; while true; do sleep 0.05; done"
    with Running("run", "-n", "2", "--", "sh", "-c", command) as running:
        running.wait_for("ready", 2)
        running.signal(number)
        assert running.end(10) == code
        assert sorted(line for line in running.out if "caught" in line) == ["caught 0", "caught 1"]
    assert left(home) == []


def test_pressing_three_times_always_ends_it(home: Path) -> None:
    command = "trap 'echo no' INT TERM; echo ready; while true; do sleep 0.05; done"
    with Running("run", "-n", "2", "--grace", "60", "--", "sh", "-c", command) as running:
        running.wait_for("ready", 2)
        running.signal()
        running.wait_for("no", 2)
        running.signal()
        running.wait_for("no", 4)
        running.signal()
        assert running.end(10) == 137
    assert left(home) == []


def test_a_rank_that_is_killed_after_the_grace_says_by_whom(home: Path) -> None:
    command = "trap '' INT TERM; echo ready; while true; do sleep 0.05; done"
    with Running("run", "-n", "2", "--grace", "0.2", "--", "sh", "-c", command) as running:
        running.wait_for("ready", 2)
        running.signal()
        assert running.end(10) == 137
        assert any("ended by ddip (SIGKILL): it did not leave within 0.2 s" in line for line in running.err), (
            running.err
        )
    assert left(home) == []


def test_children_that_ranks_leave_behind_are_ended(home: Path) -> None:
    assert run("-n", "1", "--", "sh", "-c", "setsid sleep 100 & echo done") == ["done"]
    assert left(home) == []


@pytest.mark.kills
def test_sigkill_of_the_command_leaves_no_orphan(home: Path) -> None:
    with Running("run", "-n", "2", "--", "sh", "-c", "setsid sleep 100 & echo ready; sleep 100") as running:
        running.wait_for("ready", 2)
        wait_until(lambda: len(left(home)) >= 6, 5, "two shells with two children each")
        running.signal(signal.SIGKILL)
        running.end(5)
        wait_until(lambda: left(home) == [], 5, "no orphan")


def test_a_program_that_cannot_be_executed_is_a_wrong_request(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    assert ddip("run", "-n", "2", "--", str(tmp_path / "notes.txt"), code=2).stderr.startswith("ddip run ")
    assert os.path.exists(tmp_path / "notes.txt")
