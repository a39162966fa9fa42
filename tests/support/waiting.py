"""Waiting for something that must happen, with a deadline; never for time to pass."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

STEP = 0.005


def wait_until(look: Callable[[], Any], seconds: float, what: str) -> Any:
    """The first true value of look(); AssertionError with `what` when the time is over."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(STEP)


class Stopwatch:
    """`with Stopwatch() as watch: …` then watch.seconds."""

    seconds = 0.0

    def __enter__(self) -> Stopwatch:
        self._begun = time.monotonic()
        return self

    def __exit__(self, *error: Any) -> None:
        self.seconds = time.monotonic() - self._begun
