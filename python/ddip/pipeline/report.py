"""What a run of a pipeline did: losses, times of each stage, the trace."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ddip.pipeline.timeline import timeline

COMPUTE = ("forward", "backward", "weight_gradient", "step", "predict", "stash")


@dataclass
class StageTimes:
    """Seconds of one stage's rank, by what they went into."""

    stage: int
    rank: int
    forward: float = 0.0
    backward: float = 0.0
    update: float = 0.0
    communication: float = 0.0  # handing messages over
    wait: float = 0.0  # for messages
    total: float = 0.0
    bubble: float = 0.0  # the share of the run in which the rank computed nothing
    staleness: dict[int, int] = field(default_factory=dict)  # n -> forwards
    bytes_sent: int = 0
    copies_kept: int = 0


@dataclass
class Report:
    """`losses`: the mean of each batch. `trace`: what every rank did, with times: (rank, kind, stage, micro-batch, begin, end)."""

    losses: list[float]
    stages: list[StageTimes]
    seconds: float
    trace: list[dict[str, Any]]

    @property
    def bubble(self) -> float:
        """The share of all ranks' time in which nothing was computed."""
        return sum(stage.bubble for stage in self.stages) / len(self.stages) if self.stages else 0.0

    def timeline(self, begin: float = 0.0, end: float | None = None) -> str:
        """An SVG of what every rank did from second `begin` to second `end`."""
        return timeline(self.trace, begin, end)

    def _repr_svg_(self) -> str:
        """The first tenth of a second, or all of it if it was shorter: in a long run nothing could be told apart."""
        return timeline(self.trace, 0.0, 0.1)

    def save_trace(self, path: str | Path) -> None:
        """For chrome://tracing and ui.perfetto.dev."""
        events: list[dict[str, Any]] = []
        for rank in sorted({row["rank"] for row in self.trace}):
            events.append({"name": "process_name", "ph": "M", "pid": rank, "args": {"name": f"rank {rank}"}})
        for row in self.trace:
            events.append(
                {
                    "name": f"{row['kind']} {row['micro_batch']}", "cat": row["kind"], "ph": "X", "pid": row["rank"], "tid": row["stage"],
                    "ts": row["begin"] * 1e6, "dur": (row["end"] - row["begin"]) * 1e6,
                    "args": {"micro_batch": row["micro_batch"], "version": row["version"], "staleness": row["staleness"]},
                }
            )  # fmt: skip
        Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))

    def __str__(self) -> str:
        lines = [
            f"{'stage':>5} {'rank':>4} {'forward':>8} {'backward':>8} {'update':>8} {'send':>8} {'wait':>8} {'bubble':>7}"
        ]
        for one in self.stages:
            lines.append(
                f"{one.stage:>5} {one.rank:>4} {one.forward:>7.2f}s {one.backward:>7.2f}s {one.update:>7.2f}s "
                f"{one.communication:>7.2f}s {one.wait:>7.2f}s {one.bubble:>6.1%}"
            )
        last = f", last loss {self.losses[-1]:.4g}" if self.losses else ""
        return "\n".join([*lines, f"{len(self.losses)} batches in {self.seconds:.2f} s{last}"])


def rows_of(record: Any, rank: int) -> list[dict[str, Any]]:
    return [
        {
            "rank": rank, "kind": done.action.kind, "direction": done.action.direction, "stage": done.action.stage,
            "micro_batch": done.action.micro_batch, "edge": done.action.edge, "version": done.action.version,
            "staleness": done.action.staleness, "begin": done.begin, "end": done.end,
        }
        for done in record.actions
    ]  # fmt: skip


def times_of(record: Any, stage: int, rank: int, kept: int) -> StageTimes:
    times = StageTimes(stage, rank, bytes_sent=record.bytes_sent, copies_kept=kept)
    busy = 0.0
    for done in record.actions:
        seconds = done.end - done.begin
        kind = done.action.kind
        times.total = max(times.total, done.end)
        if kind in COMPUTE:
            busy += seconds
        if done.action.stage != stage:
            continue
        if kind == "forward":
            times.forward += seconds
            staleness = done.action.staleness
            times.staleness[staleness] = times.staleness.get(staleness, 0) + 1
        elif kind in ("backward", "weight_gradient"):
            times.backward += seconds
        elif kind == "step":
            times.update += seconds
        elif kind == "receive":
            times.wait += seconds
        else:
            times.communication += seconds
    times.bubble = 1.0 - busy / times.total if times.total else 0.0
    return times
