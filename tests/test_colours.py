"""Tracebacks and `?` are in colour where somebody sees it, in a notebook or on a terminal, and plain text for programs."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest
from lab.shell import TerminalShell

import ddip

pytest.importorskip("IPython", reason="plain Python has no colours")

ESCAPE = "\x1b["


def test_errors_and_results_are_plain_text_for_programs(plain: Any) -> None:
    with pytest.raises(ddip.RankError) as raised:
        plain.run("1/0")
    error = raised.value
    assert "ZeroDivisionError: division by zero" in str(error) and ESCAPE not in str(error)
    assert all("1/0" in text and ESCAPE not in text for text in error.tracebacks.values())
    job = plain.run("1/0", wait=False)
    job.wait(20)
    with pytest.raises(ddip.RankError) as raised:
        job.results()
    assert ESCAPE not in str(raised.value)
    plain.run("def shown(a, b=2):\n    'Says what it does.'")
    for code in ("shown?", "shown??"):
        for result in plain.run(code):
            assert "shown(a, b=2)" in result.stdout and ESCAPE not in result.stdout


def shown(shell: TerminalShell, source: str) -> str:
    """With its colours, if it has any."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        shell.shell.run_cell(source)
    return out.getvalue()


def test_where_no_terminal_is_the_screen_gets_plain_text(dip: TerminalShell) -> None:
    for source, word in (
        ("%%dip\n1/0", "1/0"),
        ("%%dip\ndef shown(a, b=2):\n    'Says what it does.'\nshown?", "shown(a, b=2)"),
        ("%autodip on", "on"),
        ("shown??", "shown(a, b=2)"),
    ):
        text = shown(dip, source)
        assert word in text and ESCAPE not in text, text
    assert ESCAPE not in dip.shell.object_inspect_mime("shown")["text/plain"]


def test_the_journal_is_read_as_plain_text_where_no_terminal_is(shell: TerminalShell) -> None:
    shell.do("%makedip -n 1")
    shell.run("%%dip\n1/0")
    text = shown(shell, "%diplog")
    assert "ZeroDivisionError" in text and ESCAPE not in text
