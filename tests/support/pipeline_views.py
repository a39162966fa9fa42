"""Runs of a pipeline beside what was seen in them from outside; inside workers."""

from __future__ import annotations

from typing import Any

import pipelines as p
import torch

import ddip


def copies_said_and_seen(schedule: str, staleness: str, rule: str, options: dict[str, Any]) -> list[tuple[int, int]]:
    """Of each of this rank's stages: the copies of weights that the report has, and the most that there were whenever
    there can be one more: in a forward and in a step."""
    pipe = ddip.Pipeline(
        p.mlp(2, torch.float32), loss=torch.nn.functional.mse_loss, optimizer=p.RULES[rule], schedule=schedule,
        staleness=staleness, **{"micro_batches": 4, **options},
    )  # fmt: skip
    seen = dict.fromkeys(pipe.mine, 0)
    pipe.run(p.data(2, 12, dtype=torch.float32))  # versions do not begin at 0 in the run that is looked at
    for stage in pipe.mine:

        def look(*_: Any, stage: int = stage) -> None:
            seen[stage] = max(seen[stage], pipe.versions[stage].kept)

        pipe.modules[stage].register_forward_pre_hook(look)
        pipe.steppings[stage].optimizer.register_step_post_hook(look)
    report = pipe.run(p.data(6, 12, 7, torch.float32))
    size = {stage: pipe.steppings[stage].weights.truth.nbytes for stage in pipe.mine}
    for stage in pipe.mine:
        assert report.stages[stage].memory.copies == size[stage] * report.stages[stage].copies_kept
    return [(report.stages[stage].copies_kept, seen[stage]) for stage in pipe.mine]


def memory(schedule: str = "async_1f1b", **options: Any) -> list[dict[str, int]]:
    """Of both stages, on every rank. Twelve samples in four micro-batches of three."""
    pipe = p.pipe_of(p.mlp(2), schedule, **options)
    report = pipe.run(p.data(6, 12))
    return [vars(stage.memory) for stage in report.stages]


def memory_of_evaluation() -> list[tuple[int, int]]:
    report = p.pipe_of(p.mlp(2), recompute=True).evaluate(p.data(2, 12))
    return [(stage.memory.activations, stage.memory.in_flight) for stage in report.stages]
