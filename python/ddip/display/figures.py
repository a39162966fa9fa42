"""Displays that are more than text: pictures, HTML, and what is updated in place."""

from __future__ import annotations

from typing import Any

from ddip.display.joined import Joined
from ddip.display.rank_lines import label, prefix
from ddip.display.screen import Screen, new_handle
from ddip.display.shown import Shown

# Figures that belong together come within this time, or are shown by rank.
PATIENCE = 0.3
# So many of the newest figures can still turn out to be equal to a late rank's.
REMEMBERED_FIGURES = 8


def is_text(body: dict[str, Any]) -> bool:
    """A display that is nothing but text goes with the text, and is compared line by line."""
    return list(body["data"]) == ["text/plain"] and not body["transient"].get("display_id") and body["kind"] != "update"


class Figures:
    """Rich displays: the k-th of every rank belong together. Equal ones are shown once, also when one comes late; of
    those that are updated in place (bars) only the lowest rank's is shown; others carry their rank."""

    def __init__(self, screen: Screen, see: list[int], shown: Shown | None = None) -> None:
        self._screen = screen
        self._see = see
        self._joined = Joined(screen)
        self._open = set(see)
        self._count = {rank: 0 for rank in see}
        self._waiting: dict[int, tuple[float, dict[int, dict[str, Any]]]] = {}
        self._shown = shown or Shown()
        self._labelled: dict[
            int, list[tuple[list[int], Any, str | None]]
        ] = {}  # k → (ranks, data, handle of the label)

    def add(self, arrived: float, rank: int, body: dict[str, Any]) -> None:
        identity = body["transient"].get("display_id")
        if self._joined.takes(body, arrived):
            return
        if body["kind"] == "update":
            return self._update(rank, identity, body)
        number = self._count[rank]
        self._count[rank] += 1
        for ranks, data, handle in self._labelled.get(number, []):
            if data == body["data"] and not identity:
                ranks.append(rank)
                text = "" if len(ranks) == len(self._see) else prefix(sorted(ranks)).rstrip()
                self._screen.region(handle, text)
                return
        self._waiting.setdefault(number, (arrived + PATIENCE, {}))[1][rank] = body

    def _update(self, rank: int, identity: str, body: dict[str, Any]) -> None:
        for _, waiting in self._waiting.values():
            if rank in waiting and waiting[rank]["transient"].get("display_id") == identity:
                waiting[rank] = {**body, "kind": "display"}
                return
        handle = self._shown.handle(rank, identity)
        if handle is not None:
            self._screen.bundle(body["data"], body["metadata"], handle, update=True)

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
        bodies = self._joined.begin(bodies)
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
                    self._shown.remember(rank, identity, handle if rank == ranks[0] else None)
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
