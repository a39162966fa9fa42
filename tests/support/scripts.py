"""Clients as processes of their own, so that they can be killed, interrupted, or fork."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any


class Script:
    """A Python program under our control; it talks in lines: say(...) to it, hear(...) from it."""

    def __init__(self, source: str, environment: Mapping[str, str] | None = None, start: str = "") -> None:
        variables = {**os.environ, **(environment or {})}
        variables["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        variables["PYTHONUNBUFFERED"] = "1"
        self.process = subprocess.Popen(
            [sys.executable, "-c", start + source], env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._read = b""

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self, seconds: float = 20.0) -> str:
        """Its next line, without the newline."""
        deadline = time.monotonic() + seconds
        assert self.process.stdout is not None
        number = self.process.stdout.fileno()
        waiting = select.poll()
        waiting.register(number, select.POLLIN)
        while b"\n" not in self._read:
            left = deadline - time.monotonic()
            ready = left > 0 and waiting.poll(left * 1000)
            assert ready, f"the script said nothing for {seconds} s; so far: {self._read!r}"
            data = os.read(number, 65536)
            assert data, f"the script ended (code {self.process.wait()}); it said {self._read!r}"
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        return line.decode()

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = 20.0) -> int:
        return self.process.wait(seconds)

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *error: Any) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
