"""What threads of a cell say after it has ended. It is shown under that cell, as a kernel does with its own threads, line by
line and by rank: nobody waits for the other ranks to say the same."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from ddip import _client, display, following
from ddip.cell import Cell, Event
from ddip.errors import PeerLost
from ddip.group import Group

ANSWER = 10.0
LOOK = 0.25
# So many of the newest cells, and so many characters under each: a thread may print for days.
CELLS = 256
MOST = 400_000


class Under:
    """One cell's place on the screen."""

    def __init__(self, screen: display.Screen, see: list[int], shown: display.Shown) -> None:
        self._lines = display.renderer(screen, see, plain=True, shown=shown)
        self._size = 0
        self._held: list[Event] | None = []  # until all that the cell itself said is there

    def take(self, event: Event) -> None:
        if self._held is None:
            self._show(event)
        else:
            self._held.append(event)

    def release(self) -> None:
        held, self._held = self._held or [], None
        for event in held:
            self._show(event)

    def _show(self, event: Event) -> None:
        kind, cell, _, body, _, _, _ = event
        if kind == "display" and body["kind"] == "update":
            self._lines.show(event)  # it takes the place of another
        elif self._size < MOST:
            self._size += len(str(body.get("data"))) if kind == "display" else len(body)
            self._lines.show(event)
            if self._size >= MOST:
                self._lines.show(("note", cell, -1, "its threads say more than is shown here (%diplog)", 0, 0, []))


class LateOutput:
    """Of one group's cells, on a connection and a thread of its own, which end with the group or with the interpreter."""

    def __init__(self, group: Group, shown: display.Shown) -> None:
        """`shown`: displays that a thread may go on updating."""
        self.group = group
        self._shown = shown
        self._lock = threading.Lock()
        self._cells: OrderedDict[int, Under] = OrderedDict()
        self.closed = False
        client = _client.Client(group._folder, "")
        client.request("watch", {"late": True}, ANSWER)
        following.start(lambda: self._run(client), f"ddip late output of {group.name}")

    def submit(self, body: dict[str, Any], ranks: list[int], screen: display.Screen, see: list[int]) -> Cell:
        """A cell whose late output belongs on this screen, once cell_ended() says that it may come."""
        with self._lock:  # or a very short cell's thread would speak of one that is not known here
            cell = self.group.submit(body, ranks, keep_all=False)
            self._cells[cell.number] = Under(screen, see, self._shown)
            while len(self._cells) > CELLS:
                self._cells.popitem(last=False)
        return cell

    def cell_ended(self, cell: Cell) -> None:
        with self._lock:
            if cell.number in self._cells:
                self._cells[cell.number].release()

    def close(self) -> None:
        self.closed = True

    def _run(self, client: Any) -> None:
        try:
            while not self.closed and not following.is_to_end():
                event = client.next(0, LOOK)
                if event is not None:
                    self._take(event)
        except PeerLost:
            pass  # the group is gone, and its threads with it; or the connection alone, and the next cell makes another
        finally:
            self.closed = True

    def _take(self, event: Event) -> None:
        with self._lock:
            if event[1] in self._cells:
                self._cells[event[1]].take(event)
