"""What is on the screen under a name: handle.update() may come from a later cell than the display itself."""

from __future__ import annotations

import threading
from collections import OrderedDict

# A notebook that draws bars for days: the oldest are not updated any more.
REMEMBERED = 4096


class Shown:
    """(rank, its display id) → ours. Used by the renderers of all cells, some of which have threads of their own."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._handles: OrderedDict[tuple[int, str], str | None] = OrderedDict()

    def remember(self, rank: int, identity: str, handle: str | None) -> None:
        """`handle` is None for one that is not shown: another rank's stands for it."""
        with self._lock:
            self._handles[(rank, identity)] = handle
            self._handles.move_to_end((rank, identity))
            while len(self._handles) > REMEMBERED:
                self._handles.popitem(last=False)

    def handle(self, rank: int, identity: str) -> str | None:
        with self._lock:
            return self._handles.get((rank, identity))
