"""Every magic and flag of the notebook surface (I6, I7, I10, I12, I14–I20, I23), in an IPython without a kernel: what a
terminal user types and reads. What only a kernel can show is in test_notebook.py, what only a browser can in test_lab.py."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from ddip.group import default_name
from lab.shell import TerminalShell, open_shell, plain_text
from lab.terminal import Terminal
from support import processes
from support.waiting import Stopwatch, wait_until

import ddip

pytest.importorskip("IPython", reason="the magics need IPython")


@pytest.fixture(scope="module")
def terminal() -> Iterator[TerminalShell]:
    yield from open_shell()


@pytest.fixture
def shell(terminal: TerminalShell, home: Any) -> Iterator[TerminalShell]:
    """The extension is loaded; there is no group yet."""
    before = set(terminal.shell.user_ns)
    yield terminal
    terminal.run("%autodip off")
    magics = terminal.magics
    magics.group, magics.client_name = None, ""
    magics.stuck.clear()
    for name in set(terminal.shell.user_ns) - before:
        del terminal.shell.user_ns[name]
    for name in ddip.groups():
        ddip.attach(name).stop()


@pytest.fixture
def dip(shell: TerminalShell, plain: Any) -> TerminalShell:
    """Two workers are there, and each knows its rank `r`."""
    shell.magics.group, shell.magics.client_name = plain, "tests"
    plain.run("import os, sys, time; r = int(os.environ['RANK'])")
    return shell


# ---- loading


def test_loading_twice_is_harmless_and_unloading_restores(terminal: TerminalShell) -> None:
    shell = terminal.shell
    transformers = list(shell.input_transformers_cleanup)
    matchers, inspect = list(shell.Completer.custom_matchers), shell.object_inspect_mime
    terminal.do("%load_ext ddip")
    terminal.do("%reload_ext ddip")
    assert len(shell.input_transformers_cleanup) == len(transformers)
    assert len(shell.Completer.custom_matchers) == len(matchers)
    terminal.do("%unload_ext ddip")
    try:
        assert len(shell.input_transformers_cleanup) == len(transformers) - 1
        assert len(shell.Completer.custom_matchers) == len(matchers) - 1
        assert shell.object_inspect_mime != inspect
        for name in ("makedip", "dip", "autodip", "dipush", "dipull", "dipper", "diplog", "dipwhy"):
            assert shell.find_line_magic(name) is None and shell.find_cell_magic(name) is None, name
        assert "not found" in terminal.run("%makedip -i").text
    finally:
        terminal.do("%load_ext ddip")
    assert shell.find_line_magic("makedip") is not None


@pytest.mark.parametrize("alias", ["Ddip", "ddipp"])
def test_the_other_spellings_load_the_same_extension(terminal: TerminalShell, alias: str) -> None:
    terminal.do("%unload_ext ddip")
    try:
        terminal.do(f"%load_ext {alias}")
        assert terminal.shell.find_line_magic("makedip") is not None
        count = len(terminal.shell.input_transformers_cleanup)
        terminal.do("%load_ext ddip")
        assert len(terminal.shell.input_transformers_cleanup) == count, "the second spelling adds nothing"
        terminal.do(f"%unload_ext {alias}")
    finally:
        terminal.do("%reload_ext ddip")
    assert terminal.shell.find_cell_magic("dip") is not None


def test_unloading_while_autodip_is_on_leaves_an_ordinary_shell(dip: TerminalShell, plain: Any) -> None:
    dip.do("%autodip on")
    dip.do("%unload_ext ddip")
    try:
        assert dip.do("here = 41 + 1").error is None and dip.names["here"] == 42
    finally:
        dip.do("%load_ext ddip")
    assert plain.run("'here' in globals()")[0].value is False


# ---- %makedip


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
    shell.magics.group = None
    assert "group other" in shell.do("%makedip -i --name other").out
    assert "other" in shell.do("%makedip -i").out, "info without a group of this notebook lists those that run"
    assert "attached to group other" in shell.do("%makedip --attach other").out
    assert shell.do("%%dip\nprint(x)").out == "there\n"
    shell.do("%makedip -k --name other")
    assert ddip.groups() == []


def test_attach_without_a_name_joins_this_notebooks_group(shell: TerminalShell) -> None:
    shell.do("%makedip -n 2")
    shell.do("%%dip\nx = 7")
    shell.magics.group = None
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


def test_help_is_printed_not_raised(shell: TerminalShell) -> None:
    for line, flags in (
        ("%makedip -h", ["--workers", "--attach"]),
        ("%makedip --help", ["--gpus"]),
        ("%%dip -h\npass", ["--ranks"]),
        ("%dip -h", ["--ranks"]),
    ):
        text = shell.do(line).out
        assert all(flag in text for flag in flags), text
    assert ddip.groups() == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%makedip --nme x", ["--nme", "did you mean --name"]),
        ("%makedip --wrokers 2", ["--wrokers", "did you mean --workers"]),
        ("%makedip -n 0", ["-n 0", "1"]),
        ("%makedip -n -1", ["-n", "-1"]),
        ("%makedip -n 1e9", ["-n 1e9"]),
        ("%makedip -n 1000000000", ["-n 1000000000"]),
        ("%makedip -n", ["-n"]),
        ("%makedip -n two", ["-n two"]),
        ("%makedip -g x", ["-g x"]),
        ("%makedip --hosts a,b", ["--hosts", "later"]),
        ("%makedip -H a,b", ["-H", "later"]),
        ("%makedip --slurm", ["--slurm", "later"]),
        ("%makedip -a fastai", ["-a fastai", "later"]),
        ("%makedip --app fastai", ["--app fastai", "later"]),
        ("%makedip --backend nccl", ["--backend nccl", "later", "gloo"]),
        ("%makedip --backend glo", ["--backend glo", "gloo"]),
        ("%makedip --start frok", ["--start frok", "fork"]),
        ("%makedip --on-exit maybe", ["--on-exit maybe", "keep"]),
        ("%makedip --env NOTHING", ["--env NOTHING", "K=V"]),
        ("%makedip --env RANK=3", ["RANK"]),
        ("%makedip --name ../etc", ["--name", "../etc"]),
        ("%makedip --name ''", ["--name"]),
        ("%makedip -t -5", ["-t -5"]),
        ("%makedip --master-port 99999", ["--master-port 99999"]),
        ("%makedip -k -n 2", ["-k", "-n"]),
        ("%makedip -k -i", ["-k", "-i"]),
        ("%makedip workers", ["workers"]),
        ("%makedip --attach nobody", ["nobody"]),
        ("%makedip 'unfinished", ["cannot read"]),
        ("%autodip maybe", ["maybe", "on or off"]),
        ("%autodip off now", ["now"]),
        ("%autodip on --ranks 0", ["-a"]),
        ("%autodip on -a '--nope'", ["--nope"]),
        ("%autodip on", ["no group here"]),
        ("%dipush", ["which variables"]),
        ("%dipush nothing_there", ["nothing_there", "no such variable"]),
        ("%dipull", ["which variables"]),
        ("%dipull x", ["no group here"]),
        ("%dipull x -r", ["-r"]),
        ("%dipull x --all", ["--all", "-r RANK|all"]),
        ("%dipper", ["one variable name"]),
        ("%dipper 1x", ["1x"]),
        ("%dipper a b", ["a b"]),
        ("%dipper group", ["no group here"]),
        ("%diplog x", ["x"]),
        ("%diplog 1 2", ["1 2"]),
        ("%diplog", ["no journal"]),
        ("%dipwhy", ["no group here"]),
        ("%dip", ["%%dip"]),
        ("%dip x = 1", ["%%dip"]),
        ("%%dip\n1", ["no group here", "%makedip"]),
        ("%%dip --raks 0\n1", ["--raks", "did you mean --ranks"]),
        ("%%dip nowhere\n1", ["nowhere", "remote|local|everywhere"]),
        ("%%dip remote local\n1", ["local"]),
        ("%%dip --to everywhere\n1", ["--to everywhere", "both"]),
        ("%%dip local --ranks 0\n1", ["--ranks", "local"]),
        ("%%dip --out 1x\n1", ["--out 1x"]),
        ("%%dip --async 1x\n1", ["--async 1x"]),
        ("%%dip --async a --out b\n1", ["--async", "--out"]),
        ("%%dip -q --see 0\n1", ["-q", "--see"]),
        ("%%dip --check x\n1", ["--check", "later"]),
        ("%%dip -a f\n1", ["-a", "later"]),
        ("%%dip --ranks 1-\n1", ["1-"]),
    ],
)
def test_bad_input_is_one_line_that_names_what_and_what_was_expected(
    shell: TerminalShell, home: Any, line: str, words: list[str]
) -> None:
    text = shell.run(line).usage_error()
    assert all(word in text for word in words), text
    assert processes.of_runtime(str(home)) == [], "a refused request starts nothing"


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


@pytest.mark.parametrize(
    "line", ["%%dip --ranks 2\n1", "%%dip --see 5\n1", "%%dip --ranks 0,0\n1", "%dipull r -r 9", "%dipull r -r 0,1"]
)
def test_ranks_that_are_not_there_are_refused(dip: TerminalShell, line: str) -> None:
    dip.run(line).usage_error()
    assert dip.do("%%dip\nprint('next')").out == "next\n"


# ---- %%dip: where


def test_a_variable_exists_exactly_where_its_cell_ran(dip: TerminalShell, plain: Any) -> None:
    dip.do("%%dip\na = 1")
    dip.do("%%dip remote\nb = 1")
    dip.do("%%dip local\nc = 1")
    dip.do("%%dip everywhere\nd = 1")
    dip.do("%%dip --ranks 1\ne = 1")
    here = [name for name in "abcde" if name in dip.names]
    there = [result.value for result in plain.run("''.join(name for name in 'abcde' if name in globals())")]
    assert (here, there) == (["c", "d"], ["abd", "abde"])


def test_the_older_spelling_of_the_place_works(dip: TerminalShell, plain: Any) -> None:
    dip.do("%%dip --to remote\na = 1")
    dip.do("%%dip --to local\nb = 1")
    dip.do("%%dip --to both\nc = 1")
    assert [name for name in "abc" if name in dip.names] == ["b", "c"]
    assert [result.value for result in plain.run("''.join(name for name in 'abc' if name in globals())")] == [
        "ac",
        "ac",
    ]


def test_everywhere_runs_here_first_and_stops_if_that_fails(dip: TerminalShell, plain: Any) -> None:
    said = dip.do("%%dip everywhere\nimport os; print('in', os.environ.get('RANK', 'notebook'))")
    assert said.out.splitlines() == ["in notebook", "[0] in 0", "[1] in 1"]
    failed = dip.run("%%dip everywhere\nsent = 1\nraise ValueError('here')")
    assert (
        failed.error is not None
        and "not sent to the workers" in failed.text
        and failed.text.count("ValueError: here") == 1
    )
    assert plain.run("'sent' in globals()")[0].value is False


def test_local_errors_are_the_notebooks_own(dip: TerminalShell) -> None:
    failed = dip.run("%%dip local\n1/0")
    assert failed.error is not None and "ZeroDivisionError" in failed.text
    assert "not sent" not in failed.text, "a local cell was never meant for the workers"


def test_ranks_choose_who_runs(dip: TerminalShell) -> None:
    assert dip.do("%%dip --ranks 1\nprint(r)").out == "1\n"
    assert dip.do("%%dip --ranks 0-1\nprint(r)").out == "[0] 0\n[1] 1\n"
    assert dip.do("%%dip --ranks all\nprint('both')").out == "both\n"


# ---- %%dip: output


def test_what_all_ranks_said_is_shown_once_and_differences_by_rank(dip: TerminalShell) -> None:
    said = dip.do("%%dip\nprint('same'); print('mine', r); print('end')")
    assert said.out.splitlines() == ["same", "[0] mine 0", "[1] mine 1", "end"]


def test_the_value_of_the_last_expression_is_shown(dip: TerminalShell) -> None:
    assert dip.do("%%dip\n40 + 2").out == "42\n"
    assert dip.do("%%dip\n40 + r").out == "[0] 40\n[1] 41\n"
    assert dip.do("%%dip\n40 + 2;").out == ""
    assert dip.do("%%dip\nNone").out == ""


def test_out_and_underscore_hold_the_last_value_on_the_worker(dip: TerminalShell) -> None:
    # Other tests share these workers, and a `for _ in …` of theirs makes _ the user's own, which IPython respects.
    dip.do("%%dip\nfor name in ('_', '__', '___'): globals().pop(name, None)")
    dip.do("%%dip\n'kept' + str(r)")
    assert dip.do("%%dip\nprint(_)").out == "[0] kept0\n[1] kept1\n"


def test_see_chooses_whose_output_is_shown(dip: TerminalShell, plain: Any) -> None:
    assert dip.do("%%dip --see 1\nprint('seen', r); ran = 1").out == "seen 1\n"
    assert dip.do("%%dip -S 0\nprint('seen', r)").out == "seen 0\n"
    assert dip.do("%%dip --see all\nprint('seen', r)").out == "[0] seen 0\n[1] seen 1\n"
    assert [result.value for result in plain.run("ran")] == [1, 1], "it ran on both all the same"


def test_quiet_shows_nothing_but_errors(dip: TerminalShell) -> None:
    assert dip.do("%%dip -q\nprint('x'); 42").text == ""
    failed = dip.run("%%dip --quiet\nprint('x'); 1/0")
    assert "ZeroDivisionError" in failed.text and "x\n" not in failed.out.splitlines()


def test_plain_shows_every_line_with_its_rank(dip: TerminalShell) -> None:
    said = dip.do("%%dip --plain\nprint('same'); print('part', end='')")
    assert sorted(said.out.splitlines()) == ["[0] part", "[0] same", "[1] part", "[1] same"]
    assert sorted(dip.do("%%dip --plain --see 1\nprint('one'); r").out.split()) == ["1", "[1]", "[1]", "one"]


def test_plain_keeps_only_the_newest_frame_of_a_bar(dip: TerminalShell) -> None:
    said = dip.do("%%dip --plain --ranks 0\nfor i in range(1000): print(f'\\rframe {i}', end='')\nprint()")
    assert said.out == "[0] frame 999\n"


def test_a_line_with_unusual_separators_keeps_one_prefix(dip: TerminalShell) -> None:
    said = dip.do("%%dip --plain --ranks 1\nprint('a\\x0bb\\x0cc\\u2028d\\x85e')")
    assert said.out == "[1] a\x0bb\x0cc\u2028d\x85e\n"


def test_errors_go_to_stderr_of_the_terminal(dip: TerminalShell) -> None:
    said = dip.do("%%dip\nprint('one'); print('two', file=sys.stderr)")
    assert (said.out, said.err) == ("one\n", "two\n")


def test_verbose_gives_time_and_memory_of_each_rank(dip: TerminalShell) -> None:
    lines = dip.do("%%dip -v\nblock = bytearray(64 << 20)").out.splitlines()
    assert len(lines) == 2
    for rank, line in enumerate(lines):
        assert line.startswith(f"rank {rank}: ") and " s, memory " in line and "peak" in line, line
        assert 60 < float(line.partition("(+")[2].partition(")")[0]) < 80, line


def test_out_binds_the_results_in_rank_order(dip: TerminalShell) -> None:
    dip.do("%%dip --out results\nprint('said', r)\n10 * r")
    assert [(result.rank, result.value, result.stdout) for result in dip.names["results"]] == [
        (0, 0, "said 0\n"),
        (1, 10, "said 1\n"),
    ]
    dip.do("%%dip --out results --ranks 1\nr")
    assert [result.rank for result in dip.names["results"]] == [1]


def test_rich_values_have_their_text_on_a_terminal(dip: TerminalShell) -> None:
    said = dip.do("%%dip\nfrom IPython.display import HTML, display\ndisplay(HTML('<b>x</b>'))")
    assert said.out == "<IPython.core.display.HTML object>\n"


def test_a_cell_may_use_magics_shell_commands_and_await(dip: TerminalShell) -> None:
    assert dip.do("%%dip\n!echo from the shell").out == "from the shell\n"
    assert dip.do("%%dip\nnames = !echo one; echo two\nprint(names)").out == "['one', 'two']\n"
    assert "Wall time" in dip.do("%%dip\n%time 1 + 1").out
    assert dip.do("%%dip\n%%bash\necho from bash").out == "from bash\n"
    assert dip.do("%%dip\nimport asyncio\nawait asyncio.sleep(0)\nprint('awaited')").out == "awaited\n"
    assert dip.do("%%dip\nasync def f():\n    return 5\nawait f()").out == "5\n"


# ---- %%dip: failures


def test_one_failing_rank_raises_and_is_named_first(dip: TerminalShell, plain: Any) -> None:
    failed = dip.run("%%dip\nkept = 1\nif r == 1:\n    raise ValueError('boom')")
    assert failed.error is not None and type(failed.error).__name__ == "CellFailed"
    assert failed.text.lstrip().startswith("rank 1 (1 of 2 ranks):"), failed.text
    assert "ValueError: boom" in failed.text and "raise ValueError" in failed.text
    assert "/ddip/" not in failed.text, f"no frame of ours:\n{failed.text}"
    assert [result.value for result in plain.run("kept")] == [1, 1]
    assert dip.do("%%dip\nprint('next')").out == "next\n"


def test_the_error_itself_is_one_line_for_programs(dip: TerminalShell) -> None:
    failed = dip.run("%%dip\nif r == 1:\n    raise ValueError('boom')")
    assert "\n" not in str(failed.error) and "rank 1" in str(failed.error) and "ValueError: boom" in str(failed.error)


def test_equal_tracebacks_are_shown_once(dip: TerminalShell) -> None:
    failed = dip.run("%%dip\n1/0")
    assert failed.text.count("ZeroDivisionError: division by zero") == 1 and "2 of 2 ranks" in failed.text


def test_different_tracebacks_are_shown_each_with_its_rank(dip: TerminalShell) -> None:
    failed = dip.run("%%dip\nraise ValueError(f'mine is {r}')")
    assert "mine is 0" in failed.text and "mine is 1" in failed.text and failed.text.count("1 of 2 ranks") == 2


def test_the_output_before_a_failure_is_shown(dip: TerminalShell) -> None:
    failed = dip.run("%%dip\nprint('before')\n1/0")
    assert failed.text.index("before") < failed.text.index("ZeroDivisionError")


def test_syntax_errors_point_at_the_line(dip: TerminalShell) -> None:
    failed = dip.run("%%dip\nx = 1\ndef f(:\n")
    assert "SyntaxError" in failed.text and "def f(:" in failed.text and "/ddip/" not in failed.text


def test_a_dead_rank_is_named_with_its_last_lines(shell: TerminalShell) -> None:
    shell.do("%makedip -n 2")
    failed = shell.run(
        "%%dip\nimport os, signal\nprint('last words', flush=True)\nif os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert "rank 1 is lost" in failed.text and "last words" in failed.text
    assert "Traceback" not in failed.text


def test_input_without_a_front_end_fails_with_a_word(dip: TerminalShell, monkeypatch: Any) -> None:
    import io

    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    failed = dip.run("%%dip --ranks 1\ninput('name? ')")
    assert "input()" in failed.text and "/ddip/" not in failed.text, failed.text
    assert dip.do("%%dip\nprint('next')").out == "next\n"


def test_input_on_one_rank_is_asked_here(dip: TerminalShell, monkeypatch: Any) -> None:
    asked = []
    monkeypatch.setattr("builtins.input", lambda prompt="": asked.append(prompt) or "Ada")
    assert dip.do("%%dip --ranks 1\nprint('hello', input('name? '))").out == "hello Ada\n"
    assert asked == ["[1] name? "]


def test_debug_after_an_error_walks_the_failed_frame_of_one_rank(dip: TerminalShell, monkeypatch: Any) -> None:
    dip.run("%%dip\ndef broken(secret):\n    return 1 / 0\nbroken(f'of rank {r}')")
    answers = iter(["p secret", "q"])
    monkeypatch.setattr("builtins.input", lambda prompt="": next(answers))
    assert "of rank 1" in dip.do("%%dip --ranks 1\n%debug").out


def test_after_a_debugger_stop_still_ends_a_cell(dip: TerminalShell, monkeypatch: Any) -> None:
    answers = iter(["c", "c"])
    monkeypatch.setattr("builtins.input", lambda prompt="": next(answers))
    dip.do("%%dip --ranks 1\nbreakpoint()\npass")
    dip.do("%%dip --ranks 1\nimport pdb; pdb.set_trace()\npass")
    dip.do("%%dip --async job --ranks 1\nprint('in'); time.sleep(600)")
    wait_until(lambda: (1, "in") in dip.names["job"]._lines, 20, "rank 1 sleeps")
    dip.names["job"].cancel()
    assert dip.names["job"].wait(10) and dip.names["job"].status == "interrupted"


def test_breakpoint_stops_one_rank_for_questions(dip: TerminalShell, monkeypatch: Any) -> None:
    answers = iter(["p 'seen ' + str(r)", "c"])
    monkeypatch.setattr("builtins.input", lambda prompt="": next(answers))
    said = dip.do("%%dip\nif r == 1:\n    breakpoint()\nprint('over')")
    assert "seen 1" in said.out and "over" in said.out


# ---- %%dip --async


def test_async_returns_at_once_and_binds_a_cell(dip: TerminalShell, tmp_path: Any) -> None:
    gate = tmp_path / "gate"
    with Stopwatch() as watch:
        said = dip.do(
            f"%%dip --async job\nimport time, os\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\nprint('through'); r"
        )
    assert watch.seconds < 5 and "job" in said.out
    job = dip.names["job"]
    assert job.status == "running" and not job.done() and not job.wait(0.05)
    gate.touch()
    assert job.wait(20) and job.status == "done" and [result.value for result in job.results()] == [0, 1]


def test_async_can_be_cancelled(dip: TerminalShell) -> None:
    dip.do("%%dip --async job\nimport time\nprint('in')\ntime.sleep(600)")
    job = dip.names["job"]
    wait_until(lambda: {(0, "in"), (1, "in")} <= set(job._lines), 20, "both ranks sleep")
    job.cancel()
    assert job.wait(10) and job.status == "interrupted"
    assert dip.do("%%dip\nprint(r)").out == "[0] 0\n[1] 1\n"


def test_async_without_a_name_and_with_a_failure_shows_it(dip: TerminalShell) -> None:
    dip.do("%%dip --async job\n1/0")
    assert dip.names["job"].wait(20) and dip.names["job"].status == "failed"
    with pytest.raises(ddip.RankError):
        dip.names["job"].results()
    assert "cell" in dip.do("%%dip --async\npass").out


# ---- %autodip


def test_autodip_sends_plain_cells_and_off_restores(dip: TerminalShell, plain: Any) -> None:
    assert dip.do("%autodip").out == "autodip is off\n"
    assert "on" in dip.do("%autodip on").out
    dip.do("there = 1")
    dip.do("%%dip local\nhere = 1")
    dip.do("%%dip --ranks 1\none = 1")
    assert "on" in dip.do("%autodip").out
    dip.do("%autodip off")
    dip.do("after = 1")
    assert [name for name in ("there", "here", "one", "after") if name in dip.names] == ["here", "after"]
    expression = "[name for name in ('there', 'here', 'one', 'after') if name in globals()]"
    assert [result.value for result in plain.run(expression)] == [["there"], ["there", "one"]]


def test_autodip_arguments_apply_to_every_cell(dip: TerminalShell) -> None:
    dip.do('%autodip on -a "--ranks 1"')
    assert dip.do("print('rank', r)").out == "rank 1\n"
    assert "--ranks 1" in dip.do("%autodip").out
    assert dip.do("%%dip\nprint('rank', r)").out == "[0] rank 0\n[1] rank 1\n"
    dip.do("%autodip on")
    assert dip.do("print('both')").out == "both\n"


def test_under_autodip_our_magics_work_and_others_run_there(dip: TerminalShell) -> None:
    dip.do("%autodip on")
    assert dip.do("!echo $RANK").out == "[0] 0\n[1] 1\n"
    assert "Wall time" in dip.do("%%time\ntime.sleep(0.001)").out
    assert "Wall time" in dip.do("%time 1 + 1").out
    assert dip.do("%env RANK").out.splitlines() == ["[0] '0'", "[1] '1'"]
    dip.do("value = [1, 2]")
    assert "list" in dip.do("value?").out
    assert "2 CPU workers" in dip.do("%makedip -i").out
    assert "idle" in dip.do("%dipwhy").out
    dip.do("%dipull value")
    assert dip.names["value"] == [1, 2]
    dip.do("# a comment first\n\n%dipull value -r all")
    assert dip.names["value"] == [[1, 2], [1, 2]]
    assert dip.do("").text == "" and dip.do("   \n\n").text == ""


def test_under_autodip_a_cell_may_begin_with_a_magic_line(dip: TerminalShell) -> None:
    dip.do("%autodip on")
    assert dip.do("%env WHERE=there\nprint('after', os.environ['WHERE'], r)").out.splitlines()[-2:] == [
        "[0] after there 0",
        "[1] after there 1",
    ]
    assert "WHERE" not in os.environ


def test_everywhere_under_autodip_runs_once_here_and_once_there(dip: TerminalShell) -> None:
    dip.do("%autodip on")
    assert dip.do("%%dip everywhere\nprint('once')").out == "once\nonce\n"


def test_a_failing_local_cell_keeps_autodip_on(dip: TerminalShell) -> None:
    dip.do("%autodip on")
    dip.run("%%dip local\n1/0")
    assert dip.do("print(r)").out == "[0] 0\n[1] 1\n"


# ---- completion and inspection


def completions(dip: TerminalShell, text: str) -> list[str]:
    return list(dip.shell.complete(text, text, len(text))[1])


def test_tab_sees_the_workers_names_under_autodip_only(dip: TerminalShell) -> None:
    dip.do("%%dip\nonly_on_workers = {'alpha': 1}")
    assert completions(dip, "only_on_w") == []
    dip.do("%autodip on")
    assert completions(dip, "only_on_w") == ["only_on_workers"]
    assert "only_on_workers.items" in completions(dip, "only_on_workers.ite")
    dip.do("%autodip off")
    assert completions(dip, "only_on_w") == []


def test_tab_does_not_wait_for_a_busy_rank(dip: TerminalShell, tmp_path: Any) -> None:
    dip.do("%autodip on")
    gate = tmp_path / "gate"
    dip.do(
        f"%%dip --async job\nimport os, time\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.01)\nfinished = 1"
    )
    with Stopwatch() as watch:
        assert completions(dip, "only_on_w") == []
    assert watch.seconds < 2
    gate.touch()
    assert dip.names["job"].wait(20) and dip.names["job"].status == "done", (
        "completion does not disturb the running cell"
    )


def test_inspection_sees_the_workers_objects_under_autodip(dip: TerminalShell) -> None:
    dip.do("%%dip\ndef there(a, b=2):\n    'Says what it does.'\n    return a")
    dip.do("%autodip on")
    assert "Says what it does." in dip.shell.object_inspect_mime("there")["text/plain"]
    assert "return a" in plain_text(dip.shell.object_inspect_mime("there", detail_level=1)["text/plain"])
    assert "Says what it does." in dip.do("there?").out
    assert "return a" in dip.do("there??").out


# ---- values


def test_push_and_pull_move_values(dip: TerminalShell, plain: Any) -> None:
    dip.do("a, b, double = [1, 2], {'k': 'v'}, lambda x: 2 * x")
    dip.do("%dipush a b double")
    assert [result.value for result in plain.run("(a, b, double(r))")] == [
        ([1, 2], {"k": "v"}, 0),
        ([1, 2], {"k": "v"}, 2),
    ]
    dip.do("%%dip\nmine = 'of ' + str(r); a.append(r)")
    dip.do("%dipull mine a")
    assert dip.names["mine"] == "of 0" and dip.names["a"] == [1, 2, 0]
    dip.do("%dipull mine -r 1")
    assert dip.names["mine"] == "of 1"
    dip.do("%dipull -r all mine a")
    assert dip.names["mine"] == ["of 0", "of 1"] and dip.names["a"] == [[1, 2, 0], [1, 2, 1]]


def test_the_older_spelling_of_push_and_pull_works(dip: TerminalShell, plain: Any) -> None:
    dip.do("a, b = 1, 2")
    dip.do("%dip --push a b")
    assert plain.run("a + b")[1].value == 3
    dip.do("%%dip\nc = r + 5")
    dip.do("%dip --pull c -r 1")
    assert dip.names["c"] == 6


def test_what_cannot_travel_is_named(dip: TerminalShell, plain: Any) -> None:
    dip.do("import threading\ngood, bad = 1, threading.Lock()")
    text = dip.run("%dipush good bad").usage_error()
    assert "'bad'" in text and "lock" in text
    assert plain.run("'good' in globals()")[0].value is False, "all or nothing"
    dip.do("%%dip\nimport threading; stays = threading.Lock()")
    text = dip.run("%dipull stays").usage_error()
    assert "lock" in text and "rank 0" in text, text


def test_pull_of_an_unknown_name_names_it(dip: TerminalShell) -> None:
    assert "nothing_there" in dip.run("%dipull nothing_there").usage_error()


def test_dipper_binds_the_live_group(dip: TerminalShell, plain: Any) -> None:
    dip.do("%dipper workers")
    assert dip.names["workers"] is plain
    assert dip.do("workers.call(lambda x: x + 1, 1)").value == [2, 2]


# ---- looking


def test_diplog_replays_the_journal_each_line_with_its_rank(shell: TerminalShell) -> None:
    shell.do("%makedip -n 2")
    shell.do("%%dip\nimport os; r = int(os.environ['RANK']); print('first', r)")
    shell.do("%%dip -q\nprint('second'); print('no newline', end='')")
    shell.run("%%dip\n1/0")
    everything = shell.do("%diplog").out
    for line in ("[0] first 0", "[1] first 1", "[0] second", "[1] no newline", "ZeroDivisionError"):
        assert line in everything, everything
    second = shell.do("%diplog 2").out
    assert "second" in second and "first" not in second
    assert "no cell 99" in shell.do("%diplog 99").out


def test_diplog_shows_what_a_bar_came_to(shell: TerminalShell) -> None:
    shell.do("%makedip -n 1")
    shell.do("%%dip\nimport sys\nfor i in range(5): print(f'\\rframe {i}', end='')\nprint('\\nafter')")
    assert shell.do("%diplog 1").out.splitlines()[1:] == ["[0] frame 4", "[0] after"]


def test_diplog_still_reads_a_stopped_groups_journal(shell: TerminalShell) -> None:
    shell.do("%makedip -n 1")
    shell.do("%%dip\nprint('kept')")
    shell.do("%makedip -k")
    assert "[0] kept" in shell.do("%diplog").out


def test_dipwhy_tells_who_is_where(dip: TerminalShell, plain: Any) -> None:
    assert [line[:12] for line in dip.do("%dipwhy").out.splitlines()] == ["rank 0: idle", "rank 1: idle"]
    dip.do("%%dip --async job\nimport time\nif r == 1:\n    print('in')\n    time.sleep(600)")
    wait_until(lambda: "time.sleep" in dip.do("%dipwhy").out or "line 4" in dip.do("%dipwhy").out, 20, "rank 1's line")
    assert "rank 0: idle" in dip.do("%dipwhy").out
    dip.names["job"].cancel()
    assert dip.names["job"].wait(10)


# ---- what a client has not seen


def test_attaching_shows_what_this_client_missed_once(shell: TerminalShell) -> None:
    shell.do("%makedip -n 2")
    shell.do("%%dip\nprint('seen before')")
    other = ddip.attach(default_name(), "somebody-else")
    other.run("print('said meanwhile')")
    shell.magics.group = None
    lines = shell.do("%makedip --attach " + default_name()).out.splitlines()
    assert lines.count("said meanwhile") == 1 and not any("seen before" in line for line in lines), lines
    assert "said meanwhile" not in shell.do("%makedip").out


# ---- Ctrl-C and a real terminal


def test_in_a_real_terminal_ctrl_c_ends_the_cell_and_keeps_everything(home: Any) -> None:
    with Terminal() as terminal:
        terminal.type("%load_ext ddip")
        terminal.type("%makedip -n 2 --on-exit stop")
        terminal.read_until("2 CPU workers")
        terminal.type_cell(
            "%%dip", "import os, time; kept = 5; print('pid', os.getpid())", "while True: time.sleep(0.01)"
        )
        text = terminal.read_until("[1] pid ")
        pids = processes.of_runtime(str(home))
        with Stopwatch() as watch:
            terminal.interrupt()
            text += terminal.read_until("interrupted on rank")
        assert watch.seconds < 5
        terminal.type_cell("%%dip", "print('still', 1 + kept)")
        terminal.read_until("still 6")
        assert processes.of_runtime(str(home)) == pids
        assert "Traceback" not in text and "magics.py" not in text, text
        terminal.type("%makedip -k")
        terminal.read_until("stopped")


def test_in_a_real_terminal_a_second_press_replaces_the_rank_that_will_not_stop(home: Any) -> None:
    with Terminal() as terminal:
        terminal.type("%load_ext ddip")
        terminal.type("%makedip -n 2 --on-exit stop")
        terminal.read_until("2 CPU workers")
        deaf = "if r == 1: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT]); print('d' 'eaf'); ctypes.CDLL(None).sleep(600)"
        terminal.type_cell("%%dip", "import ctypes, os, signal; r = int(os.environ['RANK']); kept = r", deaf)
        terminal.read_until("deaf")
        terminal.interrupt()
        text = terminal.read_until("to replace the stuck ranks")
        assert "rank 1" in text and "goes on" in text
        terminal.type_cell("%%dip", "print('queued')")
        assert "stop replaces rank 1" in terminal.read_until("by empty ones")
        terminal.interrupt()
        terminal.read_until("second press")
        terminal.read_until("In [")
        terminal.type_cell("%%dip", "print('k' 'ept', globals().get('kept'))")
        assert "[0] kept 0" in terminal.read_until("[1] kept None")
        terminal.type("%makedip -k")
        terminal.read_until("stopped")


def test_the_group_outlives_the_terminal_and_is_found_again(home: Any) -> None:
    environment = {"JPY_SESSION_NAME": os.path.join(str(home), "work.ipynb")}
    with Terminal(environment) as terminal:
        terminal.type("%load_ext ddip")
        terminal.type("%makedip -n 2")
        terminal.read_until("outlives this kernel")
        terminal.type_cell("%%dip", "kept = 'since the first'; print('s' 'aved')")
        terminal.read_until("saved")
    with Terminal(environment) as terminal:
        terminal.type("%load_ext ddip")
        terminal.type_cell("%%dip", "print('k' 'ept', kept)")
        terminal.read_until("kept since the first")
        terminal.type("%makedip -k")
        terminal.read_until("stopped")


def test_in_a_real_terminal_autodip_wants_no_more_keys_than_python(home: Any) -> None:
    with Terminal() as terminal:
        terminal.type("%load_ext ddip")
        terminal.type("%makedip -n 2 --on-exit stop")
        terminal.type("%autodip on")
        terminal.read_until("autodip is on")
        terminal.type("print('one ' + 'line')")
        terminal.read_until("one line")
        terminal.type("for i in range(2):")
        terminal.type("    print('loop', i)")
        terminal.type("")
        terminal.read_until("loop 1")
        terminal.type("%makedip -k")
        terminal.read_until("stopped")
