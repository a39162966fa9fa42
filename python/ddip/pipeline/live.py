"""A run that is watched while it goes on: every rank shows what it did last, and the notebook draws all of them as one picture
(live_view.py). Nothing travels between the ranks for it, and a rank that has nobody to show it to only looks at its clock."""

from __future__ import annotations

import math
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

import torch

from ddip.pipeline.live_view import MIME, State
from ddip.pipeline.report import Report, this_machine
from ddip.pipeline.timeline import KINDS

ACTIONS = 120  # of a rank, in the picture
LOSSES = 32  # micro-batches that are one point of the curve
POINTS = 200
EVERY, SELDOM = 0.25, 4.0  # seconds; the longer a run, the longer it can wait
SHARE = 0.01  # of the time, at the most


class Live:
    """One rank's part. `run`: equal on all ranks, and never seen before."""

    def __init__(self, run: str, rank: int, micro_batches: int) -> None:
        self._identity = uuid.uuid4().hex
        self._state: State = {
            "run": run, "rank": rank, "of": micro_batches, "machine": this_machine(), "start": 0.0, "seconds": 0.0, "actions": [],
            "losses": [], "cut": False, "state": "runs",
        }  # fmt: skip
        self._took = 0.0  # the last time
        self._staged: tuple[int, torch.Tensor, float] | None = None
        self._publish(update=False)

    def tell(self, record: Any) -> float:
        """What the executor calls between two actions; returns in how many seconds it wants to be called again."""
        begun = time.thread_time()  # not the clock's time: others may have had the core
        self._take(record)
        self._publish(update=True)
        return self._pause(time.thread_time() - begun)

    def _pause(self, took: float) -> float:
        """Until the next moment at which the ranks of this machine tell: if each had moments of its own, their last actions might
        not lie in the same time. What takes long only once, as the first time, does not count."""
        least = max(EVERY, min(self._state["seconds"] / 100, SELDOM), min(took, self._took) / SHARE)
        self._took = took
        every = EVERY * 2 ** math.ceil(math.log2(least / EVERY))
        return float(every - time.monotonic() % every)

    def end(self, report: Report | None) -> None:
        """None: the run did not come to its end. One rank shows the report for all."""
        self._state["state"] = "done" if report else "stopped"
        if report and self._state["rank"] == 0:
            self._state.update(html=report._repr_html_(), text=str(report))
        self._publish(update=True)

    def _take(self, record: Any) -> None:
        done = record.newest_actions(ACTIONS)
        self._state.update(start=record.start, seconds=done[-1].end, cut=len(done) == ACTIONS)
        self._state["actions"] = [
            [
                one.action.kind, one.action.stage, one.action.micro_batch, round(one.begin, 6), round(one.end, 6),
                one.action.staleness,
            ]
            for one in done
            if one.action.kind in KINDS
        ]  # fmt: skip
        # On a GPU the newest loss is still being computed; what was asked for the last time is here by now.
        if self._staged:
            micro_batch, total, count = self._staged
            self._add(micro_batch, float(total) / count)
        newest = record.newest_losses(LOSSES)
        self._staged = None
        if newest.count > 0:
            self._staged = newest.micro_batch, newest.sum.to("cpu", non_blocking=True), newest.count

    def _add(self, micro_batch: int, loss: float) -> None:
        losses = self._state["losses"]
        if losses and losses[-1][0] == micro_batch:
            return
        losses.append([micro_batch, loss if math.isfinite(loss) else None])  # JSON has no other word for it
        if len(losses) > POINTS:
            del losses[1:-1:2]

    def _publish(self, update: bool) -> None:
        from IPython.display import publish_display_data

        publish_display_data(
            {MIME: dict(self._state), "text/plain": "a pipeline runs"},
            transient={"display_id": self._identity},
            update=update,
        )


class Watch:
    """A run, shown if anybody wants to see it; also one that raises comes to an end on the screen. `report`: what it came to."""

    def __init__(self, show: bool) -> None:
        self._show = show and someone_looks()
        self._live: Live | None = None
        self.report = Report([], [], 0.0, [])

    def __enter__(self) -> Watch:
        return self

    def begin(self, run: str, rank: int, micro_batches: int) -> Callable[[Any], float] | None:
        """What the executor is to call, if anything."""
        if not self._show:
            return None
        self._live = Live(run, rank, micro_batches)
        return self._live.tell

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._live:
            self._live.end(None if kind else self.report)


def someone_looks() -> bool:
    """Whether this process has a place to show something in."""
    shell = sys.modules.get("IPython")
    return shell is not None and shell.get_ipython() is not None
