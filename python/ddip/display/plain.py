"""--plain: every line with its rank, as it comes."""

from __future__ import annotations

from ddip.cell import Event
from ddip.display.figures import is_text
from ddip.display.rank_lines import RankLines, label, prefixed
from ddip.display.screen import Screen


class Plain:
    """--plain: every line with its rank, as it comes; no merging, and of a bar only how it ended."""

    def __init__(self, screen: Screen, see: list[int]) -> None:
        self._screen = screen
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
        elif kind == "display" and body.get("kind") in ("display", "result"):
            if is_text(body):
                self._screen.append(1, prefixed(body["data"]["text/plain"] + "\n", [rank]))
            else:
                self._screen.append(1, label([rank]))
                self._screen.bundle(body["data"], body["metadata"])

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
