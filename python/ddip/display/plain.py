"""--plain: every line with its rank, as it comes."""

from __future__ import annotations

from typing import Any

from ddip.cell import Event
from ddip.display.figures import is_text
from ddip.display.rank_lines import RankLines, label, prefixed
from ddip.display.screen import Screen, new_handle
from ddip.display.shown import Shown


class Plain:
    """--plain: every line with its rank, as it comes; no merging, and of a bar only how it ended."""

    def __init__(self, screen: Screen, see: list[int], shown: Shown) -> None:
        self._screen, self._shown = screen, shown
        self._lines = {rank: RankLines(rank) for rank in see}

    def show(self, event: Event) -> None:
        kind, _, rank, body, _, stream, _ = event
        if kind in ("note", "gap"):
            self._screen.append(2, f"ddip: {body}\n")
        elif rank not in self._lines:
            return
        elif kind == "output":
            self._append(self._lines[rank].write(stream, body))
        elif kind == "rank_done":
            self._append(self._lines[rank].close())
        elif kind == "display":
            self._display(rank, body)

    def _display(self, rank: int, body: dict[str, Any]) -> None:
        identity = body["transient"].get("display_id")
        if body["kind"] == "update":
            handle = self._shown.handle(rank, identity or "")
            if handle is not None:
                self._screen.bundle(body["data"], body["metadata"], handle, update=True)
        elif is_text(body):
            self._screen.append(1, prefixed(body["data"]["text/plain"] + "\n", [rank]))
        elif body["kind"] in ("display", "result"):
            handle = new_handle() if identity else None
            if identity:
                self._shown.remember(rank, identity, handle)
            self._screen.append(1, label([rank]))
            self._screen.bundle(body["data"], body["metadata"], handle)

    def _append(self, pieces: list[tuple[int, str]]) -> None:
        for stream, text in pieces:
            self._screen.append(stream, text)

    def tick(self) -> float:
        return 1.0

    def pause(self) -> None:
        pass

    def finish(self) -> None:
        for lines in self._lines.values():
            self._append(lines.close())
