"""pipemare, gap_aware and spike: policies that change the backward or the step. Order of operations: docs/ledger.md, P."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ddip.pipeline.textbook_optimizers import Group, Memory, Spike

Weights = dict[str, Tensor]


class PipeMare:
    """Smaller rates at first; backwards on weights moved back by the mean motion while a micro-batch is in flight."""

    def __init__(
        self, weights: Weights, mean_staleness: float, annealing_steps: float = 0, pipemare_decay: float = 0.135
    ) -> None:
        self.staleness, self.annealing_steps, self.decay = mean_staleness, annealing_steps, pipemare_decay
        self.drift = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self.has_moved = False

    def rate(self, rate: float, step: int) -> float:
        """`step`: 0 = the first."""
        power = 1.0 - min(step / self.annealing_steps, 1.0) if self.annealing_steps > 0 else 0.0
        return float(rate / max(1.0, self.staleness) ** power)

    def follow(self, name: str, old: Tensor, new: Tensor) -> None:
        if self.staleness > 0:
            keep = self.decay ** (1.0 / self.staleness)
            self.drift[name].mul_(keep).add_(torch.sub(new, old), alpha=1.0 - keep)
            self.has_moved = True

    def corrected(self, weights: Weights) -> Weights:
        if not self.has_moved:
            return weights
        moved = {name: torch.add(weights[name], drift, alpha=-self.staleness) for name, drift in self.drift.items()}
        return {**weights, **moved}


class GapAware:
    """Gradients shrink with the distance, in usual steps, between the weights they were computed with and the newest."""

    def __init__(self, weights: Weights, gap_decay: float = 0.999, gap_eps: float = 1e-8) -> None:
        self.smoothing, self.epsilon = gap_decay, gap_eps
        self.motion = {name: torch.zeros_like(weight) for name, weight in weights.items()}
        self.highest_rate = {name: 0.0 for name in weights}

    def follow(self, group: Group, name: str, memory: Memory, old: Tensor, new: Tensor, rate: float) -> None:
        """After each step."""
        self.highest_rate[name] = max(self.highest_rate[name], rate)
        change = torch.sub(new, old)
        if _in_units_of_the_rate(group):
            seen = memory.velocity if group.momentum != 0 else memory.gradient
            assert seen is not None
            change = seen
        keep = self._keep(group)
        self.motion[name].mul_(keep).addcmul_(change, change, value=1.0 - keep)

    def scaled(self, group: Group, name: str, gradient: Tensor, weight: Tensor, used: Tensor, steps: int) -> Tensor:
        """`weight`: the newest; `used`: what the gradient was computed with; `steps`: done so far."""
        by_rate, highest = _in_units_of_the_rate(group), self.highest_rate[name]
        if steps == 0 or (by_rate and highest == 0):
            return gradient
        correction = math.sqrt(1.0 / (1.0 - self._keep(group) ** steps))
        usual = self.motion[name].sqrt().mul_(correction).add_(self.epsilon)
        if by_rate:
            usual.mul_(highest)
        return gradient.div(torch.sub(weight, used).abs_().div_(usual).add_(1.0))

    def _keep(self, group: Group) -> float:
        return self.smoothing if group.name == "sgd" else group.betas[1]


def _in_units_of_the_rate(group: Group) -> bool:
    """torch's velocity is a gradient; Sutskever's and Adam's steps already have the rate inside."""
    return group.name == "sgd" and group.form == "torch"


def standing_still(group: Group, weight: Tensor, gradient: Tensor, memory: Memory) -> Memory:
    """What gap_aware sees of a parameter that a step had no gradient for: an old velocity, or a gradient of nothing but decay."""
    pull = -gradient if group.maximize else gradient
    if group.weight_decay != 0:
        pull = pull.add(weight, alpha=group.weight_decay)
    velocity = torch.zeros_like(weight) if memory.velocity is None else memory.velocity
    return replace(memory, velocity=velocity, gradient=pull)


def spike_of(group: Group, mean_staleness: float) -> Spike | None:
    delay = math.floor(mean_staleness + 0.5)
    if delay == 0:
        return None
    a = group.momentum**delay
    return Spike(a, (1.0 - a) / (1.0 - group.momentum))
