"""The report of a run, made of what every rank has recorded."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ddip.pipeline.batches import Batches
from ddip.pipeline.memory import memory_of
from ddip.pipeline.metrics import Metrics
from ddip.pipeline.report import Gap, Report, on_one_clock, rows_of, share_of_run, this_machine, times_of
from ddip.replicas import gather_objects

if TYPE_CHECKING:
    from ddip.pipeline.front import Pipeline


def report_of(pipe: Pipeline, record: Any, source: Batches, training: bool, metrics: Metrics) -> Report:
    """All ranks call it, each with its own record."""
    times = [times_of(record, stage.index, pipe.ranks.rank) for stage in pipe.native_stages]
    for one, stage in zip(times, pipe.native_stages, strict=True):
        if training and stage.gaps:
            one.gap = Gap(stage.gaps.means.moved, stage.gaps.means.error)
        if training and one.stage == len(pipe.modules) - 1 and pipe.scale_state:
            one.loss_scale = pipe.scale_state[0]
        one.memory, one.copies_kept = memory_of(pipe, one.stage, record.actions)
    clocked = rows_of(record, pipe.ranks.rank, pipe.replica), record.start, this_machine()
    everything = gather_objects((times, record.losses, clocked), pipe.ranks)
    sums, counts = [0.0] * len(source), [0.0] * len(source)
    for _, found, _ in everything:
        for micro_batch, loss, count in found:
            sums[micro_batch // source.per_batch] += loss
            counts[micro_batch // source.per_batch] += count
    for batch, (total, count) in enumerate(zip(sums, counts, strict=True)):
        if training and count and not math.isfinite(total):
            what = "weights are no numbers any more, or will be"
            if pipe.loss_scaling:
                what = "steps whose gradients are not finite are left out"
            pipe.warn(f"the loss is {total} in batch {batch} of a run: {what}")
            break
    stages = sorted((one for times, _, _ in everything for one in times), key=lambda one: one.stage)
    for one in stages:
        if one.left_out and one.left_out == one.steps:
            pipe.warn(
                f"stage {one.stage} has left out all {one.steps} steps of a run, because their gradients were not finite: the loss "
                f"scale, now {stages[-1].loss_scale:g}, is too large still, or the weights are no numbers"
            )
    trace = on_one_clock([clocked for _, _, clocked in everything])
    seconds = max(trace.column("end"), default=0.0)
    share_of_run(stages, seconds)
    return Report(
        [total / count if count else math.nan for total, count in zip(sums, counts, strict=True)],
        stages, seconds, trace, metrics.means(pipe.ranks), counts, not training,
    )  # fmt: skip
