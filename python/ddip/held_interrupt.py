"""A Ctrl-C that comes while a request is on its way to the group waits until somebody knows what it should stop; one that
comes while another is carried out is ignored."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


def comes_here() -> bool:
    """Python raises it in the main thread only, and where nobody has made it silent."""
    return threading.current_thread() is threading.main_thread() and callable(signal.getsignal(signal.SIGINT))


class HeldInterrupt:
    """From `with` to release(), or to its end. The second Ctrl-C does not wait."""

    def __init__(self) -> None:
        self._noted = False
        self._handler: Any = None

    def __enter__(self) -> HeldInterrupt:
        if comes_here():
            self._handler = signal.signal(signal.SIGINT, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._noted:
            raise KeyboardInterrupt
        self._noted = True

    def release(self) -> None:
        """Raises KeyboardInterrupt, or does what else was to be done, if there was one."""
        if self._handler is None:
            return
        handler, self._handler = self._handler, None
        signal.signal(signal.SIGINT, handler)
        if self._noted:
            handler(signal.SIGINT, sys._getframe())

    def __exit__(self, *_: object) -> None:
        self.release()


@contextlib.contextmanager
def more_presses_ignored() -> Iterator[None]:
    """While one press of stop is carried out, another says nothing new; raised in the middle, it would undo the first."""
    if not comes_here():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
