"""Pictures of a study as SVG: final losses with their intervals, and accuracy over simulated time."""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape

from ddip.study.clock import times_of
from ddip.study.plan import Cell, Study
from ddip.study.summary import Line
from ddip.study.table import name_of
from ddip.study.tasks import TASKS

COLOURS = {"helps": "#2a9d4a", "no difference": "#777777", "hurts": "#d62728", "": "#4c78a8"}
LINES = ["#4c78a8", "#f58518", "#e45756", "#72b7b2", "#54a24b", "#b279a2", "#ff9da6", "#9d755d", "#eeca3b", "#222222"]
DASHES = ["", "6 3", "2 3"]
LEFT, WIDTH, ROW = 190, 760, 22


def losses(study: Study, lines: list[Line]) -> str:
    """A dot and its interval for each policy; behind them the interval of `none` with that optimizer."""
    finite = [line for line in lines if math.isfinite(line.loss.mean)]
    halves = [0.0 if math.isnan(line.loss.half) else line.loss.half for line in finite]
    low = min((line.loss.mean - half for line, half in zip(finite, halves, strict=True)), default=0.0)
    high = max((line.loss.mean + half for line, half in zip(finite, halves, strict=True)), default=1.0)
    scale = (WIDTH - LEFT - 150) / max(high - low, 1e-9)

    def x(loss: float) -> float:
        return LEFT + (loss - low) * scale

    parts, y = [], 46
    for optimizer in dict.fromkeys(line.cell.optimizer for line in lines):
        of = [line for line in lines if line.cell.optimizer == optimizer]
        none = next(line for line in of if line.cell == none_of(study, line))
        parts.append(f'<text x="8" y="{y}" font-weight="bold">{optimizer}</text>')
        if math.isfinite(none.loss.low):
            width = max((none.loss.high - none.loss.low) * scale, 1)
            parts.append(
                f'<rect x="{x(none.loss.low):.1f}" y="{y + 4}" width="{width:.1f}" height="{ROW * len(of)}" fill="#4c78a8" fill-opacity=".15"/>'
            )
        for line in of:
            y += ROW
            parts += dot(study, line, x, y - 4)
        y += ROW
    parts += ticks(low, high, x, y)
    title = f"{lines[0].cell.task}: held-out loss after the run, mean and 95% interval (shaded: none's)"
    return picture(title, parts, y + 28)


def none_of(study: Study, line: Line) -> Cell:
    return Cell(line.cell.task, study.settings.schedule, "none", line.cell.optimizer)


def dot(study: Study, line: Line, x: Callable[[float], float], y: float) -> list[str]:
    colour = COLOURS.get(line.verdict, COLOURS["no difference"])
    name = f'<text x="20" y="{y + 4}">{escape(name_of(study, line))}</text>'
    if line.diverged:
        return [name, f'<text x="{LEFT}" y="{y + 4}" fill="{COLOURS["hurts"]}">diverged</text>']
    half = 0.0 if math.isnan(line.loss.half) else line.loss.half
    begin, end = x(line.loss.mean - half), x(line.loss.mean + half)
    said = f"{name_of(study, line)}: {line.loss.mean:.4f} ± {half:.4f}"
    return [
        name,
        f'<line x1="{begin:.1f}" x2="{end:.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>',
        f'<circle cx="{x(line.loss.mean):.1f}" cy="{y}" r="4" fill="{colour}"><title>{escape(said)}</title></circle>',
        f'<text x="{WIDTH - 120}" y="{y + 4}" fill="{colour}">{line.verdict}</text>',
    ]


def accuracy_over_time(study: Study, lines: list[Line]) -> str:
    """One line for each policy. All runs have as many micro-batches: who waits needs longer for them."""
    height, top, right = 380, 36, WIDTH - 200
    last = max(line.time for line in lines)
    target = study.settings.target or TASKS[lines[0].cell.task].target
    highest = max(target, *(max(line.accuracies) for line in lines))  # above 0, also where all runs diverged

    def x(time: float) -> float:
        return 60 + time / last * (right - 60)

    def y(accuracy: float) -> float:
        return top + (1 - accuracy / highest) * (height - top - 30)

    parts = [
        f'<line x1="60" x2="{right}" y1="{y(target):.1f}" y2="{y(target):.1f}" stroke="#999" stroke-dasharray="3 3"/>',
        f'<text x="62" y="{y(target) - 4:.1f}" fill="#555">target {target:g}</text>',
    ]
    for place in range(5):
        time, accuracy = last * place / 4, highest * place / 4
        parts.append(f'<text x="{x(time):.1f}" y="{height - 10}" text-anchor="middle" fill="#555">{time:.0f}</text>')
        parts.append(f'<text x="54" y="{y(accuracy) + 4:.1f}" text-anchor="end" fill="#555">{accuracy:.2f}</text>')
    for place, line in enumerate(lines):
        times = times_of(study.settings, line.cell.schedule)
        path = " ".join(f"{x(t):.1f},{y(a):.1f}" for t, a in zip(times, line.accuracies, strict=True))
        colour, dash = LINES[place % len(LINES)], DASHES[place // len(LINES) % len(DASHES)]
        style = f'stroke="{colour}" stroke-width="1.6" stroke-dasharray="{dash}" fill="none"'
        name = f"{line.cell.optimizer} {name_of(study, line)}"
        parts.append(f'<polyline points="{path}" {style}><title>{escape(name)}</title></polyline>')
        at = top + place * 15
        parts.append(f'<line x1="{right + 12}" x2="{right + 36}" y1="{at}" y2="{at}" {style}/>')
        parts.append(f'<text x="{right + 42}" y="{at + 4}">{escape(name)}</text>')
    title = f"{lines[0].cell.task}: held-out accuracy over simulated time (c = {study.settings.cost:g}, x = {study.settings.link:g})"
    return picture(title, parts, max(height, top + 15 * len(lines)))


def ticks(low: float, high: float, x: Callable[[float], float], y: float) -> list[str]:
    marks = []
    for place in range(5):
        loss = low + (high - low) * place / 4
        marks.append(f'<text x="{x(loss):.1f}" y="{y + 8}" text-anchor="middle" fill="#555">{loss:.3f}</text>')
    return marks


def picture(title: str, parts: list[str], height: float) -> str:
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif" font-size="11">',
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
            f'<text x="8" y="18" font-size="13">{escape(title)}</text>',
            *parts,
            "</svg>",
        ]
    )
