"""A notebook's cell while it runs on the workers: its output is shown, its questions are answered, and stop stops it.

The first press of stop interrupts the cell on every rank. If one goes on all the same, the prompt comes back, and the
press in a cell that waits behind it is the second: the stuck ranks are replaced by empty ones.
"""

from __future__ import annotations

import getpass
import time
from typing import Any

from ddip import _client, display
from ddip import group as groups
from ddip.cell import Cell, Event
from ddip.errors import RankError
from ddip.group import Group
from ddip.held_interrupt import HeldInterrupt, more_presses_ignored
from ddip.magics.failures import CellFailed, CellInterrupted, StillRunning

# After so many seconds without news a cell says by itself who is where.
SILENCE = 10.0
# After the interrupt that comes before it, Jupyter's request to shut down arrives within this time.
SHUTDOWN = 0.15
# So long the second press of stop waits for the new process of a rank that it killed.
REPLACED = 10.0


class Follower:
    def __init__(self, shell: Any, cell: Cell, renderer: display.Renderer, stuck: set[int]) -> None:
        """`stuck`: the cells that one press of stop did not end; this one may join them, or end their wait."""
        self._shell = shell
        self._cell = cell
        self._group = cell.group
        self._renderer = renderer
        self._stuck = stuck
        self._seen = 0  # the newest event's place in the journal

    def follow(self, held: HeldInterrupt) -> None:
        """Until the cell is over, or a second after stop was pressed. Raises what it came to."""
        try:
            held.release()
            self._say_behind()
            self._show_until_over()
        except KeyboardInterrupt:
            with more_presses_ignored():  # the press that replaces ranks comes after they were named
                if kernel_ends(self._shell):
                    self._seen = 0  # the next kernel shows this cell from its beginning
                    raise CellInterrupted(f"the kernel ends; cell {self._cell.number} goes on") from None
                self._stop()
        finally:
            self._renderer.finish()
            if self._seen:
                self._group.client.send("acknowledge", {"sequence": self._seen})
        try:
            self._cell.raise_if_failed()
        except RankError as error:
            raise CellFailed(error) from None
        except KeyboardInterrupt as error:
            raise CellInterrupted(str(error)) from None

    def _say_behind(self) -> None:
        """Never queue silently: who is still in what, and what stop would do here."""
        waiting: dict[tuple[int, str], set[int]] = {}
        for one in self._cell.behind:
            waiting.setdefault((one["cell"], one["line"]), set()).add(one["rank"])
        for (number, text), ranks in sorted(waiting.items()):
            where = f"rank{'s' if len(ranks) > 1 else ''} {_client.rank_list(sorted(ranks))}"
            empty = "empty ones" if len(ranks) > 1 else "an empty one"
            stop = f"stop replaces {where} by {empty}" if number in self._stuck else "stop takes this cell back"
            print(f"ddip: waits behind cell {number} ({text}), still running on {where}; {stop}")

    def _show_until_over(self) -> None:
        heard = time.monotonic()
        explained = False
        while not self._cell.finished:
            patience = self._renderer.tick()
            if not explained:
                patience = min(patience, max(0.0, heard + SILENCE - time.monotonic()))
            event = self._cell.pump(patience)
            if event is None:
                if not explained and time.monotonic() - heard >= SILENCE:
                    explained = True
                    where = "".join(f"\n  {line}" for line in _client.explain(self._group.why()))
                    self._note(f"no news for {SILENCE:.0f} s:{where}")
                continue
            heard, explained = time.monotonic(), False
            self._seen = max(self._seen, event[4])
            if event[0] == "input_request":
                self._renderer.pause()
                answer_input(self._group, event)
            else:
                self._renderer.show(event)

    def _note(self, text: str) -> None:
        self._renderer.show(("note", self._cell.number, -1, text, 0, 0, []))

    def _stop(self) -> None:
        # A second press: the cell before this one did not end by the first, and this one waits behind it.
        again = self._stuck & {one["cell"] for one in self._cell.behind}
        if again:
            self._replace_stuck(again)
        self._group.interrupt(cell=self._cell.number)
        deadline = time.monotonic() + groups.PROMPT - SHUTDOWN
        while not self._cell.finished and time.monotonic() < deadline:
            event = self._cell.pump(max(0.0, min(self._renderer.tick(), deadline - time.monotonic())))
            if event is not None and event[0] != "input_request":
                self._renderer.show(event)
        if self._cell.finished:
            return
        self._stuck.add(self._cell.number)
        lines = _client.explain(self._group.why())
        self._cell.follow()
        self._renderer.finish()
        raise StillRunning(self._cell.number, lines)

    def _replace_stuck(self, cells: set[int]) -> None:
        ranks = sorted({one["rank"] for one in self._cell.behind if one["cell"] in cells})
        stuck, their = ("ranks", "their") if len(ranks) > 1 else ("rank", "its")
        print(f"ddip: second press: replacing stuck {stuck} {_client.rank_list(ranks)}; {their} variables are lost")
        before = self._group.pids
        for number in cells:
            self._group.interrupt(cell=number, kill=True)
        self._stuck -= cells
        await_replaced(self._group, ranks, before)


def kernel_ends(shell: Any) -> bool:
    """Jupyter interrupts a kernel before it restarts or stops it, and that is no press of stop: the cell must go on."""
    if not hasattr(shell, "kernel"):
        return False
    deadline = time.monotonic() + SHUTDOWN
    while time.monotonic() < deadline:
        if shell.exit_now:
            return True
        time.sleep(0.005)
    return False


def await_replaced(group: Group, ranks: list[int], before: list[int]) -> None:
    """Until these ranks are new processes that take cells."""
    deadline = time.monotonic() + REPLACED
    while time.monotonic() < deadline:
        now = group.info()["ranks"]
        if all(now[rank]["pid"] != before[rank] and now[rank]["status"] == "ready" for rank in ranks):
            return
        time.sleep(0.02)


def answer_input(group: Group, event: Event) -> None:
    """A worker's input(): asked here, answered there."""
    _, cell, rank, body, _, _, _ = event
    try:
        prompt = f"[{rank}] {body.get('prompt', '')}"
        text = getpass.getpass(prompt) if body.get("secret") else input(prompt)
    except KeyboardInterrupt:
        raise
    except Exception as error:
        group.client.send("input_reply", {"error": f"input() needs a front end that can ask: {error}"}, rank, cell)
        return
    group.client.send("input_reply", {"text": text}, rank, cell)
