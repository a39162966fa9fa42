"""Displays of which every rank has a part, and that are drawn here as one: a pipeline that runs (ddip/pipeline/live.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ddip.display.screen import Screen, new_handle
from ddip.pipeline.live_view import MIME, State, bundle_of, is_over

# The ranks tell their parts at the same moments; the picture waits for the last of them, but not longer than this (seconds).
PATIENCE = 0.6


@dataclass
class Whole:
    states: dict[int, State]  # by rank
    handle: str = field(default_factory=new_handle)
    drawn: float = 0.0
    told: set[int] = field(default_factory=set)  # ranks that have, since then


class Joined:
    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._wholes: dict[str, Whole] = {}  # by run

    def takes(self, body: dict[str, Any], arrived: float) -> bool:
        """Whether it belongs to a picture that is on the screen."""
        state = body["data"].get(MIME)
        whole = self._wholes.get(state["run"]) if state else None
        if state is None or whole is None:
            return False
        whole.states[state["rank"]] = state
        whole.told.add(state["rank"])
        if is_over(state) or len(whole.told) == len(whole.states) or arrived >= whole.drawn + PATIENCE:
            whole.drawn, whole.told = arrived, set()
            self._draw(whole, update=True)
        return True

    def begin(self, bodies: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        """Shows those of them that are parts; returns the others."""
        parts = {rank: body["data"][MIME] for rank, body in bodies.items() if MIME in body["data"]}
        for run in sorted({state["run"] for state in parts.values()}):
            whole = self._wholes[run] = Whole({rank: state for rank, state in parts.items() if state["run"] == run})
            self._draw(whole, update=False)
        return {rank: body for rank, body in bodies.items() if rank not in parts}

    def _draw(self, whole: Whole, update: bool) -> None:
        # A terminal takes nothing back: it gets the end only.
        if self._screen.rerenders or all(is_over(state) for state in whole.states.values()):
            self._screen.bundle(dict(bundle_of(whole.states)), {}, whole.handle, update=update)
