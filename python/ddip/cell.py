"""A cell on its way: its output and endings by rank, and the ways to wait for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ddip import _client, following, values
from ddip.cell_output import CellOutput, LineReader
from ddip.errors import RankError

if TYPE_CHECKING:
    from ddip.group import Group

# (kind, cell, rank, body, sequence, stream, descriptors), as the native client gives it
Event = tuple[str, int, int, Any, int, int, list[int]]
OUT, ERR = 1, 2
# Of what a lost rank said in its cell, so many are told again with its loss: the rest is on the screen and in the journal.
LAST_LINES = 5
NOBODY_TO_ASK = "input() needs a front end: a notebook, or ddip exec"


@dataclass
class Result:
    """What one rank made of a cell."""

    rank: int
    value: Any = None
    stdout: str = ""
    stderr: str = ""
    seconds: float = 0.0
    memory: dict[str, int] = field(default_factory=dict)


class Remote:
    """A value that stayed on its rank: its repr, and the way to fetch it."""

    def __init__(self, group: Group, rank: int, text: str, why: str, handle: str | None) -> None:
        self._group, self.rank, self._text, self.why, self._handle = group, rank, text, why, handle

    def fetch(self) -> Any:
        if self._handle is None:
            raise TypeError(f"this value stayed on rank {self.rank}: {self.why}")
        return self._group.pull(self._handle, rank=self.rank)

    def __repr__(self) -> str:
        return f"<on rank {self.rank} ({self.why}): {self._text}>"


def is_telling(line: str) -> bool:
    """Of a crash's last words: not our own frames, nor Python's list of all extension modules."""
    return bool(line.strip()) and not any(part in line for part in ("/ddip/worker/", "<frozen ", "Extension modules:"))


class Cell:
    def __init__(self, group: Group, number: int, ranks: list[int], behind: list[dict[str, Any]]) -> None:
        self.group = group
        self.number = number
        self.ranks = ranks
        self.behind = behind
        self.endings: dict[int, dict[str, Any]] = {}
        self.order: list[int] = []  # ranks in the order in which they ended
        self.notes: list[tuple[int, str]] = []
        self._output = CellOutput()
        self._payloads: dict[int, values.Packed] = {}
        self.finished = False
        self._news: threading.Condition | None = None  # of a cell that a thread of its own follows
        self.lost: BaseException | None = None

    # ---- taking events in

    def take(self, event: Event) -> None:
        kind, _, rank, body, _, stream, descriptors = event
        if kind == "output":
            self._output.add((rank, stream), body)
        elif kind == "payload":
            self._payloads[rank] = values.Packed(descriptors[0], 0)  # closed with us if nobody asks for it
        elif kind == "rank_done":
            self.endings[rank] = body
            self.order.append(rank)
        elif kind == "note":
            self.notes.append((rank, body))
        elif kind == "cell_done":
            self.finished = True
        self._tell()

    def _tell(self) -> None:
        if self._news is not None:
            with self._news:
                self._news.notify_all()

    def pump(self, timeout: float) -> Event | None:
        """The next event, taken in; None if none came in time. Whoever pumps answers input requests."""
        self.group.require_own_process()
        event: Event | None = self.group.client.next(self.number, timeout)
        if event is not None:
            self.take(event)
            if self.finished:
                self.group.client.forget(self.number)
        return event

    def _pump_alone(self, timeout: float) -> None:
        """Where nobody could be asked, a question would wait for ever."""
        event = self.pump(timeout)
        if event is not None and event[0] == "input_request":
            self.group.client.send("input_reply", {"error": NOBODY_TO_ASK}, event[2], self.number)

    def follow(self) -> None:
        """Takes all events on a thread of its own, so that output arrives while the caller does something else."""

        def run() -> None:
            try:
                while not self.finished and not following.is_to_end():
                    self._pump_alone(following.LOOK)
            except Exception as error:
                self.lose(error)

        self.follow_with(run)

    def let_go(self) -> None:
        """Nobody waits for it any more. If it goes on, its output is taken all the same: left lying, it would fill the
        connection, and every later cell would wait behind it."""
        if not self.finished:
            self.drop_output()
            self.follow()

    def follow_with(self, run: Callable[[], None]) -> None:
        """`run` pumps until the cell is over or following.is_to_end(), on a thread of its own; wait() and lines() then look
        at what it took."""
        self._news = threading.Condition()
        following.start(run, f"ddip cell {self.number}")

    def lose(self, error: BaseException) -> None:
        """Nothing more will come of it."""
        self.lost = error
        self.finished = True
        self._tell()

    # ---- for users

    def done(self) -> bool:
        return self.finished

    @property
    def status(self) -> str:
        """running, done, failed, interrupted or lost."""
        if self.lost is not None:
            return "lost"
        if not self.finished:
            return "running"
        outcomes = {ending.get("outcome") for ending in self.endings.values()}
        for name, word in (("lost", "lost"), ("error", "failed"), ("interrupted", "interrupted")):
            if name in outcomes:
                return word
        return "done"

    def wait(self, timeout: float | None = None) -> bool:
        """Whether it is over. Returns early only when the time is."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self.finished:
            self.group.require_own_process()
            left = 1.0 if deadline is None else min(1.0, deadline - time.monotonic())
            if left <= 0:
                return False
            if self._news is None:
                self._pump_alone(left)
            else:
                with self._news:
                    if not self.finished:
                        self._news.wait(left)
        return True

    def cancel(self) -> dict[str, Any]:
        return self.group.interrupt(cell=self.number)

    def lines(self) -> Iterator[tuple[int, str]]:
        """(rank, line) as they come, until the cell is over."""
        reader = LineReader(self._output)
        while True:
            over = self.finished  # asked first: all that it said is there then
            yield from reader.take()
            if over:
                yield from reader.rest()
                return
            self.group.require_own_process()
            if self._news is None:
                self._pump_alone(0.2)
            else:
                with self._news:
                    if not reader.has_more() and not self.finished:
                        self._news.wait(0.2)

    @property
    def _lines(self) -> list[tuple[int, str]]:
        """Those that have come so far."""
        reader = LineReader(self._output)
        return [*reader.take(), *(reader.rest() if self.finished else ())]

    def text(self, rank: int, stream: int) -> str:
        return self._output.text((rank, stream))

    def drop_output(self) -> None:
        """What it said and will say is not kept: it is shown elsewhere, or nobody asks for it."""
        self._output.drop()

    def results(self) -> list[Result]:
        """One per rank, in rank order. Waits. Raises RankError if a rank failed."""
        self.wait()
        if self.lost is not None:
            raise self.lost
        self.raise_if_failed()
        return [self._result(rank) for rank in self.ranks]

    def _result(self, rank: int) -> Result:
        ending = self.endings[rank]
        value: Any = None
        about = ending.get("value")
        if about is not None:
            if about.get("packed") and rank in self._payloads:
                value = values.unpack(self._payloads.pop(rank).release())
                about["kept"] = value
            elif "kept" in about:
                value = about["kept"]
            else:
                value = Remote(self.group, rank, about.get("repr", ""), about.get("why", ""), about.get("handle"))
        return Result(
            rank,
            value,
            self.text(rank, OUT),
            self.text(rank, ERR),
            ending.get("seconds", 0.0),
            ending.get("memory", {}),
        )

    def raise_if_failed(self) -> None:
        failed = [rank for rank in self.order if self.endings[rank].get("outcome") != "ok"]
        if not failed:
            return
        if all(self.endings[rank]["outcome"] == "interrupted" for rank in failed):
            raise KeyboardInterrupt(
                f"cell {self.number} was interrupted on rank{'s' if len(failed) > 1 else ''} {_client.rank_list(sorted(failed))}"
            )
        # Whoever failed by itself comes before those that only failed because of it.
        failed.sort(
            key=lambda rank: (self.endings[rank]["outcome"] == "interrupted", "because_of" in self.endings[rank])
        )
        lost = {rank: self.lost_text(rank) for rank in failed if self.endings[rank]["outcome"] == "lost"}
        tracebacks = {rank: self.error_text(rank) for rank in failed if rank not in lost}
        raise RankError(failed, tracebacks, lost, len(self.ranks))

    def error_text(self, rank: int) -> str:
        ending = self.endings[rank]
        if "because_of" in ending:
            return f"stopped: it waited in a collective for rank {ending['because_of']}, which failed ({ending.get('type', '')})"
        return str(ending.get("traceback") or ending.get("why", ""))

    def lost_text(self, rank: int) -> str:
        ending = self.endings[rank]
        text = str(ending.get("why", "lost"))
        tail = ending.get("tail", "").strip("\n").splitlines()[-LAST_LINES:]
        if tail:
            text += "\n  its last lines:\n" + "\n".join("    " + line for line in tail)
        words = [line for line in ending.get("detail", {}).get("last_words", "").splitlines() if is_telling(line)]
        if words:
            text += "\n  where it was:\n" + "\n".join("    " + line for line in words)
        return text

    def __repr__(self) -> str:
        return f"<ddip cell {self.number} on group {self.group.name}: {self.status}>"
