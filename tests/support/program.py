"""The program `ddip` as a user calls it."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

from support.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = str(ROOT / "python" / "ddip" / "_bin" / "ddip")
PATIENCE = 50


def ddip(
    *arguments: str, code: int = 0, input: str | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs it to its end, which must have this exit code. Never a backtrace, whatever happened."""
    done = subprocess.run(
        [PROGRAM, *arguments], input=input, capture_output=True, text=True, timeout=PATIENCE, env={**os.environ, **environment},
        **({} if input is not None else {"stdin": subprocess.DEVNULL}),
    )  # fmt: skip
    text = f"ddip {' '.join(arguments)} → {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert done.returncode == code, text
    assert "terminate called" not in done.stderr, text
    return done


class Running:
    """One that is still at work: its lines as they come, and signals for it."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.out: list[str] = []
        self.err: list[str] = []
        self.process = subprocess.Popen(
            [PROGRAM, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **environment},
        )  # fmt: skip
        self._threads = [
            threading.Thread(target=self._read, args=(self.process.stdout, self.out), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stderr, self.err), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _read(stream: Any, lines: list[str]) -> None:
        for line in stream:
            lines.append(line.rstrip("\n"))

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_for(self, text: str, count: int = 1, seconds: float = 20) -> None:
        """Until that many lines, of either stream, contain the text."""
        wait_until(
            lambda: sum(text in line for line in self.out + self.err) >= count,
            seconds,
            f"{count} × {text!r} in {self.out} {self.err}",
        )

    def signal(self, number: int = signal.SIGINT) -> None:
        self.process.send_signal(number)

    def end(self, seconds: float = 20) -> int:
        code = self.process.wait(seconds)
        for thread in self._threads:
            thread.join(5)
        return code

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *error: Any) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
