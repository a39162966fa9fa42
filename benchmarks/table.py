"""One table for all measures: what, ddip (median, p90), peer (median, p90), ratio, target."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class Row:
    what: str
    ours: str
    peer: str
    ratio: str
    target: str


def quantiles(values: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(values)
    return statistics.median(ordered), ordered[min(len(ordered) - 1, int(len(ordered) * 0.9))]


def shown(values: Sequence[float], unit: str) -> str:
    median, p90 = quantiles(values)
    scale = {"ms": 1e3, "s": 1.0, "µs": 1e6}[unit]
    digits = 1 if unit == "µs" else 3 if median * scale < 10 else 1
    return f"{median * scale:.{digits}f} {unit} (p90 {p90 * scale:.{digits}f})"


class Table:
    def __init__(self) -> None:
        self.rows: list[Row] = []

    def add(self, what: str, ours: Sequence[float], peer: Sequence[float] | None, unit: str, target: str) -> None:
        """Times; the ratio is peer over ours, so larger is better."""
        ratio = "–"
        if peer:
            times = statistics.median(peer) / statistics.median(ours)
            ratio = f"{times:.1f}×" if times >= 2 else f"{times:.2f}×"
        self.rows.append(Row(what, shown(ours, unit), shown(peer, unit) if peer else "–", ratio, target))

    def say(self, what: str, ours: str, peer: str = "–", ratio: str = "–", target: str = "") -> None:
        self.rows.append(Row(what, ours, peer, ratio, target))

    def _cells(self) -> list[tuple[str, ...]]:
        head = ("measure", "ddip", "peer", "ratio", "target")
        return [head, *((row.what, row.ours, row.peer, row.ratio, row.target) for row in self.rows)]

    def text(self) -> str:
        cells = self._cells()
        widths = [max(len(row[column]) for row in cells) for column in range(5)]
        return "\n".join(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
        )

    def markdown(self, note: str) -> str:
        head, *rows = self._cells()
        lines = ["| " + " | ".join(head) + " |", "|" + "---|" * 5, *("| " + " | ".join(row) + " |" for row in rows)]
        return "\n".join(lines) + f"\n\n{note}\n"


def control_seconds() -> float:
    """A fixed amount of computing; what it takes tells whether the machine was quiet."""
    best = float("inf")
    for _ in range(7):
        begun = time.perf_counter()
        total = 0
        for number in range(1_500_000):
            total += number * number
        best = min(best, time.perf_counter() - begun)
    return best
