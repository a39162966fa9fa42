"""%%dip: where a cell runs, what is shown of it, how it fails, and --async."""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

import pytest
from lab.shell import TerminalShell
from support.waiting import Stopwatch, wait_until

import ddip

pytest.importorskip("IPython", reason="the magics need IPython")


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


@pytest.mark.parametrize(
    "line", ["%%dip --ranks 2\n1", "%%dip --see 5\n1", "%%dip --ranks 0,0\n1", "%dipull r -r 9", "%dipull r -r 0,1"]
)
def test_ranks_that_are_not_there_are_refused(dip: TerminalShell, line: str) -> None:
    dip.run(line).usage_error()
    assert dip.do("%%dip\nprint('next')").out == "next\n"


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


def test_check_says_where_variables_differ_between_ranks(dip: TerminalShell) -> None:
    said = dip.do("%%dip --check same,numbers\nsame = [1, 'two', b'3']\nnumbers = {'a': 1, 'b': 10 * r}").out
    assert said.splitlines() == ["check: numbers['b'] differs: rank 0 | rank 1"]
    assert dip.do("%%dip --check same\nsame.append(4.0)").out == "check: same is the same on ranks 0-1\n"
    assert "UsageError: nothere: no such variable on the workers" in dip.run("%%dip --check nothere\n1").text


@pytest.mark.parametrize(
    ("value", "differs"),
    [("{r}", "x"), ("frozenset({1, (2, r)})", "x"), ("1 + r * 1j", "x"), ("[{'a': {r}}]", "x[0]['a']"), ("[] if r else ()", "x"),
     ("{str(n) for n in range(99)}", ""), ("2j", ""), ("[[[[r // 2]]]]", ""), ("{}", ""), ("[set(), (), [], {}, None, '\\ud800']", "")],
)  # fmt: skip
def test_check_compares_sets_complex_and_empty_values(dip: TerminalShell, value: str, differs: str) -> None:
    said = dip.do(f"%%dip --check x\nx = {value}").out
    expected = f"{differs} differs: rank 0 | rank 1" if differs else "x is the same on ranks 0-1"
    assert said == f"check: {expected}\n"


def test_check_says_what_it_did_not_compare(dip: TerminalShell) -> None:
    assert dip.do("%%dip --check f\ndef f(): return r").out == "check: not compared: f (function)\n"
    said = dip.do("%%dip --check x\nx = {'a': 1, 'f': object(), 'deep': [[[[r]]]], 'odd': {len}}").out
    assert said.splitlines() == [
        "check: x is the same on ranks 0-1, as far as compared",
        "check: not compared: x['deep'][0][0][0] (deeper than 4 levels), x['f'] (object), x['odd'] (set)",
    ]
    lines = dip.do("%%dip --check x\nx = [object(), r] * 30").out.splitlines()
    assert all(line.endswith("] differs: rank 0 | rank 1") for line in lines[:10]) and lines[10] == "check: and 20 more"
    assert lines[11].startswith("check: not compared: x[0] (object), ") and lines[11].endswith(", and 20 more")
    assert len(lines) == 12


def test_check_compares_an_optimizers_rates(torched: Any) -> None:
    torched.run(
        "import torch, ddip\no = torch.optim.Adam([torch.ones(2)], lr=0.1 * (1 + ddip.rank()), betas=(0.9, 0.99))"
    )
    assert torched.differing(["o"]) == {"o.param_groups[0]['lr']": [[0], [1]]}


def test_check_compares_models_and_optimizers_bit_by_bit(torched: Any) -> None:
    torched.run("""
import torch, ddip
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
optimizer = torch.optim.Adam(model.parameters())
model(torch.ones(2, 3)).sum().backward(); optimizer.step()
""")
    assert torched.differing(["model", "optimizer"]) == {}
    torched.run(
        "with torch.no_grad(): model[0].weight[0, 0] += 1e-6 * ddip.rank()\nmodel[1].running_mean += ddip.rank()"
    )
    assert torched.differing(["model"]) == {"model.0.weight": [[0], [1]], "model.1.running_mean": [[0], [1]]}


def test_out_binds_the_results_in_rank_order(dip: TerminalShell) -> None:
    dip.do("%%dip --out results\nprint('said', r)\n10 * r")
    assert [(result.rank, result.value, result.stdout) for result in dip.names["results"]] == [
        (0, 0, "said 0\n"),
        (1, 10, "said 1\n"),
    ]
    dip.do("%%dip --out results --ranks 1\nr")
    assert [result.rank for result in dip.names["results"]] == [1]


@pytest.mark.parametrize(("flags", "kept"), [("", ""), ("--out results", "[0] said\n"), ("-q", "")])
def test_what_is_shown_is_not_kept_as_well_unless_somebody_may_ask(
    dip: TerminalShell, plain: Any, monkeypatch: Any, flags: str, kept: str
) -> None:
    submit, cells = plain.submit, []
    monkeypatch.setattr(plain, "submit", lambda *args, **more: cells.append(submit(*args, **more)) or cells[-1])
    said = dip.do(f"%%dip --ranks 0 {flags}\nprint('[0] said')")
    assert ("said" in said.out) == (flags != "-q")
    assert [cell.text(0, 1) for cell in cells] == [kept]


def test_rich_values_have_their_text_on_a_terminal(dip: TerminalShell) -> None:
    said = dip.do("%%dip\nfrom IPython.display import HTML, display\ndisplay(HTML('<b>x</b>'))")
    assert said.out == "<IPython.core.display.HTML object>\n"


def test_a_display_that_is_too_large_is_left_out_with_a_word(dip: TerminalShell, plain: Any) -> None:
    pids = plain.pids
    said = dip.do(
        "%%dip --ranks 1\nfrom IPython.display import HTML, display\ndisplay(HTML('\\x01' * (3 << 20)))\nprint('after')"
    )
    assert "display of 18 MiB is too large to send (at most 8 MiB)" in said.text and "after" in said.text, said.text
    assert plain.pids == pids, "it costs nobody"


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
    assert failed.text.count("ZeroDivisionError: division by zero") == 1 and (failed.text.startswith("all 2 ranks:\n"))


def test_an_error_summary_names_its_ranks_in_order_and_the_first_to_fail_first() -> None:
    def summary(*failed: tuple[int, str], of: int) -> list[str]:
        error = ddip.RankError([rank for rank, _ in failed], dict(failed), {}, of)
        return [line for line in str(error).splitlines() if line.endswith(":")]

    assert summary((1, "a"), (0, "a"), of=2) == ["all 2 ranks:"]
    assert summary((0, "a"), of=1) == ["rank 0:"]
    assert summary((2, "a"), (3, "b"), (0, "a"), of=4) == ["ranks 0,2 (2 of 4 ranks):", "rank 3 (1 of 4 ranks):"]
    assert summary((3, "a"), (1, "a"), of=2) == ["ranks 1,3 (all that ran it):"], "of %%dip --ranks 1,3"


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


@pytest.mark.parametrize("moment", ["before_the_interrupt_is_sent", "while_it_is_sent", "while_the_cell_ends"])
def test_two_presses_of_stop_stop_the_cell_too(
    dip: TerminalShell, plain: Any, monkeypatch: Any, tmp_path: Any, moment: str
) -> None:
    from ddip.magics import follower

    def press() -> None:
        signal.raise_signal(signal.SIGINT)

    def press_when_the_ranks_sleep() -> None:
        wait_until(lambda: len(list(tmp_path.iterdir())) == 2, 20, "both ranks sleep")
        os.kill(os.getpid(), signal.SIGINT)

    interrupt = plain.interrupt
    if moment == "before_the_interrupt_is_sent":
        monkeypatch.setattr(follower, "kernel_ends", lambda shell: press() is not None)
    elif moment == "while_it_is_sent":
        monkeypatch.setattr(plain, "interrupt", lambda **which: press() or interrupt(**which))
    else:
        monkeypatch.setattr(plain, "interrupt", lambda **which: (interrupt(**which), press())[0])
    threading.Thread(target=press_when_the_ranks_sleep).start()
    said = dip.run(f"%%dip\nopen('{tmp_path}/%d' % r, 'w').close(); time.sleep(600)")
    assert "was interrupted on ranks 0-1" in str(said.error), said.text
    assert plain.info()["cells"] == []


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


# ---- no news


def test_a_silent_cell_says_by_itself_who_is_where_a_line_per_rank(dip: TerminalShell, monkeypatch: Any) -> None:
    monkeypatch.setattr("ddip.magics.follower.SILENCE", 0.1)
    lines = dip.do("%%dip\nimport time; time.sleep(1)").err.splitlines()
    assert lines[0] == "ddip: no news for 0 s:", lines
    assert [line[:9] for line in lines[1:3]] == ["  rank 0:", "  rank 1:"] and " | " not in "".join(lines), lines
