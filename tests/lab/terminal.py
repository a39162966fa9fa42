"""`ipython` on a pseudo-terminal: keys go in, the screen comes out, Ctrl-C is a key."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from lab.shell import plain_text

COMMAND = [
    sys.executable, "-m", "IPython", "--simple-prompt", "--no-banner", "--no-confirm-exit", "--colors=nocolor",
    "--HistoryManager.enabled=False", "--TerminalInteractiveShell.autoindent=False",
]  # fmt: skip


class Terminal:
    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        ours, theirs = pty.openpty()
        variables = {
            **os.environ,
            "TERM": "dumb",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            **(environment or {}),
        }
        self._process = subprocess.Popen(
            COMMAND,
            env=variables,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=control_terminal,
        )
        os.close(theirs)
        self._screen = ours
        self._unread = ""

    def type(self, line: str) -> None:
        os.write(self._screen, line.encode() + b"\n")

    def type_cell(self, *lines: str) -> None:
        """A cell magic ends with two empty lines."""
        for line in (*lines, "", ""):
            self.type(line)

    def interrupt(self) -> None:
        os.write(self._screen, b"\x03")

    def read_until(self, text: str, seconds: float = 30) -> str:
        """Everything up to and with `text`, which must come in time."""
        deadline = time.monotonic() + seconds
        while text not in self._unread:
            left = deadline - time.monotonic()
            ready = left > 0 and select.select([self._screen], [], [], left)[0]
            assert ready, f"{text!r} did not come in {seconds} s; the screen:\n{self._unread}"
            try:
                data = os.read(self._screen, 65536)
            except OSError:
                data = b""
            assert data, f"the terminal closed before {text!r}:\n{self._unread}"
            self._unread += plain_text(data.decode("utf-8", "replace")).replace("\r\n", "\n")
        before, _, self._unread = self._unread.partition(text)
        return before + text

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: Any) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        os.close(self._screen)


def control_terminal() -> None:
    """Ctrl-C reaches those whose controlling terminal this is."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
