"""A study on the terminal: a table for each task, and in words what it shows and what it rests on."""

from __future__ import annotations

import math

from ddip.study.confidence import Interval, verdict
from ddip.study.plan import Study
from ddip.study.summary import Line
from ddip.study.tasks import TASKS

HEAD = [
    "policy", "schedule", "rate", "loss", "accuracy", "time to target", "reached", "moved", "pred. error", "cosine",
    "copies", "KiB", "verdict",
]  # fmt: skip
NAMES = {"seq": "(nothing stale)", "1f1b": "(synchronous)"}


def tables_of(study: Study, lines: list[Line]) -> str:
    parts = []
    for task in study.tasks:
        of = [line for line in lines if line.cell.task == task]
        target = study.settings.target or TASKS[task].target
        parts.append(f"{task}: {TASKS[task].said}; target: accuracy {target:g}")
        rows: list[list[str]] = []
        for optimizer in dict.fromkeys(line.cell.optimizer for line in of):
            rows += [[optimizer], *(row_of(study, line) for line in of if line.cell.optimizer == optimizer)]
        parts += [*aligned(rows), "", *conclusions(study, of), ""]
    return "\n".join([*parts, *assumptions(study)])


def name_of(study: Study, line: Line) -> str:
    baseline = line.cell.schedule != study.settings.schedule
    return NAMES[line.cell.schedule] if baseline else line.cell.policy


def row_of(study: Study, line: Line) -> list[str]:
    diverged = f"diverged ({line.diverged} of {line.seeds})" if line.diverged else ""
    return [
        name_of(study, line),
        line.cell.schedule,
        f"{line.rate:g}{'*' if line.at_edge else ''}",
        diverged or shown(line.loss, 3),
        shown(line.accuracy, 3),
        shown(line.time_to_target, 0),
        f"{line.reached}/{line.seeds}",
        shown(line.moved, 3, half=False),
        shown(line.prediction_error, 2, half=False),
        shown(line.cosine, 2, half=False),
        str(line.copies),
        f"{line.bytes / 1024:.0f}",
        line.verdict or "-",
    ]


def shown(value: Interval, digits: int, half: bool = True) -> str:
    if not math.isfinite(value.mean):
        return "-"
    text = f"{value.mean:.{digits}f}"
    return text if not half or math.isnan(value.half) else f"{text} ± {value.half:.{digits}f}"


def aligned(rows: list[list[str]]) -> list[str]:
    whole = [HEAD, *(row for row in rows if len(row) > 1)]
    widths = [max(len(row[column]) for row in whole) for column in range(len(HEAD))]
    found = []
    for row in [HEAD, *rows]:
        if len(row) == 1:
            found.append(row[0])
            continue
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=True)]
        found.append(("  " + "  ".join(cells)).rstrip())
    return found


def conclusions(study: Study, lines: list[Line]) -> list[str]:
    """What staleness costs, and what the policies do about it: also if that is nothing."""
    found = []
    for optimizer in dict.fromkeys(line.cell.optimizer for line in lines):
        of = [line for line in lines if line.cell.optimizer == optimizer]
        own = [line for line in of if line.cell.schedule == study.settings.schedule]
        none = next(line for line in own if line.cell.policy == "none")
        baselines = [line for line in of if line.cell.schedule != study.settings.schedule]
        fresh = next((line for line in baselines if line.cell.schedule == "seq"), None)
        words = []
        if none.diverged:
            words.append(f"none {plain(none)}: nothing can be compared with it")
        elif fresh is not None and fresh.diverged:
            words.append(f"fresh weights {plain(fresh)}: what stale ones cost cannot be said")
        elif fresh is not None:
            cost = {
                "helps": "stale weights cost something here",
                "no difference": "stale weights make no difference that these seeds can show",
                "hurts": "stale weights are better here than fresh ones",
            }[verdict(fresh.loss, none.loss)]
            words.append(f"{cost} (loss {plain(none)} against {plain(fresh)})")
        for said in ("helps", "hurts", "no difference"):
            named = [line.cell.policy for line in own if line.verdict == said]
            if named:
                words.append(f"{said}: {', '.join(named)}")
        worse = [line for line in own if line.prediction_error.mean > 1 + 1e-9]
        if worse:
            names = ", ".join(line.cell.policy for line in worse)
            words.append(f"predicts worse than the stale weights were: {names}")
        found.append(f"{optimizer}: " + "; ".join(words) + ".")
    return found


def plain(line: Line) -> str:
    return f"diverged in {line.diverged} of {line.seeds}" if line.diverged else shown(line.loss, 3)


def assumptions(study: Study) -> list[str]:
    s = study.settings
    batch = f"a synchronous batch has {s.micro_batches} micro-batches; "
    sweep = (
        f"the best of {len(study.rates)} on {study.sweep_seeds} other seed{'s' * (study.sweep_seeds > 1)}"
        if len(study.rates) > 1
        else "given"
    )
    preset = []
    if any("nesterov" in policy.split("+") for policy, _ in study.choices):
        preset = [
            "nesterov is a preset: NAdam with beta1 0.99 and momentum_decay 1, and a stash; its none has torch's own 0.9 and 0.004."
        ]
    return [
        f"± is a 95% confidence interval over {study.seeds} seeds (Student's t). Rate: {sweep}, * at the edge of the sweep.",
        "verdict: held-out loss beside none with the same schedule and optimizer; 'no difference': the intervals overlap.",
        *preset,
        f"time: simulated, not measured: {s.stages} stages, c = {s.cost:g} for forward and backward of a micro-batch on a stage,",
        f"  x = {s.link:g} for a message, nothing for steps and predictions; {batch}its time is the",
        "  best of gpipe, 1f1b and 1f1b with a wide window; (nothing stale) is one batch of one process at a time over the stages.",
        "moved, pred. error, cosine: of the first stage, the stalest. moved = ‖w_B − w_F‖; pred. error = ‖ŵ − w_B‖ / ‖w_B − w_F‖,",
        "  below 1 the prediction came nearer than the stale weights; cosine: the step's gradient beside that of fresh weights.",
        "copies: of the weights, on the stage with most; KiB: of all stages (docs/pipeline_weights.md).",
    ]  # fmt: skip
