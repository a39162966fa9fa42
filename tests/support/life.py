"""Small processes for the who-dies table: clients that are forks of the test, cheap enough to kill by the hundred."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from support import processes


class Forked:
    """A child of the test that runs `work(say)` and then waits for its death. hear() gives what it said, once."""

    def __init__(self, work: Callable[[Callable[[str], None]], Any]) -> None:
        self._read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                signal.alarm(0)
                kept = work(lambda text: os.write(write, text.encode() + b"\n") and None)
                while kept is not NotImplemented:
                    signal.pause()
                code = 0
            finally:
                os._exit(code)
        os.close(write)

    def hear(self) -> str:
        """Everything up to the first newline; empty if it died before."""
        text = b""
        while not text.endswith(b"\n"):
            data = os.read(self._read, 4096)
            if not data:
                return ""
            text += data
        return text.decode().strip()

    def kill(self) -> None:
        processes.kill([self.pid])
        self.reap()

    def reap(self) -> None:
        if self.pid:
            os.waitpid(self.pid, 0)
            os.close(self._read)
            self.pid = 0


def fork_holder() -> int | None:
    """In a forked client: a child of it that keeps all its descriptors open and does nothing. Returns its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            while True:
                signal.pause()
        finally:
            os._exit(0)
    return pid
