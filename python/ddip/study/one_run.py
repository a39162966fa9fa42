"""One training of a study: simulated in this process, evaluated on its way."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ddip.pipeline.simulate import simulate
from ddip.pipeline.simulate_order import SYNCHRONOUS
from ddip.study.clock import plan_of, times_of
from ddip.study.memory import copies_of
from ddip.study.policies import optimizer_of, options_of
from ddip.study.settings import Run, Settings
from ddip.study.task import Samples, Task, accuracy_of, drawn, loss_of, stages_of
from ddip.study.tasks import TASKS

Weights = dict[str, Tensor]
FINAL_RATE = 0.05  # the rate falls along half a cosine to this share of it


@dataclass
class Snapshots:
    """What a run looked like after the steps that are evaluated: all stages at the same version."""

    versions: set[int]
    weights: dict[int, dict[int, Weights]] = field(default_factory=dict)  # version → stage → weights
    gradients: dict[int, dict[int, Weights]] = field(default_factory=dict)  # of the step that made the version

    def take(self, stage: int, version: int, gradient: Weights, weights: Weights) -> None:
        if version in self.versions:
            self.gradients.setdefault(version, {})[stage] = gradient
        if version in self.versions or version + 1 in self.versions:
            self.weights.setdefault(version, {})[stage] = weights


def computed(run: Run, settings: Settings) -> dict[str, Any]:
    """The results of a run, as a row has them."""
    task = TASKS[run.task]
    stages = stages_of(task, settings.stages, run.seed)
    data = drawn(task, settings.length * task.micro_batch, 2 * run.seed + 1)
    held_out = drawn(task, settings.held_out or task.held_out, 2 * run.seed + 2)
    per_step, per_batch = settings.per_step(run.schedule), settings.per_batch(run.schedule)
    steps = settings.length // per_step
    versions = [point // per_step for point in settings.points]
    snapshots = Snapshots(set(versions))
    snapshots.weights[0] = {i: {n: p.detach() for n, p in s.named_parameters()} for i, s in enumerate(stages)}
    batch = task.micro_batch * per_batch
    simulation = simulate(
        stages,
        loss_of,
        list(zip(data[0].split(batch), data[1].split(batch), strict=True)),
        optimizer=optimizer_of(run.policy, run.optimizer, run.rate),
        schedule=run.schedule,
        window=list(plan_of(settings, run.schedule).window),
        micro_batches=per_batch,
        accumulate=1 if run.schedule in SYNCHRONOUS else settings.accumulate,
        staleness=run.policy,
        max_staleness=settings.max_staleness if settings.max_staleness >= 0 else None,
        rate=lambda step: FINAL_RATE + (1 - FINAL_RATE) * (1 + math.cos(math.pi * min(step / steps, 1))) / 2,
        options=options_of(run.policy, steps),
        observe=snapshots.take,
    )
    evaluated = [evaluate(stages, snapshots.weights[version], held_out) for version in versions]
    target = settings.target or task.target
    reached = next((place for place, (_, accuracy) in enumerate(evaluated) if accuracy >= target), None)
    cosines = [cosine(task, stages, snapshots, version, data, per_step) for version in versions]
    moved = [[gap.moved for gap in simulation.gaps if gap.stage == i and gap.staleness] for i in range(settings.stages)]
    missed = [[g.missed for g in simulation.gaps if g.stage == i and g.staleness] for i in range(settings.stages)]
    copies = copies_of(settings, run.schedule, run.policy)
    sizes = [sum(p.numel() * p.element_size() for p in stage.parameters()) for stage in stages]
    return {
        "loss": evaluated[-1][0],
        "accuracy": evaluated[-1][1],
        "target": target,
        "time_to_target": None if reached is None else times_of(settings, run.schedule)[reached],
        "time": times_of(settings, run.schedule)[-1],
        "staleness": max(simulation.ledger.header["mean_staleness"]),
        "moved": mean(moved[0]),
        "prediction_error": sum(missed[0]) / sum(moved[0]) if sum(moved[0]) > 0 else None,
        "cosine": mean([of[0] for of in cosines]),
        "copies": max(copies),
        "bytes": sum(count * size for count, size in zip(copies, sizes, strict=True)),
        "losses": [loss for loss, _ in evaluated],
        "accuracies": [accuracy for _, accuracy in evaluated],
        "moved_by_stage": [mean(of) for of in moved],
        "cosine_by_stage": [mean([of[stage] for of in cosines]) for stage in range(settings.stages)],
    }


def mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def output_of(stages: list[nn.Module], weights: dict[int, Weights], x: Tensor) -> Tensor:
    for index, stage in enumerate(stages):
        x = functional_call(stage, weights[index], (x,))
    return x


def evaluate(stages: list[nn.Module], weights: dict[int, Weights], samples: Samples) -> tuple[float, float]:
    with torch.no_grad():
        output = output_of(stages, weights, samples[0])
        loss = loss_of(output, samples[1]).item()
    return (loss, accuracy_of(output, samples[1])) if math.isfinite(loss) else (math.inf, 0.0)


def cosine(
    task: Task, stages: list[nn.Module], snapshots: Snapshots, version: int, data: Samples, per_step: int
) -> list[float]:
    """Per stage: of the gradient that its optimizer saw in this step, and that of the weights it was applied to."""
    begin, end = ((version - back) * per_step * task.micro_batch for back in (1, 0))
    leaves = {
        index: {name: weight.detach().clone().requires_grad_() for name, weight in of.items()}
        for index, of in snapshots.weights[version - 1].items()
    }
    loss_of(output_of(stages, leaves, data[0][begin:end]), data[1][begin:end]).backward()
    found = []
    for index in range(len(stages)):
        names = list(leaves[index])
        fresh = torch.cat([leaves[index][name].grad.reshape(-1).double() for name in names])  # type: ignore[union-attr]
        seen = torch.cat([snapshots.gradients[version][index][name].reshape(-1).double() for name in names])
        found.append(float(nn.functional.cosine_similarity(seen, fresh, dim=0)))
    return found
