"""What every rank did in a run, drawn: time from left to right, a row for each rank, a box for each action."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from ddip.errors import ConfigError
from ddip.pipeline.rows import columns

# Colour, and what a box is called; hatching and height tell them apart without colours, too.
KINDS = {
    "forward": ("#4c78a8", "forward"),
    "backward": ("#f58518", "backward"),
    "weight_gradient": ("#e45756", "weight gradients"),
    "step": ("#222222", "step"),
    "send": ("#9d9da1", "send"),
    "receive": ("#cdd3dc", "wait for a message"),
}
LEFT, ROW, GAP, TOP = 70, 34, 10, 26
MOST = 4000  # boxes


@dataclass
class Drawing:
    """Seconds `begin` to `end`, from left to right."""

    begin: float
    end: float
    width: int
    hatch: str  # the pattern's name: several pictures of one page must not share it, or one vanishes with another

    @property
    def scale(self) -> float:
        return (self.width - LEFT - 10) / max(self.end - self.begin, 1e-9)

    def x(self, seconds: float) -> float:
        return LEFT + (min(max(seconds, self.begin), self.end) - self.begin) * self.scale

    def fill(self, kind: str) -> str:
        return f"url(#{self.hatch})" if kind == "backward" else KINDS[kind][0]


def timeline(trace: Sequence[dict[str, Any]], begin: float = 0.0, end: float | None = None, width: int = 960) -> str:
    """An SVG of the seconds from `begin` to `end`; None: to the last action's end. It ends where it has MOST boxes, and says so:
    browsers do not draw a long run whole, nor could anything be told apart in it."""
    if math.isnan(begin) or (end is not None and not end >= begin):
        raise ConfigError(
            f"timeline from second {begin} to second {end}; expected an end that is not before the beginning"
        )
    rank_of, stage_of, kind_of, begins, ends = columns(trace, "rank", "stage", "kind", "begin", "end")
    last = max(ends, default=0.0)
    if begin > last:
        raise ConfigError(f"timeline from second {begin} on; the run has {last:.3f} seconds")
    end = last if end is None else min(end, last)
    ranks = sorted(set(rank_of))
    places = set(zip(rank_of, stage_of, strict=True))
    stages = {rank: sorted(stage for at, stage in places if at == rank and stage >= 0) for rank in ranks}
    chosen = [
        place
        for place, (kind, first, over) in enumerate(zip(kind_of, begins, ends, strict=True))
        if kind in KINDS and over > begin and first < end
    ]
    said = ""
    if len(chosen) > MOST:
        chosen.sort(key=begins.__getitem__)
        end = begins[chosen[MOST]]
        said = f"the first {MOST:,} of {len(chosen):,} actions; timeline(begin, end) shows others"
        del chosen[MOST:]
    rows = [trace[place] for place in chosen]
    drawing = Drawing(begin, end, width, f"hatch-{zlib.crc32(repr((begin, end, len(trace), trace[:1])).encode()):x}")
    height = TOP + len(ranks) * (ROW + GAP) + 44
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11">',
        f'<defs><pattern id="{drawing.hatch}" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<rect width="5" height="5" fill="{KINDS["backward"][0]}"/><rect width="1.5" height="5" fill="white" fill-opacity=".6"/>'
        "</pattern></defs>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for place, rank in enumerate(ranks):
        y = TOP + place * (ROW + GAP)
        parts += label(rank, stages[rank], y)
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{width - LEFT - 10}" height="{ROW}" fill="#f6f6f7"/>')
        parts += [
            box(drawing, row, y, faded=stages[rank].index(row["stage"]) / len(stages[rank]))
            for row in rows
            if row["rank"] == rank
        ]
    if said:
        parts.append(f'<text x="{width - 10}" y="{TOP - 10}" text-anchor="end" fill="#555">{said}</text>')
    parts += axis(drawing, TOP + len(ranks) * (ROW + GAP))
    parts += legend(drawing, height - 12, set(kind_of))
    return "\n".join([*parts, "</svg>"])


def label(rank: int, stages: list[int], y: float) -> list[str]:
    parts = [f'<text x="8" y="{y + ROW / 2 - 2}">rank {rank}</text>']
    said = f"stage {stages[0]}" if len(stages) == 1 else f"stages {', '.join(map(str, stages))}"
    return [*parts, f'<text x="8" y="{y + ROW / 2 + 11}" fill="#555" font-size="9">{said}</text>']


def box(drawing: Drawing, row: dict[str, Any], y: float, faded: float) -> str:
    """`faded`: from 0 on; the later stages of a rank are paler."""
    kind = row["kind"]
    x, width = drawing.x(row["begin"]), drawing.x(row["end"]) - drawing.x(row["begin"])
    low = kind in ("send", "receive")
    top, tall = (y + ROW - 9, 9) if low else (y, ROW - 10)
    said = (
        f"{kind} of micro-batch {row['micro_batch']}, stage {row['stage']}: {(row['end'] - row['begin']) * 1e3:.2f} ms"
    )
    if kind == "forward":
        said += f", staleness {row['staleness']}"
    pale = f' fill-opacity="{1 - 0.7 * faded:.2f}"' if faded and not low and kind != "step" else ""
    found = f'<rect class="{kind}" x="{x:.2f}" y="{top}" width="{max(width, 0.3):.2f}" height="{tall}" fill="{drawing.fill(kind)}"{pale}><title>{escape(said)}</title></rect>'
    if not low and width > 4 + 7 * len(str(row["micro_batch"])) and kind != "step":
        found += f'<text x="{x + width / 2:.2f}" y="{y + 16}" text-anchor="middle" fill="{"white" if kind == "forward" and faded < 0.4 else "#222"}">{row["micro_batch"]}</text>'
    return found


def axis(drawing: Drawing, y: float) -> list[str]:
    marks = []
    for part in range(5):
        seconds = drawing.begin + (drawing.end - drawing.begin) * part / 4
        anchor = "end" if part == 4 else "start" if part == 0 else "middle"
        marks.append(
            f'<text x="{drawing.x(seconds):.1f}" y="{y + 8}" text-anchor="{anchor}" fill="#555">{seconds * 1e3:.1f} ms</text>'
        )
    return marks


def legend(drawing: Drawing, y: float, seen: set[str]) -> list[str]:
    parts = []
    x = LEFT
    for kind, (_, name) in KINDS.items():
        if kind == "weight_gradient" and kind not in seen:
            continue  # few schedules split their backwards
        parts.append(
            f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{drawing.fill(kind)}"/><text x="{x + 14}" y="{y}">{name}</text>'
        )
        x += 30 + 7 * len(name)
    return parts
