"""By difference: what all ranks said once, the rest by rank. In a notebook the text is one output that is re-rendered in
place, with bars that move; on a terminal it is appended and never taken back."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from ddip import _client
from ddip.cell import Event
from ddip.display.figures import Figures, is_text
from ddip.display.rank_lines import prefixed
from ddip.display.screen import Screen
from ddip.display.shown import Shown

# Jupyter drops what comes faster than 1,000 messages or 1 MB a second.
RENDER_INTERVAL = 0.1
BYTES_PER_SECOND = 400_000
NOTEBOOK_LINES = 1000
NOTEBOOK_CHARACTERS = 400_000  # in all of them: one message shows them all
TERMINAL_LINES = 100_000
# What one rank does first the others get a moment to do too: a clear_output() ...
PATIENCE = 0.3
# ... or a bar. A busy machine may hold up one rank so long, and a bar that changes its owner looks broken.
BAR_PATIENCE = 1.0
# clear_output() of one rank leaves the others' output alone: so much of it can be shown again.
REMEMBERED_BYTES = 4 << 20


class Merged:
    """By difference."""

    def __init__(self, screen: Screen, see: list[int], shown: Shown | None = None) -> None:
        self._screen = screen
        self._see = see
        self._open = set(see)
        self._shown_before = shown or Shown()
        self._figures = Figures(screen, see, self._shown_before)
        self._notes: list[str] = []
        self._dirty = False
        self._next_render = 0.0
        self._said: deque[Event] = deque()  # since the last clear_output()
        self._said_bytes = 0
        self._clearing: Clearing | None = None
        self._early_bar: float | None = None  # when a bar of a higher rank is shown, if the lowest draws none
        self._bar_waits = False  # for that time
        self._behind: list[tuple[float, Event]] = []  # what ranks said after a figure that is not shown yet
        self._begin_region()

    def _begin_region(self) -> None:
        self._text = _client.Difference(
            self._see,
            append=not self._screen.rerenders,
            max_lines=NOTEBOOK_LINES if self._screen.rerenders else TERMINAL_LINES,
        )
        self._handle: str | None = None
        self._shown = ""
        self._notes = []

    def show(self, event: Event) -> None:
        self._route(time.monotonic(), event)
        self.tick()

    def _route(self, arrived: float, event: Event) -> None:
        """Order is kept per rank: what comes after a clear_output() or a figure waits until that is done."""
        kind, _, rank, body, _, _, _ = event
        if kind == "display" and body.get("kind") == "clear":
            if rank in self._see and self._screen.rerenders:  # a terminal takes nothing back
                self._clear(arrived, rank, bool(body.get("wait")))
        elif self._clearing is not None and rank in self._clearing.ranks:
            self._clearing.held.append((arrived, event))
        elif self._figures.waits_for(rank):
            self._behind.append((arrived, event))
        else:
            self._take(arrived, event)

    def _take(self, arrived: float, event: Event) -> None:
        kind, _, rank, body, _, stream, _ = event
        if kind in ("note", "gap"):
            self._notes.append(str(body) if rank < 0 else f"rank {rank}: {body}")
        elif rank not in self._see:
            return
        elif kind == "output":
            self._text.write(rank, stream, body)
            self._remember(event, size_of(body))
        elif kind == "rank_done":
            self._open.discard(rank)
            self._text.close(rank)
            self._figures.close(rank)
        elif kind == "display":
            if is_text(body):
                self._text.write(rank, 1, (body["data"]["text/plain"] + "\n").encode())
            else:
                self._figures.add(arrived, rank, body)
            self._remember(event, size_of(body))
        else:
            return
        self._dirty = True

    def _remember(self, event: Event, size: int) -> None:
        if not self._screen.rerenders:
            return
        self._said.append(event)
        self._said_bytes += size
        while self._said_bytes > REMEMBERED_BYTES and len(self._said) > 1:
            _, _, _, body, _, _, _ = self._said.popleft()
            self._said_bytes -= size_of(body)

    def _clear(self, arrived: float, rank: int, wait: bool) -> None:
        """A rank's clear_output() wipes what that rank said. The others get a moment to say the same, so that frames of
        an animation that all ranks draw replace each other whole."""
        if self._clearing is None:
            self._clearing = Clearing(arrived + PATIENCE, wait)
        self._clearing.ranks.add(rank)
        self._clearing.held = [one for one in self._clearing.held if one[1][2] != rank]
        self._behind = [one for one in self._behind if one[1][2] != rank]

    def _clear_now(self, clearing: Clearing) -> None:
        self._clearing = None
        now = time.monotonic()
        again = [(now, event) for event in self._said if event[2] not in clearing.ranks] + self._behind + clearing.held
        self._said.clear()
        self._said_bytes, self._behind = 0, []
        notes = self._notes
        self._begin_region()
        self._notes = notes
        self._figures = Figures(self._screen, self._see, self._shown_before)
        for rank in self._see:
            if rank not in self._open:
                self._text.close(rank)
                self._figures.close(rank)
        self._screen.clear(clearing.wait)
        self._dirty = True
        for arrived, event in again:
            self._route(arrived, event)

    def _show_figures(self, now: float) -> None:
        """The text before them, then the figures that are due, then what was said after them."""
        self._render(final=True)
        self._begin_region()
        for rank in self._see:
            if rank not in self._open:
                self._text.close(rank)
        self._figures.emit(now)
        behind, self._behind = self._behind, []
        for arrived, event in behind:
            self._route(arrived, event)

    def tick(self) -> float:
        """Renders what is due; returns in how many seconds to come again."""
        now = time.monotonic()
        if self._clearing is not None and (now >= self._clearing.until or self._clearing.ranks >= self._open):
            self._clear_now(self._clearing)
        wait = self._text.wait()
        if wait is not None and wait <= 0:
            self._text.advance()
            self._dirty = True
        while self._figures.due(now):
            self._show_figures(now)
        if self._bar_waits and self._early_bar is not None and now >= self._early_bar:
            self._dirty = True
        if self._dirty and now >= self._next_render:
            self._render(final=False)
        waits = [1.0] + [one for one in (self._text.wait(), self._figures.wait(now)) if one is not None]
        if self._clearing is not None:
            waits.append(self._clearing.until - now)
        if self._bar_waits and self._early_bar is not None:
            waits.append(self._early_bar - now)
        if self._dirty:
            waits.append(self._next_render - now)
        return max(0.0, min(waits))

    def pause(self) -> None:
        """Something else comes on the screen now: what was said stands above it, what will be said below."""
        self.finish()
        self._begin_region()

    def finish(self) -> None:
        while self._clearing is not None:
            self._clear_now(self._clearing)
        while self._figures.pending():
            self._show_figures(float("inf"))
        self._render(final=True)

    def _render(self, final: bool) -> None:
        self._dirty = False
        if final:
            for rank in self._see:
                self._text.close(rank)
        if not self._screen.rerenders:
            for stream, text in self._text.take_text():
                self._screen.append(stream, text)
            for note in self._notes:
                self._screen.append(2, f"ddip: {note}\n")
            self._notes = []
            return
        text = shortened(self._whole(), NOTEBOOK_CHARACTERS)
        if text == self._shown or not text:
            return
        self._shown = text
        self._handle = self._screen.region(self._handle, text)
        self._next_render = time.monotonic() + max(RENDER_INTERVAL, len(text) / BYTES_PER_SECOND)

    def _bar_rank(self, bars: dict[int, list[str]]) -> int | None:
        """Whose bars are shown: the lowest rank's. One that is only first to draw has to wait for it a moment."""
        rank = min(bars, default=None)
        if rank is None or rank <= min(self._open, default=rank):
            self._early_bar, self._bar_waits = None, False
            return rank
        now = time.monotonic()
        self._early_bar = self._early_bar or now + BAR_PATIENCE
        self._bar_waits = now < self._early_bar
        return None if self._bar_waits else rank

    def _whole(self) -> str:
        parts = []
        for ranks, _, text, elided in self._text.blocks():
            if elided:
                parts.append(text if text.endswith("\n") else text + "\n")
            else:
                parts.append(text if len(ranks) == len(self._see) else prefixed(text, ranks))
        bars = self._text.bars()
        rank = self._bar_rank(bars)
        if rank is not None:
            text = "\n".join(bars[rank]) + "\n"
            parts.append(text if len(self._see) == 1 else prefixed(text, [rank]))
        parts += [f"ddip: {note}\n" for note in self._notes]
        return "".join(parts).rstrip("\n")


def shortened(text: str, most: int) -> str:
    """Its beginning and its end, in whole lines where they are not too long for that."""
    if len(text) <= most:
        return text
    head, tail = text[: most // 2], text[-(most // 2) :]
    head = head[: head.rfind("\n")] if "\n" in head else head
    tail = tail[tail.find("\n") + 1 :]
    left_out = len(text) - len(head) - len(tail)
    return f"{head}\n… {left_out} characters elided (%diplog)\n{tail}"


def size_of(body: Any) -> int:
    return len(body) if isinstance(body, bytes) else sum(len(str(value)) for value in body["data"].values())


class Clearing:
    """A clear_output() on its way: who asked for it, and what they have said since."""

    def __init__(self, until: float, wait: bool) -> None:
        self.until = until
        self.wait = wait
        self.ranks: set[int] = set()
        self.held: list[tuple[float, Event]] = []
