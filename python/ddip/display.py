"""A cell's events on the screen. In a notebook the text is one output that is re-rendered in place (what all ranks said
once, differences by rank, bars that move); on a terminal it is appended and never taken back."""

from __future__ import annotations

import sys
import time
import uuid
from collections import deque
from typing import Any

from ddip import _client
from ddip.cell import Event
from ddip.colours import without_colours

# Jupyter drops what comes faster than 1,000 messages or 1 MB a second.
RENDER_INTERVAL = 0.1
BYTES_PER_SECOND = 400_000
NOTEBOOK_LINES = 1000
PATIENCE = 0.3
# clear_output() of one rank leaves the others' output alone: so much of it can be shown again.
REMEMBERED_BYTES = 4 << 20


def prefix(ranks: list[int]) -> str:
    return f"[{_client.rank_list(ranks)}] "


def prefixed(text: str, ranks: list[int]) -> str:
    head = prefix(ranks)
    *lines, rest = text.split("\n")  # and only there: a form feed or U+2028 is part of its line
    return "".join(head + line + "\n" for line in lines) + (head + rest if rest else "")


class RankLines:
    """One rank's bytes as whole lines, each with its rank; of a bar the last frame."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._text = _client.Difference([rank], append=True, max_lines=0)

    def write(self, stream: int, data: bytes) -> list[tuple[int, str]]:
        self._text.write(self._rank, stream, data)
        return self._take()

    def close(self) -> list[tuple[int, str]]:
        self._text.close(self._rank)
        return [(stream, text if text.endswith("\n") else text + "\n") for stream, text in self._take()]

    def _take(self) -> list[tuple[int, str]]:
        return [(stream, prefixed(text, [self._rank])) for stream, text in self._text.take_text()]


class Screen:
    """Where text goes. The base class appends to sys.stdout and sys.stderr."""

    rerenders = False

    def __init__(self, coloured: bool = False) -> None:
        self.coloured = coloured

    def in_its_colours(self, text: str) -> str:
        """A traceback of a rank, say: plain where nobody would see colours."""
        return text if self.coloured else without_colours(text)

    def append(self, stream: int, text: str) -> None:
        target = sys.stderr if stream == 2 else sys.stdout
        target.write(text)
        target.flush()

    def region(self, handle: str | None, text: str) -> str | None:
        """Shows text in a region that can be shown anew; returns its handle."""
        raise NotImplementedError

    def bundle(
        self, data: dict[str, Any], metadata: dict[str, Any], handle: str | None = None, update: bool = False
    ) -> None:
        self.append(1, data.get("text/plain", "<display>") + "\n")

    def clear(self, wait: bool) -> None:
        pass


class NotebookScreen(Screen):
    """Messages carry the explicit parent of their cell, so that an async cell's output stays under it."""

    rerenders = True

    def __init__(self, shell: Any) -> None:
        super().__init__(coloured=True)
        publisher = shell.display_pub
        self._session = publisher.session
        self._socket = publisher.pub_socket
        self._topic = publisher.topic
        self._parent = shell.get_parent()

    def _send(self, kind: str, content: dict[str, Any]) -> None:
        sys.stdout.flush()  # what was printed here before comes before
        self._session.send(self._socket, kind, content, parent=self._parent, ident=self._topic)

    def append(self, stream: int, text: str) -> None:
        self._send("stream", {"name": "stderr" if stream == 2 else "stdout", "text": text})

    def region(self, handle: str | None, text: str) -> str | None:
        new = handle is None
        if handle is None:
            handle = new_handle()
        content = {"data": {"text/plain": text}, "metadata": {}, "transient": {"display_id": handle}}
        self._send("display_data" if new else "update_display_data", content)
        return handle

    def bundle(
        self, data: dict[str, Any], metadata: dict[str, Any], handle: str | None = None, update: bool = False
    ) -> None:
        content: dict[str, Any] = {"data": data, "metadata": metadata, "transient": {}}
        if handle is not None:
            content["transient"] = {"display_id": handle}
        self._send("update_display_data" if update else "display_data", content)

    def clear(self, wait: bool) -> None:
        self._send("clear_output", {"wait": wait})


def new_handle() -> str:
    """Never seen in this notebook before, or an output of another cell, or of the kernel before this, would change too."""
    return f"ddip-{uuid.uuid4().hex}"


def screen_for(shell: Any) -> Screen:
    if hasattr(shell, "kernel"):
        return NotebookScreen(shell)
    return Screen(coloured=sys.stdout.isatty() and getattr(shell, "colors", "").lower() != "nocolor")


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


def label(ranks: list[int]) -> str:
    """The line above what is not text."""
    return prefix(ranks).rstrip() + "\n"


class Merged:
    """By difference."""

    def __init__(self, screen: Screen, see: list[int]) -> None:
        self._screen = screen
        self._see = see
        self._open = set(see)
        self._figures = Figures(screen, see)
        self._notes: list[str] = []
        self._dirty = False
        self._next_render = 0.0
        self._said: deque[Event] = deque()  # since the last clear_output()
        self._said_bytes = 0
        self._clearing: Clearing | None = None
        self._early_bar: float | None = None  # when a bar of a higher rank is shown, if the lowest draws none
        self._behind: list[tuple[float, Event]] = []  # what ranks said after a figure that is not shown yet
        self._begin_region()

    def _begin_region(self) -> None:
        self._text = _client.Difference(
            self._see,
            append=not self._screen.rerenders,
            max_lines=NOTEBOOK_LINES if self._screen.rerenders else 100_000,
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
        self._figures = Figures(self._screen, self._see)
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
        if self._early_bar is not None and self._early_bar > now:
            self._dirty = True
        if self._dirty and now >= self._next_render:
            self._render(final=False)
        waits = [1.0] + [one for one in (self._text.wait(), self._figures.wait(now)) if one is not None]
        if self._clearing is not None:
            waits.append(self._clearing.until - now)
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
        text = self._whole()
        if text == self._shown or not text:
            return
        self._shown = text
        self._handle = self._screen.region(self._handle, text)
        self._next_render = time.monotonic() + max(RENDER_INTERVAL, len(text) / BYTES_PER_SECOND)

    def _bar_rank(self, bars: dict[int, list[str]]) -> int | None:
        """Whose bars are shown: the lowest rank's. One that is only first to draw has to wait for it a moment."""
        rank = min(bars, default=None)
        if rank is None or rank <= min(self._open, default=rank):
            self._early_bar = None
            return rank
        now = time.monotonic()
        self._early_bar = self._early_bar or now + PATIENCE
        return rank if now >= self._early_bar else None

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


def size_of(body: Any) -> int:
    return len(body) if isinstance(body, bytes) else sum(len(str(value)) for value in body["data"].values())


class Clearing:
    """A clear_output() on its way: who asked for it, and what they have said since."""

    def __init__(self, until: float, wait: bool) -> None:
        self.until = until
        self.wait = wait
        self.ranks: set[int] = set()
        self.held: list[tuple[float, Event]] = []


def is_text(body: dict[str, Any]) -> bool:
    """A display that is nothing but text goes with the text, and is compared line by line."""
    return list(body["data"]) == ["text/plain"] and not body["transient"].get("display_id") and body["kind"] != "update"


# So many of the newest figures can still turn out to be equal to a late rank's.
REMEMBERED_FIGURES = 8


class Figures:
    """Rich displays: the k-th of every rank belong together. Equal ones are shown once, also when one comes late; of
    those that are updated in place (bars) only the lowest rank's is shown; others carry their rank."""

    def __init__(self, screen: Screen, see: list[int]) -> None:
        self._screen = screen
        self._see = see
        self._open = set(see)
        self._count = {rank: 0 for rank in see}
        self._waiting: dict[int, tuple[float, dict[int, dict[str, Any]]]] = {}
        self._shown: dict[tuple[int, str], str | None] = {}  # (rank, its display id) → ours; None: not shown
        self._labelled: dict[
            int, list[tuple[list[int], Any, str | None]]
        ] = {}  # k → (ranks, data, handle of the label)

    def add(self, arrived: float, rank: int, body: dict[str, Any]) -> None:
        identity = body["transient"].get("display_id")
        if body["kind"] == "update":
            handle = self._shown.get((rank, identity))
            if handle is not None:
                self._screen.bundle(body["data"], body["metadata"], handle, update=True)
            elif (rank, identity) not in self._shown:
                for _, waiting in self._waiting.values():
                    if rank in waiting and waiting[rank]["transient"].get("display_id") == identity:
                        waiting[rank] = {**body, "kind": "display"}
            return
        number = self._count[rank]
        self._count[rank] += 1
        for ranks, data, handle in self._labelled.get(number, []):
            if data == body["data"] and not identity:
                ranks.append(rank)
                text = "" if len(ranks) == len(self._see) else prefix(sorted(ranks)).rstrip()
                self._screen.region(handle, text)
                return
        self._waiting.setdefault(number, (arrived + PATIENCE, {}))[1][rank] = body

    def waits_for(self, rank: int) -> bool:
        """Whether a figure of this rank is not shown yet."""
        return any(rank in bodies for _, bodies in self._waiting.values())

    def close(self, rank: int) -> None:
        self._open.discard(rank)

    def pending(self) -> bool:
        return bool(self._waiting)

    def _ready(self, number: int, now: float) -> bool:
        deadline, bodies = self._waiting[number]
        return now >= deadline or all(rank in bodies or rank not in self._open for rank in self._see)

    def due(self, now: float) -> bool:
        return any(self._ready(number, now) for number in self._waiting)

    def wait(self, now: float) -> float | None:
        return min((deadline - now for deadline, _ in self._waiting.values()), default=None)

    def emit(self, now: float) -> None:
        for number in sorted(self._waiting):
            if self._ready(number, now):
                self._emit_one(number, self._waiting.pop(number)[1])

    def _emit_one(self, number: int, bodies: dict[int, dict[str, Any]]) -> None:
        groups: list[tuple[list[int], dict[str, Any]]] = []
        for rank, body in sorted(bodies.items()):
            for ranks, shown in groups:
                if shown["data"] == body["data"]:
                    ranks.append(rank)
                    break
            else:
                groups.append(([rank], body))
        updatable = all(body["transient"].get("display_id") for body in bodies.values())
        for index, (ranks, body) in enumerate(groups):
            hidden = updatable and index > 0
            handle = None
            if body["transient"].get("display_id") and not hidden:
                handle = new_handle()
            for rank in ranks:
                identity = bodies[rank]["transient"].get("display_id")
                if identity:
                    self._shown[(rank, identity)] = handle if rank == ranks[0] else None
            if hidden:
                continue
            if len(ranks) < len(self._see) and not updatable:
                self._label(number, ranks, body["data"])
            self._screen.bundle(body["data"], body["metadata"], handle)

    def _label(self, number: int, ranks: list[int], data: Any) -> None:
        if not self._screen.rerenders:
            return self._screen.append(1, label(ranks))
        handle = self._screen.region(None, prefix(ranks).rstrip())
        self._labelled.setdefault(number, []).append((ranks, data, handle))
        while len(self._labelled) > REMEMBERED_FIGURES:
            del self._labelled[min(self._labelled)]


class Quiet:
    """-q: nothing but errors."""

    def show(self, event: Event) -> None:
        pass

    def tick(self) -> float:
        return 1.0

    def pause(self) -> None:
        pass

    def finish(self) -> None:
        pass


def renderer(screen: Screen, see: list[int], plain: bool = False, quiet: bool = False) -> Any:
    if quiet or not see:
        return Quiet()
    return Plain(screen, see) if plain else Merged(screen, see)
