"""%%dip --async: the cell's output appears under the cell that started it, while others run."""

from __future__ import annotations

import contextlib

from ddip import display, following
from ddip.cell import Cell
from ddip.errors import PeerLost, RankError
from ddip.magics.late_output import LateOutput


class ShowInBackground:
    """On a thread of its own, until the cell is over."""

    def __init__(
        self, cell: Cell, renderer: display.Renderer, screen: display.Screen, late: LateOutput | None = None
    ) -> None:
        self._cell = cell
        self._renderer = renderer
        self._screen = screen
        self._late = late

    def start(self) -> None:
        self._cell.follow_with(self._run)

    def _run(self) -> None:
        cell, sequence = self._cell, 0
        try:
            while not cell.finished and not following.is_to_end():
                event = cell.pump(min(self._renderer.tick(), following.LOOK))
                if event is None:
                    continue
                sequence = max(sequence, event[4])
                if event[0] == "input_request":
                    cell.group.client.send(
                        "input_reply", {"error": "input() cannot be answered in an async cell"}, event[2], cell.number
                    )
                else:
                    self._renderer.show(event)
        except Exception as error:
            cell.lose(error)
        if not cell.finished:
            return  # the interpreter ends, the cell goes on; whoever attaches next is shown all of it
        self._renderer.finish()
        if self._late is not None:
            self._late.cell_ended(cell)
        if cell.lost is not None:
            self._screen.append(2, f"ddip: {cell.lost}\n")
            return
        with contextlib.suppress(PeerLost):  # the cell ended because the group did
            cell.group.client.send("acknowledge", {"sequence": sequence})
        try:
            cell.raise_if_failed()
        except RankError as error:
            self._screen.append(2, self._screen.in_its_colours(error.coloured) + "\n")
        except KeyboardInterrupt as error:
            self._screen.append(2, f"{error}\n")
