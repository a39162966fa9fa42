"""What every rank did in a run, drawn: time from left to right, a row for each rank, a box for each action."""

from __future__ import annotations

from html import escape
from typing import Any

# Colour, and what a box is called; hatching and height tell them apart without colours, too.
KINDS = {
    "forward": ("#4c78a8", "forward"),
    "backward": ("#f58518", "backward"),
    "weight_gradient": ("#e45756", "weight gradients"),
    "step": ("#222222", "step"),
    "send": ("#9d9da1", "send"),
    "receive": ("#e8e8ea", "wait for a message"),
}
LEFT, ROW, GAP, TOP = 70, 34, 10, 26


def timeline(trace: list[dict[str, Any]], begin: float = 0.0, end: float | None = None, width: int = 960) -> str:
    """An SVG of the seconds from `begin` to `end`; None: to the last action's end."""
    last = max((row["end"] for row in trace), default=0.0)
    end = last if end is None else min(end, last)
    ranks = sorted({row["rank"] for row in trace})
    scale = (width - LEFT - 10) / max(end - begin, 1e-9)
    height = TOP + len(ranks) * (ROW + GAP) + 44
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="11">',
        '<defs><pattern id="back" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        f'<rect width="5" height="5" fill="{KINDS["backward"][0]}"/><rect width="1.5" height="5" fill="white" fill-opacity=".6"/>'
        "</pattern></defs>",
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for place, rank in enumerate(ranks):
        y = TOP + place * (ROW + GAP)
        parts.append(f'<text x="8" y="{y + ROW / 2 + 4}">rank {rank}</text>')
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{width - LEFT - 10}" height="{ROW}" fill="#f6f6f7"/>')
        parts += [
            box(row, LEFT + (row["begin"] - begin) * scale, y, (row["end"] - row["begin"]) * scale)
            for row in trace
            if row["rank"] == rank and row["kind"] in KINDS and row["end"] > begin and row["begin"] < end
        ]
    parts += axis(begin, end, scale, TOP + len(ranks) * (ROW + GAP))
    parts += legend(height - 12)
    return "\n".join([*parts, "</svg>"])


def box(row: dict[str, Any], x: float, y: float, width: float) -> str:
    kind = row["kind"]
    fill = "url(#back)" if kind == "backward" else KINDS[kind][0]
    low = kind in ("send", "receive")
    top, tall = (y + ROW - 9, 9) if low else (y, ROW - 10)
    said = (
        f"{kind} of micro-batch {row['micro_batch']}, stage {row['stage']}: {(row['end'] - row['begin']) * 1e3:.2f} ms"
    )
    if kind == "forward":
        said += f", staleness {row['staleness']}"
    found = f'<rect class="{kind}" x="{x:.2f}" y="{top}" width="{max(width, 0.3):.2f}" height="{tall}" fill="{fill}"><title>{escape(said)}</title></rect>'
    if not low and width > 14 and kind != "step":
        found += (
            f'<text x="{x + width / 2:.2f}" y="{y + 16}" text-anchor="middle" fill="white">{row["micro_batch"]}</text>'
        )
    return found


def axis(begin: float, end: float, scale: float, y: float) -> list[str]:
    marks = []
    for part in range(5):
        seconds = begin + (end - begin) * part / 4
        anchor = "end" if part == 4 else "start" if part == 0 else "middle"
        marks.append(
            f'<text x="{LEFT + (seconds - begin) * scale:.1f}" y="{y + 8}" text-anchor="{anchor}" fill="#555">{seconds * 1e3:.1f} ms</text>'
        )
    return marks


def legend(y: float) -> list[str]:
    parts = []
    x = LEFT
    for kind, (colour, name) in KINDS.items():
        fill = "url(#back)" if kind == "backward" else colour
        parts.append(
            f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{fill}"/><text x="{x + 14}" y="{y}">{name}</text>'
        )
        x += 30 + 7 * len(name)
    return parts
