"""The magics in an IPython without a kernel: what a terminal user types and reads (I6, I7, I10, I12, I14–I20, I23). Here:
loading, help, refusals, values and the journal; test_makedip.py, test_dip.py, test_autodip.py and test_terminal.py have the
rest. What only a kernel can show is in test_notebook.py, what only a browser can in test_lab.py."""

from __future__ import annotations

from typing import Any

import pytest
from lab.shell import TerminalShell
from support import processes
from support.waiting import wait_until

import ddip

pytest.importorskip("IPython", reason="the magics need IPython")


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
        ours = [one for one in transformers if one.__module__.startswith("ddip.")]
        assert ours and shell.input_transformers_cleanup == [one for one in transformers if one not in ours]
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


# ---- help and refusals


def test_help_is_printed_not_raised(shell: TerminalShell) -> None:
    for line, flags in (
        ("%makedip -h", ["--workers", "--attach"]),
        ("%makedip --help", ["--gpus"]),
        ("%%dip -h\npass", ["--ranks"]),
        ("%%dip -h", ["--ranks"]),
        ("%%dip --help\n\n", ["--ranks"]),
        ("%dip -h", ["--ranks"]),
        ("%autodip -h", ["%autodip on", "%autodip off", "--args"]),
        ("%dipush --help", ["%dipush x"]),
        ("%dipull -h", ["%dipull x", "-r all", "--rank"]),
        ("%dipull x --help", ["%dipull x", "-r all"]),
        ("%dipper -h", ["%dipper group"]),
        ("%diplog -h", ["%diplog 4", "%diplog last"]),
        ("%dipwhy -h", ["%dipwhy"]),
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
        ("%makedip -a fastia", ["-a fastia", "none|fastai", "did you mean fastai"]),
        ("%makedip --app keras", ["--app keras", "none|fastai"]),
        ("%makedip --backend mpi", ["--backend mpi", "mpirun", "gloo"]),
        ("%makedip -n 2 --backend nccl", ["--backend nccl", "GPU for each worker", "none"]),
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
        ("%makedip --ranks 1", ["--ranks 1", "-r"]),
        ("%makedip -r --ranks 1 -n 2", ["--ranks", "-n"]),
        ("%makedip -r --ranks x", ["--ranks", "x"]),
        ("%makedip -r --ranks 1", ["no group here"]),
        ("%makedip --rebuild", ["no group here"]),
        ("%makedip --rebuild -k", ["--rebuild", "-k"]),
        ("%autodip maybe", ["maybe", "on or off"]),
        ("%autodip off now", ["now"]),
        ("%autodip on --ranks 0", ["-a"]),
        ("%autodip on -a '--nope'", ["--nope"]),
        ("%autodip on", ["no group here"]),
        ("%dipush", ["which variables"]),
        ("%dipush nothing_there", ["nothing_there", "no such variable"]),
        ("%dipush t, a", ["t, a", "did you mean %dipush t a?"]),
        ("%dipull", ["which variables"]),
        ("%dipull t,a -r all", ["t,a", "did you mean %dipull t a?"]),
        ("%dipull x", ["no group here"]),
        ("%dipull x -r", ["-r"]),
        ("%dipull x --all", ["--all", "-r RANK|all"]),
        ("%dipper", ["one variable name"]),
        ("%dipper 1x", ["1x"]),
        ("%dipper a b", ["a b"]),
        ("%dipper group", ["no group here"]),
        ("%diplog x", ["x", "last"]),
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
        ("%%dip --check x,,y\n1", ["--check x,,y", "names of Python variables"]),
        ("%%dip -a 'f g'\n1", ["-a 'f g'", "name"]),
        ("%%dip --ranks 1-\n1", ["1-"]),
    ],
)
def test_bad_input_is_one_line_that_names_what_and_what_was_expected(
    shell: TerminalShell, home: Any, line: str, words: list[str]
) -> None:
    text = shell.run(line).usage_error()
    assert all(word in text for word in words), text
    assert processes.of_runtime(str(home)) == [], "a refused request starts nothing"


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
    assert "'stays'" in text and "lock" in text and "rank 0" in text, text


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
    assert "ZeroDivisionError" in shell.do("%diplog last").out and "second" not in shell.do("%diplog last").out


def test_diplog_of_a_flood_shows_the_newest_lines_and_the_way_to_the_rest(shell: TerminalShell) -> None:
    shell.do("%makedip -n 1")
    shell.do("%%dip -q\nfor i in range(20_000): print('line', i)")
    for line in ("%diplog", "%diplog 1", "%diplog last"):
        said = shell.do(line).out
        marker, headline, *lines = said.splitlines()
        assert len(said) < 500_000 and lines == [f"[0] line {i}" for i in range(15_000, 20_000)], said[:1000]
        assert "15001 lines left out" in marker and "ddip log " in marker and headline.startswith("--- cell 1 "), marker
    shell.do("%%dip -q\nprint('x' * 1_000_000); print('end')")
    assert len(shell.do("%diplog").out) < 500_000 and shell.do("%diplog last").out.endswith("[0] end\n")


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
