"""%autodip: which cells go to the workers, and Tab and ? while it is on."""

from __future__ import annotations

import os
from typing import Any

import pytest
from lab.shell import TerminalShell, plain_text
from support.waiting import Stopwatch

pytest.importorskip("IPython", reason="the magics need IPython")


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


def test_our_magics_in_the_middle_of_a_cell_run_here_and_the_code_around_them_there(
    dip: TerminalShell, plain: Any
) -> None:
    dip.do("%%dip local\nsent = 5")
    dip.do("%autodip on")
    said = dip.do("mine = 10 + r\nmine\n%dipull mine -r all\n\n# a comment\n%dipush \\\n  sent\nsent + r\n")
    assert said.out == "[0] 5\n[1] 6\n", "only the cell's last line has a value"
    assert dip.names["mine"] == [10, 11]
    assert dip.do("%%dip\n!echo there\nsecond = 'x'\n%dipull second").out == "there\n", "so it is under %%dip"
    assert dip.names["second"] == "x"
    assert "dipull NAMES" not in dip.do('text = """\n%dipull\n"""\nprint(len(text))').out, "text is text"
    assert "variables of every worker" in dip.do("%dipush?").out


def test_a_failure_ends_a_cell_that_our_magics_cut_and_names_the_line(dip: TerminalShell, plain: Any) -> None:
    dip.do("%autodip on")
    failed = dip.run("a = 1\n%dipull nothing_there\nafter = 1")
    assert "nothing_there" in failed.usage_error()
    failed = dip.run("b = 1\n%dipull b\n\n1/0\nafter = 1")
    assert "ZeroDivisionError" in failed.text and "----> 4 1/0" in failed.text, failed.text
    broken = dip.run("unwanted = 1\n%dipull unwanted\ndef f(:\n")
    assert "SyntaxError" in broken.text
    assert plain.run("[name for name in ('after', 'unwanted') if name in globals()]")[0].value == []


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("unwanted = 1\nfor i in range(2):\n    %dipull unwanted", ["%dipull unwanted", "block"]),
        ("unwanted = 1\n%%dip local\nx = 1", ["%%dip local", "first line"]),
        ("%%dip --async job\nunwanted = 1\n%dipull unwanted", ["%dipull", "--async"]),
        ("%%dip --out result\nunwanted = 1\n%dipull unwanted", ["%dipull", "--out"]),
    ],
)
def test_a_magic_of_ours_where_a_cell_cannot_be_cut_is_refused_before_anything_runs(
    dip: TerminalShell, plain: Any, source: str, words: list[str]
) -> None:
    dip.do("%autodip on")
    text = dip.run(source).usage_error()
    assert all(word in text for word in words), text
    assert plain.run("'unwanted' in globals()")[0].value is False


def test_everywhere_runs_our_magics_once(dip: TerminalShell, plain: Any) -> None:
    said = dip.do("%%dip everywhere\nboth = 1\n%dipwhy\nboth = 2")
    assert said.out.count("rank 0: idle") == 1 and dip.names["both"] == 2 and plain.run("both")[1].value == 2


def test_everywhere_under_autodip_runs_once_here_and_once_there(dip: TerminalShell) -> None:
    dip.do("%autodip on")
    assert dip.do("%%dip everywhere\nprint('once')").out == "once\nonce\n"


def test_autodip_can_be_switched_in_a_local_cell(dip: TerminalShell) -> None:
    dip.do("%autodip on")
    dip.do("%%dip local\n%autodip off\nhere = 1")
    dip.do("after = 1")
    assert "here" in dip.names and "after" in dip.names
    dip.do("%%dip local\n%autodip on")
    assert dip.do("print(r)").out == "[0] 0\n[1] 1\n"


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
