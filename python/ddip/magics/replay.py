"""What a client that attaches has not seen yet, cell by cell, then what is still running, live."""

from __future__ import annotations

from ddip import _client, display
from ddip.cell import Event
from ddip.group import Group, first_line


class Replay:
    def __init__(self, group: Group, screen: display.Screen) -> None:
        self._group = group
        self._screen = screen
        self._renderers: dict[int, display.Renderer] = {}
        self._between = display.renderer(screen, list(range(group.world_size)), plain=True)  # what belongs to no cell
        self._seen = 0  # the newest event's place in the journal

    def run(self, live: bool = True) -> bool:
        """Until the last running cell ends (`live`), or stop is pressed: that ends the watching, not the cells. Whether it
        came to its end."""
        client = _client.Client(
            self._group._folder, self._group._client_name
        )  # who watches is told of everybody's cells
        running = client.request("watch", {}, 30.0)["cells"]
        unfinished = {cell["cell"] for cell in running} if live else set()
        try:
            while True:
                event = client.next(0, 0.1 if unfinished else 0.0)
                if event is not None:
                    self._show(event, unfinished)
                elif not unfinished:
                    return True
                for renderer in self._renderers.values():
                    renderer.tick()
        except KeyboardInterrupt:
            print("ddip: stopped watching; the cells go on (%dipwhy, %diplog)")
            return False
        finally:
            for renderer in (self._between, *self._renderers.values()):
                renderer.finish()
            if self._seen:
                client.send("acknowledge", {"sequence": self._seen})

    def _show(self, event: Event, unfinished: set[int]) -> None:
        kind, cell, rank, body, sequence, _, _ = event
        self._seen = max(self._seen, sequence)
        if cell == 0:
            return self._between.show(event)
        if cell not in self._renderers:
            self._renderers[cell] = display.renderer(self._screen, list(range(self._group.world_size)))
        if kind == "cell_started":
            self._screen.append(1, f"--- cell {cell}: {first_line(body.get('source', ''))}\n")
        elif kind == "rank_done" and body.get("outcome") not in ("ok", None):
            self._renderers[cell].show(event)
            why = self._screen.in_its_colours(body.get("traceback") or body.get("why", ""))
            self._screen.append(2, f"[{rank}] {why}\n")
        elif kind == "cell_done":
            self._renderers.pop(cell).finish()
            unfinished.discard(cell)
        else:
            self._renderers[cell].show(event)
