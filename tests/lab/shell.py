"""IPython without a kernel: the shell that a terminal user has, in this process, one line or cell at a time."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def plain_text(text: str) -> str:
    return COLOURS.sub("", text)


@dataclass
class Said:
    """What one cell left on the screen."""

    out: str
    err: str
    error: BaseException | None
    value: Any

    @property
    def text(self) -> str:
        return self.out + self.err

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    def usage_error(self) -> str:
        """The one line of a clean refusal. Anything else, a traceback above all, fails here."""
        assert type(self.error).__name__ == "UsageError", f"expected a UsageError: {self.error!r}\n{self.text}"
        assert "Traceback" not in self.text, self.text
        lines = self.err.splitlines()
        assert len(lines) == 1 and lines[0].startswith("UsageError: "), f"expected one line:\n{self.text}"
        return lines[0].removeprefix("UsageError: ")


class TerminalShell:
    """One plain InteractiveShell, with the extension loaded; `run` is what a person types."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell

    @property
    def magics(self) -> Any:
        return self.shell._ddip_magics

    @property
    def names(self) -> dict[str, Any]:
        return dict(self.shell.user_ns)

    def run(self, source: str) -> Said:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            result = self.shell.run_cell(source)
        error = result.error_before_exec or result.error_in_exec
        return Said(plain_text(out.getvalue()), plain_text(err.getvalue()), error, result.result)

    def do(self, source: str) -> Said:
        """`run` of something that must work."""
        said = self.run(source)
        assert said.error is None, f"{source}\n{said.text}"
        return said


def open_shell() -> Iterator[TerminalShell]:
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    shell = InteractiveShell.instance(config=config)
    shell.run_line_magic("load_ext", "ddip")
    try:
        yield TerminalShell(shell)
    finally:
        shell.run_line_magic("unload_ext", "ddip")
        InteractiveShell.clear_instance()
