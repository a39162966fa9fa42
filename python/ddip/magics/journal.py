"""%diplog: what a group printed, read from its journal; each line with its rank."""

from __future__ import annotations

import time
from typing import Any

from IPython.core.error import UsageError

from ddip import _client, display
from ddip import group as groups


def show(name: str, wanted: int, screen: display.Screen) -> None:
    """Of the newest group of that name. `wanted`: a cell's number; 0: all."""
    folder = _client.newest_journal(groups.state_folder(), name)
    if not folder:
        raise UsageError(f"no journal of a group named {name}")
    if not print_journal(folder, wanted, screen) and wanted:
        print(f"no cell {wanted} in the journal of group {name}")


def print_journal(folder: str, wanted: int, screen: display.Screen) -> bool:
    """Whether there was anything."""
    open_lines: dict[tuple[int, int], display.RankLines] = {}
    found = False

    def show_lines(pieces: list[tuple[int, str]]) -> None:
        for _, text in pieces:
            print(text, end="")

    def visit(kind: str, cell: int, rank: int, body: Any, sequence: int, stream: int, when: float) -> bool:
        nonlocal found
        if wanted and cell != wanted:
            return True
        found = True
        if kind == "cell_started":
            at = time.strftime("%H:%M:%S", time.localtime(when))
            print(f"--- cell {cell} ({at}): {groups.first_line(body.get('source', ''))}")
        elif kind == "output":
            if (cell, rank) not in open_lines:
                open_lines[cell, rank] = display.RankLines(rank)
            show_lines(open_lines[cell, rank].write(stream, body))
        elif kind == "rank_done":
            if (cell, rank) in open_lines:
                show_lines(open_lines.pop((cell, rank)).close())
            if body.get("outcome") != "ok":
                why = body.get("traceback") or body.get("why", body.get("outcome"))
                print(f"[{rank}] {screen.in_its_colours(why)}")
        elif kind in ("note", "gap"):
            print(f"ddip: {body}")
        elif kind == "display" and body.get("data"):
            print(display.prefixed(body["data"].get("text/plain", "<display>"), [rank]))
        return True

    _client.read_journal(folder, 0, visit)
    for lines in open_lines.values():
        show_lines(lines.close())
    return found
