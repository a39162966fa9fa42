"""sys.stdout and sys.stderr of a worker: every write is tagged with the cell that the writing thread belongs to.

A thread belongs to the cell whose code started it, also after that cell has ended.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import threading
from typing import Any, NoReturn

OUT, ERR = 1, 2
LAST_WORDS_MS = 1000

_of_thread = threading.local()
_is_child = False


def is_child() -> bool:
    """This process was forked by a cell. It has no control thread, and its parent's connection is not its own: what two of
    them write there is one message to nobody."""
    return _is_child


def know_children() -> None:
    def begin() -> None:
        global _is_child
        _is_child = True

    os.register_at_fork(after_in_child=begin)


def current_cell() -> int:
    return getattr(_of_thread, "cell", 0)


def set_current_cell(cell: int) -> None:
    _of_thread.cell = cell


class RankStream(io.TextIOBase):
    """Text goes straight to the control thread. It says it is no terminal, has no descriptor trouble: fileno() is 1 or 2."""

    encoding = "utf-8"
    errors = "replace"

    def __init__(self, control: Any, number: int, name: str) -> None:
        self._control = control
        self._number = number
        self.name = name
        self._begun = b""  # of a child's: its parent has sent everything
        self.buffer = RankBuffer(self)

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError(f"write() argument must be str, not {type(text).__name__}")
        if text:
            self.write_bytes(text.encode("utf-8", "replace"))
        return len(text)

    def write_bytes(self, data: bytes) -> None:
        if not _is_child:
            return self._control.write(current_cell(), self._number, data)  # type: ignore[no-any-return]
        # As any program that a cell starts, by the line: others write there, too.
        self._begun += data
        if b"\n" in data:
            self.flush()

    def flush(self) -> None:
        data, self._begun = self._begun, b""
        while data:
            data = data[os.write(self._number, data) :]

    def writable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._number


class RankBuffer(io.RawIOBase):
    """sys.stdout.buffer, for those who write bytes."""

    def __init__(self, stream: RankStream) -> None:
        self._stream = stream

    def write(self, data: Any) -> int:
        data = bytes(data)
        if data:
            self._stream.write_bytes(data)
        return len(data)

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()


def install(control: Any) -> None:
    sys.stdout = RankStream(control, OUT, "<stdout>")
    sys.stderr = RankStream(control, ERR, "<stderr>")
    know_children()
    inherit_cell_in_threads()
    ask_the_front_end(control)
    say_all_before_a_sudden_end(control)


def say_all_before_a_sudden_end(control: Any) -> None:
    """os._exit() leaves no time to anybody; what was printed before it is sent first. Children of ours have no control
    thread that could."""
    end = os._exit

    def say_all_and_end(status: int) -> NoReturn:
        if not _is_child:
            control.say_all(LAST_WORDS_MS)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # whatever somebody has put there
                stream.flush()
        end(status)

    os._exit = say_all_and_end


def ask_the_front_end(control: Any) -> None:
    """input(), and with it breakpoint() and %debug, ask whoever runs the cell."""
    import builtins
    import getpass

    def ask(prompt: object = "", /) -> str:
        return answer(str(prompt), False)

    def ask_secretly(prompt: str = "Password: ", stream: Any = None, **rest: Any) -> str:
        return answer(prompt, True)

    def answer(prompt: str, secret: bool) -> str:
        if _is_child:
            raise EOFError("input() in a process that was forked by a cell; ask before the fork")
        return str(control.ask(current_cell(), prompt, secret))

    builtins.input = ask
    getpass.getpass = ask_secretly
    keep_debuggers_from_sigint()


def keep_debuggers_from_sigint() -> None:
    """After `continue` pdb takes SIGINT for itself, for ever: stop would open a debugger instead of ending the cell."""
    import pdb

    begin = pdb.Pdb.__init__

    def begin_without_sigint(self: pdb.Pdb, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        self.nosigint = True  # type: ignore[attr-defined]

    pdb.Pdb.__init__ = begin_without_sigint  # type: ignore[method-assign]


def inherit_cell_in_threads() -> None:
    start, bootstrap = threading.Thread.start, threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def start_with_cell(self: threading.Thread) -> None:
        self._ddip_cell = current_cell()  # type: ignore[attr-defined]
        start(self)

    def bootstrap_with_cell(self: threading.Thread) -> None:
        set_current_cell(getattr(self, "_ddip_cell", 0))
        bootstrap(self)

    threading.Thread.start = start_with_cell  # type: ignore[method-assign]
    threading.Thread._bootstrap_inner = bootstrap_with_cell  # type: ignore[attr-defined]
