"""A step is whole or has not been: a stop that comes while an optimizer steps takes effect after it. A half of it would leave some
parameters a step ahead of the others, for ever."""

from __future__ import annotations

import _signal  # signal.signal makes enumerations of what goes in and comes out: five times as long, twice in each step
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
            self._handler = _signal.signal(_signal.SIGINT, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came = True

    def end(self) -> bool:
        """Whether one came. It is raised by who called the step, where nothing is half done."""
        if self._handler is None:
            return False
        _signal.signal(_signal.SIGINT, self._handler)
        self._handler = None
        return self._came
