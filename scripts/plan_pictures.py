"""Draws the plans of docs/pipeline.md into docs/pictures/. `scripts/plan_pictures.py --check`: are they current?"""

from __future__ import annotations

import sys
from pathlib import Path

from ddip.schedule import Plan, default_window, make_plan

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"

# A forward takes 1, a backward 2, so a micro-batch keeps a stage busy for 3; SLOW links take half of that.
SLOW = [1.5, 1.5, 1.5]


def asynchronous(window: list[int], links: list[float]) -> Plan:
    return make_plan("async_1f1b", stages=4, micro_batches=16, window=window, links=links)


def pictures() -> dict[str, str]:
    """The name of each picture without .svg, and what is in it."""
    wide = default_window(4, links=SLOW)
    interleaved = make_plan("interleaved", stages=8, micro_batches=8, rank_of_stage=[0, 1, 2, 3] * 2)
    return {
        "plan_seq": make_plan("seq", stages=4, micro_batches=3).svg("seq: one micro-batch at a time"),
        "plan_gpipe": make_plan("gpipe", stages=4, micro_batches=8, batches=2).svg("gpipe: two batches of eight"),
        "plan_1f1b": make_plan("1f1b", stages=4, micro_batches=8, batches=2).svg("1f1b: two batches of eight"),
        "plan_async": asynchronous([], []).svg("async_1f1b: the same sixteen micro-batches, no flush"),
        "plan_links": asynchronous([], SLOW).svg("async_1f1b, slow links, the textbook's window 3, 2, 1, 0", 54),
        "plan_window": asynchronous(wide, SLOW).svg(f"async_1f1b, slow links, window {', '.join(map(str, wide))}", 54),
        "plan_interleaved": interleaved.svg("interleaved: two stages on each of four ranks"),
        "plan_zb1": make_plan("zb1", stages=4, micro_batches=8).svg("zb1: weight gradients wait until there is time"),
        "plan_zbv": make_plan("zbv", stages=8, micro_batches=8).svg("zbv: stage i and its mirror on one rank"),
    }


def main() -> int:
    check = sys.argv[1:] == ["--check"]
    old = []
    for name, svg in pictures().items():
        path = PICTURES / f"{name}.svg"
        if check and (not path.exists() or path.read_text(encoding="utf-8") != svg):
            old.append(path.name)
        if not check:
            path.write_text(svg, encoding="utf-8")
    if old:
        print(f"not current, run scripts/plan_pictures.py: {', '.join(old)}")
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
