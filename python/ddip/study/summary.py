"""Each policy over its seeds: intervals, and a verdict beside `none` with the same schedule and optimizer."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ddip.study.confidence import Interval, interval, verdict
from ddip.study.plan import Cell, Study
from ddip.study.results import Row, line_of, shown
from ddip.study.settings import Run


@dataclass(frozen=True)
class Line:
    """One row of the table."""

    cell: Cell
    rate: float
    at_edge: bool
    seeds: int
    diverged: int
    loss: Interval
    accuracy: Interval
    reached: int  # seeds that came to the target
    time_to_target: Interval  # of those
    time: float  # of the whole run
    staleness: float
    moved: Interval
    prediction_error: Interval
    cosine: Interval
    copies: int
    bytes: int
    verdict: str  # empty for `none` itself and for baselines
    accuracies: list[float]  # mean over the seeds, at each evaluation


def lines_of(study: Study, rows: dict[Run, Row]) -> list[Line]:
    """REQUIRES: all runs are there."""
    found = []
    every = {cell: [row["loss"] for row in final_rows(study, cell, rows)] for cell in study.cells}
    losses = {cell: interval(values) for cell, values in every.items()}
    for cell in study.cells:
        of = final_rows(study, cell, rows)
        rate = study.best_rate(cell, rows)
        times = [row["time_to_target"] for row in of if row["time_to_target"] is not None]
        reference = Cell(cell.task, study.settings.schedule, "none", cell.optimizer)
        compared = cell.schedule == study.settings.schedule and cell != reference
        found.append(
            Line(
                cell=cell,
                rate=rate,
                at_edge=study.at_edge(cell, rate),
                seeds=len(of),
                diverged=diverged_in(every[cell]),
                loss=losses[cell],
                accuracy=interval([row["accuracy"] for row in of]),
                reached=len(times),
                time_to_target=interval(times),
                time=of[0]["time"],
                staleness=of[0]["staleness"],
                moved=interval([row["moved"] for row in of if row["moved"] is not None]),
                prediction_error=interval(
                    [row["prediction_error"] for row in of if row["prediction_error"] is not None]
                ),
                cosine=interval([row["cosine"] for row in of]),
                copies=of[0]["copies"],
                bytes=of[0]["bytes"],
                verdict=verdict_of(losses[cell], every[reference]) if compared else "",
                accuracies=[sum(values) / len(of) for values in zip(*(row["accuracies"] for row in of), strict=True)],
            )
        )
    return found


def diverged_in(losses: list[float]) -> int:
    return sum(not math.isfinite(loss) for loss in losses)


def verdict_of(loss: Interval, reference: list[float]) -> str:
    """Beside a reference that diverged everything would help: that says something of the reference alone."""
    if diverged := diverged_in(reference):
        return f"none diverged in {diverged} of {len(reference)}"
    return verdict(loss, interval(reference))


def final_rows(study: Study, cell: Cell, rows: dict[Run, Row]) -> list[Row]:
    rate = study.best_rate(cell, rows)
    return [rows[cell.run(rate, seed, "final")] for seed in range(study.seeds)]


def csv_of(lines: list[Line]) -> str:
    names = ["task", "schedule", "policy", "optimizer", "rate", "at_edge", "seeds", "diverged"]
    spread = ["loss", "accuracy", "time_to_target", "moved", "prediction_error", "cosine"]
    rest = ["reached", "time", "staleness", "copies", "bytes", "verdict"]
    text = line_of([*names, *(f"{name}{end}" for name in spread for end in ("", "_ci95")), *rest])
    for line in lines:
        values = {**vars(line), **vars(line.cell), "at_edge": int(line.at_edge)}
        ranges = [number for name in spread for number in (values[name].mean, values[name].half)]
        ranges = [None if math.isnan(number) else number for number in ranges]
        text += line_of([shown(value) for value in [*(values[n] for n in names), *ranges, *(values[n] for n in rest)]])
    return text
