"""A step is whole or has not been: a stop that comes while an optimizer steps takes effect after it. A half of it would leave some
parameters a step ahead of the others, for ever."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any

from ddip.held_interrupt import comes_here


class WholeStep:
    def __init__(self) -> None:
        self._came = False
        self._handler: Any = None

    def begin(self) -> None:
        if comes_here():
            self._came = False
            self._handler = signal.signal(signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = True

    def end(self) -> bool:
        """Whether one came. It is raised by who called the step, where nothing is half done."""
        if self._handler is None:
            return False
        signal.signal(signal.SIGINT, self._handler)
        self._handler = None
        return self._came
