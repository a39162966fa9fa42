"""%diplog: what a group printed, read from its journal; each line with its rank."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from IPython.core.error import UsageError

from ddip import _client, display
from ddip import group as groups

# What is shown at once. Jupyter drops what comes faster than 1 MB a second, and a notebook's file keeps every line of it.
MOST_LINES = 5_000
MOST_CHARACTERS = 400_000


def show(name: str, wanted: int | None, screen: display.Screen) -> None:
    """Of the newest group of that name. `wanted`: a cell's number; 0: all; None: the newest cell."""
    folder = _client.newest_journal(groups.state_folder(), name)
    if not folder:
        raise UsageError(f"no journal of a group named {name}")
    cell = newest_cell(folder) if wanted is None else wanted
    newest = NewestLines()
    read_journal(folder, cell, newest, screen)
    if not newest.lines:
        return print(f"no cell{f' {cell}' if cell else ''} in the journal of group {name}")
    if newest.left_out:
        one = f" {cell}" if cell else ""
        print(
            f"… {newest.left_out} lines left out; in a shell `ddip log {name}{one}` has all"
            + ("" if cell else ", here %diplog CELL and %diplog last show one cell")
        )
        print(newest.headline())
    print("\n".join(text for _, text in newest.lines))


class NewestLines:
    """As many as are shown at once; those before them are counted."""

    def __init__(self) -> None:
        self.lines: deque[tuple[int, str]] = deque()  # (cell, text without its end)
        self.left_out = 0
        self._characters = 0
        self._headlines: dict[int, str] = {}

    def add_headline(self, cell: int, text: str) -> None:
        self._headlines[cell] = text
        self.add(cell, text)

    def add(self, cell: int, text: str) -> None:
        for line in text.removesuffix("\n").split("\n"):
            self.lines.append((cell, line))
            self._characters += len(line)
        while len(self.lines) > MOST_LINES or (self._characters > MOST_CHARACTERS and len(self.lines) > 1):
            self._characters -= len(self.lines.popleft()[1])
            self.left_out += 1

    def headline(self) -> str:
        """Of the cell whose beginning is left out."""
        return self._headlines.get(self.lines[0][0], "…")


def newest_cell(folder: str) -> int:
    newest = 0

    def visit(kind: str, cell: int, rank: int, body: Any, sequence: int, stream: int, when: float) -> bool:
        nonlocal newest
        newest = max(newest, cell)
        return True

    _client.read_journal(folder, 0, visit)
    return newest


def read_journal(folder: str, wanted: int, newest: NewestLines, screen: display.Screen) -> None:
    open_lines: dict[tuple[int, int], display.RankLines] = {}

    def add_lines(cell: int, pieces: list[tuple[int, str]]) -> None:
        for _, text in pieces:
            newest.add(cell, text)

    def visit(kind: str, cell: int, rank: int, body: Any, sequence: int, stream: int, when: float) -> bool:
        if wanted and cell != wanted:
            return True
        if kind == "cell_started":
            at = time.strftime("%H:%M:%S", time.localtime(when))
            newest.add_headline(cell, f"--- cell {cell} ({at}): {groups.first_line(body.get('source', ''))}")
        elif kind == "output":
            if (cell, rank) not in open_lines:
                open_lines[cell, rank] = display.RankLines(rank)
            add_lines(cell, open_lines[cell, rank].write(stream, body))
        elif kind == "rank_done":
            if (cell, rank) in open_lines:
                add_lines(cell, open_lines.pop((cell, rank)).close())
            if body.get("outcome") != "ok":
                why = body.get("traceback") or body.get("why", body.get("outcome"))
                newest.add(cell, f"[{rank}] {screen.in_its_colours(why)}")
        elif kind in ("note", "gap"):
            newest.add(cell, f"ddip: {body}")
        elif kind == "display" and body.get("data"):
            newest.add(cell, display.prefixed(body["data"].get("text/plain", "<display>"), [rank]))
        return True

    _client.read_journal(folder, 0, visit)
    for (cell, _), lines in open_lines.items():
        add_lines(cell, lines.close())
