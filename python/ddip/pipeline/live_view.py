"""A run that goes on, drawn from what its ranks said last; without torch, because the notebook draws it."""

from __future__ import annotations

from html import escape
from typing import Any

from ddip.pipeline.timeline import LEFT, timeline

MIME = "application/vnd.ddip.pipeline+json"
State = dict[str, Any]  # what live.py sends

WIDTH, HEIGHT = 960, 90


def is_over(state: State) -> bool:
    return bool(state["state"] != "runs")


def bundle_of(states: dict[int, State]) -> dict[str, str]:
    """What is shown for them: HTML, and text for those who show none."""
    report = next((state for _, state in sorted(states.items()) if "html" in state), None)
    if report:
        return {"text/html": report["html"], "text/plain": report["text"]}
    said = headline(states)
    parts = [f"<p>{escape(said)}</p>", bar(states), picture(states), curve(losses_of(states))]
    return {"text/html": "\n".join(part for part in parts if part), "text/plain": said}


def headline(states: dict[int, State]) -> str:
    done, of = progress(states)
    seconds = max(state["seconds"] for state in states.values())
    said = f"micro-batch {done} of {of}, {seconds:.1f} s"
    losses = losses_of(states)
    if losses:
        last = losses[-1][1]
        said += ", loss not finite" if last is None else f", loss {last:.4g}"
    return said + (", stopped" if any(state["state"] == "stopped" for state in states.values()) else "")


def progress(states: dict[int, State]) -> tuple[int, int]:
    """Micro-batches that every rank has begun, of all of them."""
    begun = [max((action[2] + 1 for action in state["actions"]), default=0) for state in states.values()]
    return min(begun), max(state["of"] for state in states.values())


def losses_of(states: dict[int, State]) -> list[list[Any]]:
    return max((state["losses"] for state in states.values()), key=len)


def bar(states: dict[int, State]) -> str:
    done, of = progress(states)
    return f'<progress value="{done}" max="{max(of, 1)}" style="width: {WIDTH}px; max-width: 100%"></progress>'


def picture(states: dict[int, State]) -> str:
    """From the beginning on, as long as all of it can be told apart; later the last part that every rank has told."""
    first: dict[str, float] = {}
    for state in states.values():
        if state["actions"]:
            first[state["machine"]] = min(state["start"], first.get(state["machine"], state["start"]))
    rows = []
    begins, ends = [0.0], []
    for rank, state in states.items():
        if not state["actions"]:
            continue
        offset = state["start"] - first[state["machine"]]
        told = [
            {
                "rank": rank, "kind": kind, "stage": stage, "micro_batch": micro_batch, "begin": start + offset, "end": end + offset,
                "staleness": staleness,
            }
            for kind, stage, micro_batch, start, end, staleness in state["actions"]
        ]  # fmt: skip
        rows += told
        begins += [told[0]["begin"]] if state["cut"] else []
        ends.append(told[-1]["end"])
    if not rows:
        return ""
    together = max(begins) < min(ends)  # else some rank has nothing to show of this time
    return timeline(rows, max(begins) if together else min(begins[1:]))


def curve(losses: list[list[Any]]) -> str:
    """The loss over the micro-batches, as an SVG; nothing for fewer than two points."""
    finite = [(x, y) for x, y in losses if y is not None]
    if len(finite) < 2:
        return ""
    low, high = min(y for _, y in finite), max(y for _, y in finite)
    left, right = finite[0][0], finite[-1][0]
    across, down = (WIDTH - LEFT - 10) / max(right - left, 1), (HEIGHT - 30) / max(high - low, 1e-12)
    points = " ".join(f"{LEFT + (x - left) * across:.1f},{10 + (high - y) * down:.1f}" for x, y in finite)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="11">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
        f'<text x="8" y="14">loss</text><text x="{LEFT - 6}" y="14" text-anchor="end" fill="#555">{high:.3g}</text>'
        f'<text x="{LEFT - 6}" y="{HEIGHT - 18}" text-anchor="end" fill="#555">{low:.3g}</text>'
        f'<polyline points="{points}" fill="none" stroke="#4c78a8" stroke-width="1.5"/>'
        f'<text x="{LEFT}" y="{HEIGHT - 4}" fill="#555">micro-batch {left:.0f}</text>'
        f'<text x="{WIDTH - 10}" y="{HEIGHT - 4}" text-anchor="end" fill="#555">{right:.0f}</text></svg>'
    )
