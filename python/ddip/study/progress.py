"""How far a study is: a line that changes on a terminal, now and then a line elsewhere."""

from __future__ import annotations

import sys
import time
from typing import TextIO


class Progress:
    def __init__(self, what: str, whole: int, file: TextIO | None = None) -> None:
        self.what, self.whole, self.file = what, whole, file or sys.stderr
        self.done, self.begun, self.told = 0, time.monotonic(), -1

    def one_more(self) -> None:
        self.done += 1
        left = (time.monotonic() - self.begun) / self.done * (self.whole - self.done)
        text = f"{self.what}: {self.done} of {self.whole} runs, about {duration(left)} left"
        if self.file.isatty():
            print(f"\r\033[K{text}", end="", file=self.file, flush=True)
        elif self.done == self.whole or self.done * 20 // self.whole > self.told:
            self.told = self.done * 20 // self.whole
            print(text, file=self.file, flush=True)

    def end(self) -> None:
        if self.file.isatty() and self.done:
            print("\r\033[K", end="", file=self.file, flush=True)


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"
