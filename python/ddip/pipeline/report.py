"""What a run of a pipeline did: losses, times and memory of each stage, the trace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from ddip.pipeline.chrome_trace import chrome_trace
from ddip.pipeline.memory import Memory, readable
from ddip.pipeline.rows import Rows, columns
from ddip.pipeline.timeline import KINDS, timeline

COMPUTE = ("forward", "backward", "weight_gradient", "step", "predict", "stash")


@dataclass
class Gap:
    """How far a stage's weights moved while its micro-batches were on their way; means over the run."""

    moved: float  # ‖w_B − w_F‖: from the true version that a forward read to the newest at its backward
    error: (
        float  # ‖ŵ − w_B‖ / ‖w_F − w_B‖, where they moved: below 1 predictions help; 1 without one, 0 if nothing moved
    )


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
    busy: float = 0.0  # all of the rank's computing, that of its other stages too
    total: float = 0.0  # of the run
    bubble: float = 0.0  # the share of the run in which the rank computed nothing
    staleness: dict[int, int] = field(default_factory=dict)  # n -> forwards
    bytes_sent: int = 0
    copies_kept: int = 0  # of weights, the most at one time
    memory: Memory = field(default_factory=Memory)
    gap: Gap | None = None  # Pipeline(…, gaps=True)
    steps: int = 0
    left_out: int = 0  # of these: their gradients were too large for half precision
    loss_scale: float | None = None  # in half precision, of the last stage: after the run

    @property
    def cells(self) -> list[str]:
        """As TIMES has them."""
        seconds = (self.forward, self.backward, self.update, self.communication, self.wait)
        return [str(self.stage), str(self.rank), *(f"{one:.2f}s" for one in seconds), f"{self.bubble:.1%}"]

    @property
    def memory_cells(self) -> list[str]:
        """As MEMORY has them."""
        parts = (self.memory.weights, self.memory.gradients, self.memory.optimizer)
        copies = f"{readable(self.memory.copies)} ({self.copies_kept})" if self.copies_kept else "0"
        activations = f"{readable(self.memory.activations)} ({self.memory.in_flight})"
        stale = ", ".join(f"{n}: {count}" for n, count in sorted(self.staleness.items()))
        return [str(self.stage), *map(readable, parts), copies, activations, stale]


GAPS = ("stage", "weights moved", "error of what was used")
TIMES = ("stage", "rank", "forward", "backward", "update", "send", "wait", "bubble")
MEMORY = ("stage", "weights", "gradients", "optimizer", "copies", "activations", "forwards by staleness")


@dataclass(repr=False)
class Report:
    """`losses`: the mean of each batch, NaN of one that counted nothing. `trace`: what every rank did, with times: (rank, kind, stage,
    micro-batch, begin, end). `metrics`: of an evaluation, the means over all samples. `counts`: what each batch counts for."""

    losses: list[float]
    stages: list[StageTimes]
    seconds: float
    trace: Sequence[dict[str, Any]]
    metrics: dict[str, float] = field(default_factory=dict)
    counts: list[float] = field(default_factory=list)
    is_evaluation: bool = False

    @property
    def loss(self) -> float:
        """The mean over all samples; of batches alike, where nobody counted them. NaN if there are none."""
        counts = self.counts or [1.0] * len(self.losses)
        pairs = [(loss, count) for loss, count in zip(self.losses, counts, strict=True) if count]
        return sum(loss * count for loss, count in pairs) / sum(count for _, count in pairs) if pairs else math.nan

    @property
    def bubble(self) -> float:
        """The share of all ranks' time in which nothing was computed. A rank with several stages counts once."""
        by_rank = {stage.rank: stage.bubble for stage in self.stages}
        return sum(by_rank.values()) / len(by_rank) if by_rank else 0.0

    def timeline(self, begin: float = 0.0, end: float | None = None) -> str:
        """An SVG of what every rank did from second `begin` to second `end`."""
        return timeline(self.trace, begin, end)

    def _repr_html_(self) -> str:
        """Tables, and a picture of the beginning: in all of a long run nothing could be told apart."""
        tables = [as_html(*table) for table in self.tables()]
        return "\n".join([*tables, f"<p>{escape(self.summary())}</p>", self.timeline(0.0, self._beginning())])

    def _beginning(self, boxes: int = 60) -> float:
        """Until when no rank has done more than so many things."""
        ends: dict[int, list[float]] = {}
        for rank, kind, end in zip(*columns(self.trace, "rank", "kind", "end"), strict=True):
            if kind in KINDS:
                ends.setdefault(rank, []).append(end)
        return min((sorted(one)[boxes - 1] for one in ends.values() if len(one) > boxes), default=self.seconds)

    def save_trace(self, path: str | Path) -> None:
        """For chrome://tracing and ui.perfetto.dev."""
        Path(path).write_text(chrome_trace(self.trace))

    def tables(self) -> list[tuple[tuple[str, ...], list[list[str]]]]:
        """Names of the columns, and the rows: where the time of each stage went, and what it held."""
        times = TIMES, [one.cells for one in self.stages]
        gaps = [
            [str(one.stage), f"{one.gap.moved:.4g}", f"{one.gap.error:.3f}" if one.gap.moved else "–"]
            for one in self.stages
            if one.gap
        ]
        return [times, (MEMORY, [one.memory_cells for one in self.stages]), *([(GAPS, gaps)] if gaps else [])]

    def summary(self) -> str:
        batches = "1 batch" if len(self.losses) == 1 else f"{len(self.losses)} batches"
        counted = [bool(count) for count in self.counts] or [True] * len(self.losses)
        said = []
        if self.losses and self.is_evaluation:
            said = [f"mean loss {self.loss:.4g}" if any(counted) else "mean loss –"]
        elif self.losses:
            said = [f"last loss {self.losses[-1]:.4g}" if counted[-1] else "last loss –"]
        said += [f"{name} {value:.4g}" for name, value in self.metrics.items()]
        if self.stages and (scale := self.stages[-1].loss_scale):
            said.append(f"loss scale {scale:g}, {steps_left_out(max(one.left_out for one in self.stages))}")
        return ", ".join([f"{batches} in {self.seconds:.2f} s", *said])

    def __str__(self) -> str:
        return "\n\n".join([*(as_text(*table) for table in self.tables() if table[1]), self.summary()])

    __repr__ = __str__  # the same on all ranks: a cell that ends with a report shows it once


def steps_left_out(count: int) -> str:
    """Of the stage with the most."""
    return f"{count or 'no'} step{'' if count == 1 else 's'} left out"


def as_text(names: tuple[str, ...], rows: list[list[str]]) -> str:
    widths = [max(len(row[column]) for row in (names, *rows)) for column in range(len(names))]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in (names, *rows)
    )


def as_html(names: tuple[str, ...], rows: list[list[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def rows_of(record: Any, rank: int, replica: int = 0) -> Rows:
    return Rows.of(
        {
            "rank": rank, "replica": replica, "kind": done.action.kind, "direction": done.action.direction, "stage": done.action.stage,
            "micro_batch": done.action.micro_batch, "edge": done.action.edge, "version": done.action.version,
            "staleness": done.action.staleness, "begin": done.begin, "end": done.end,
        }
        for done in record.actions
    )  # fmt: skip


def on_one_clock(parts: list[tuple[Rows, float, str]]) -> Rows:
    """The rows of all ranks, from the first one's beginning on; `parts`: a rank's rows, when it began, and the machine whose
    clock said so. Ranks on other machines are taken to have begun together."""
    begun: dict[str, float] = {}
    for _, start, machine in parts:
        begun[machine] = min(start, begun.get(machine, start))
    whole = Rows()
    for rows, start, machine in parts:
        whole.extend(rows, later=start - begun[machine])
    return whole


def this_machine() -> str:
    """Since it was started: its clock begins anew then."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def times_of(record: Any, stage: int, rank: int) -> StageTimes:
    """All but the bubble, which nobody knows before the last rank has ended: `share_of_run`."""
    times = StageTimes(stage, rank, bytes_sent=record.bytes_sent)
    for done in record.actions:
        seconds = done.end - done.begin
        kind = done.action.kind
        if kind in COMPUTE:
            times.busy += seconds
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
            times.steps += 1
            times.left_out += done.stepped.left_out
        elif kind == "receive":
            times.wait += seconds
        else:
            times.communication += seconds
    return times


def share_of_run(stages: list[StageTimes], seconds: float) -> None:
    """`seconds`: from the first rank's beginning to the last one's end. A rank that begins late or ends early is idle the while."""
    for one in stages:
        one.total = seconds
        one.bubble = 1.0 - one.busy / seconds if seconds else 0.0
