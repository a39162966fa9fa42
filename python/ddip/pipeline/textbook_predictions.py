"""Where a stage's weights will be n steps from now, by each policy: the predictions that replay makes.

The order of operations is in docs/ledger.md, C; numbers are computed as Python floats and meet a tensor once.
Nothing here is shared with the policies that run in a pipeline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ddip.pipeline.textbook_optimizers import Group, Memory, mu

PREDICTORS = {
    "msnag": ("sgd",),
    "aggmsnag": ("sgd", "adam", "adamw", "nadam"),
    "lwp": ("sgd",),
    "spectrain": ("sgd",),
    "adam": ("adam",),
    "adamw": ("adamw",),
    "nadam": ("nadam",),
}


@dataclass
class Partial:
    """φ: the running sum of gradients, and what it weighs in the step that is coming."""

    gradient: Tensor
    scale: float


def predicted(policy: str, group: Group, weight: Tensor, memory: Memory, steps: int, rates: list[float],
              partial: Partial | None = None, distance: int = 0, decayed: bool = False) -> Tensor:  # fmt: skip
    """The weights `len(rates)` steps ahead. `steps`: optimizer steps done; `distance`: spectrain's; `decayed`: Adam's
    second moment fades as it would without gradients, instead of staying."""
    if policy not in PREDICTORS or group.name not in PREDICTORS[policy]:
        raise ValueError(f"no prediction {policy!r} for {group.name}")
    if group.name == "sgd":
        if policy == "lwp":
            return _along(weight, memory.velocity, _sum_of_rates(group, rates))
        if policy == "spectrain":
            return _along(weight, memory.velocity, distance if group.form == "sutskever" else rates[0] * distance)
        if policy == "msnag" and group.weight_decay == 0:
            return _along(weight, memory.velocity, _msnag_coefficient(group, rates))
        return _aggregated(group, weight, memory, rates, partial)
    if memory.first is None or not rates:
        return weight.clone()
    if policy == "aggmsnag":
        return _adam(group, weight, memory, steps, rates, partial, aggregated=True, decayed=False)
    return _adam(group, weight, memory, steps, rates, None, aggregated=False, decayed=decayed)


def _along(weight: Tensor, velocity: Tensor | None, coefficient: float) -> Tensor:
    if velocity is None or coefficient == 0:
        return weight.clone()
    return torch.add(weight, velocity, alpha=-coefficient)


def _sum_of_rates(group: Group, rates: list[float]) -> float:
    if group.form == "sutskever":
        return float(len(rates))
    total = 0.0
    for rate in rates:
        total = total + rate
    return total


def _msnag_coefficient(group: Group, rates: list[float]) -> float:
    power, total = 1.0, 0.0
    for rate in rates:
        power = power * group.momentum
        reach = power * group.momentum if group.nesterov else power
        total = total + (reach if group.form == "sutskever" else rate * reach)
    return total


def _aggregated(group: Group, weight: Tensor, memory: Memory, rates: list[float], partial: Partial | None) -> Tensor:
    """Each step of SGD is linear in (w, v, φ), so n steps without new gradients are three coefficients."""
    sutskever, momentum, decay = group.form == "sutskever", group.momentum, group.weight_decay
    scale = 0.0 if partial is None else partial.scale
    ahead = [1.0, 0.0, 0.0]
    speed = [0.0, 0.0 if memory.velocity is None else 1.0, 0.0]
    for index, rate in enumerate(rates):
        first_ever = memory.velocity is None and index == 0
        share = 1.0 if momentum == 0 or first_ever else 1 - group.dampening
        pull = [decay * part for part in ahead]
        if index == 0:
            pull[2] = pull[2] + scale
        gain = rate * share if sutskever else share
        speed = [momentum * v + gain * d for v, d in zip(speed, pull, strict=True)]
        change = speed
        if group.nesterov:
            change = [(rate * d if sutskever else d) + momentum * v for v, d in zip(speed, pull, strict=True)]
        ahead = [w - (x if sutskever else rate * x) for w, x in zip(ahead, change, strict=True)]
    result = weight.clone() if ahead[0] == 1.0 else torch.mul(weight, ahead[0])
    if memory.velocity is not None and ahead[1] != 0:
        result.add_(memory.velocity, alpha=ahead[1])
    if partial is not None and ahead[2] != 0:
        result.add_(partial.gradient, alpha=ahead[2])
    return result


def _adam(group: Group, weight: Tensor, memory: Memory, steps: int, rates: list[float], partial: Partial | None,
          aggregated: bool, decayed: bool) -> Tensor:  # fmt: skip
    assert memory.first is not None and memory.second is not None
    beta1 = group.betas[0]
    factors = _factors(group, memory, steps, rates)
    denominators = [_denominator(group, memory.second, steps, k if decayed else 0) for k in range(1, len(rates) + 1)]
    if group.weight_decay != 0 and not group.decays_weights_apart:
        return _adam_with_decay_inside(group, weight, memory, factors, denominators, partial)
    numerator, power = memory.first, 1.0
    if aggregated:
        numerator = torch.mul(memory.first, beta1)  # the first moment of the coming step, with what is there of φ
        if partial is not None:
            numerator.add_(partial.gradient, alpha=(1.0 - beta1) * partial.scale)
    decay = group.weight_decay
    ahead, reach = 1.0, 0.0
    result = weight.clone()
    for k, (rate, (factor, _)) in enumerate(zip(rates, factors, strict=True)):
        keep = 1.0 - rate * decay if decay != 0 else 1.0
        if k > 0 or not aggregated:
            power = power * beta1
        if decayed:
            if decay != 0:
                result.mul_(keep)
            result.addcdiv_(numerator, denominators[k], value=-(factor * power))
        ahead = ahead * keep
        reach = reach * keep + factor * power
    if decayed:
        return result
    if ahead != 1.0:
        result.mul_(ahead)
    return result.addcdiv_(numerator, denominators[0], value=-reach)


def _adam_with_decay_inside(group: Group, weight: Tensor, memory: Memory, factors: list[tuple[float, float]],
                            denominators: list[Tensor], partial: Partial | None) -> Tensor:  # fmt: skip
    assert memory.first is not None
    beta1, decay = group.betas[0], group.weight_decay
    moment, result = memory.first.clone(), weight.clone()
    for k, (factor, direct) in enumerate(factors):
        pull = result.clone()
        moment.mul_(beta1).add_(pull, alpha=(1.0 - beta1) * decay)
        if k == 0 and partial is not None:
            moment.add_(partial.gradient, alpha=(1.0 - beta1) * partial.scale)
        if group.name == "nadam":
            result.addcdiv_(pull, denominators[k], value=-(decay * direct))
        result.addcdiv_(moment, denominators[k], value=-factor)
    return result


def _factors(group: Group, memory: Memory, steps: int, rates: list[float]) -> list[tuple[float, float]]:
    """Per step ahead: what multiplies m/(√û+ε), and, for NAdam, g/(√û+ε)."""
    if group.name != "nadam":
        return [(rate / (1.0 - group.betas[0] ** (steps + k)), 0.0) for k, rate in enumerate(rates, 1)]
    product = memory.mu_product.item()
    factors = []
    for k, rate in enumerate(rates, 1):
        now, following = mu(group, steps + k), mu(group, steps + k + 1)
        product = product * now
        factors.append((rate * following / (1.0 - product * following), rate * (1.0 - now) / (1.0 - product)))
    return factors


def _denominator(group: Group, second: Tensor, steps: int, decayed_by: int) -> Tensor:
    beta2 = group.betas[1]
    fade = beta2**decayed_by if decayed_by > 0 else 1.0
    # The nearest float: torch's own root of floats is not always that on a CPU.
    root = second.double().sqrt().to(second.dtype)
    return root.mul_(math.sqrt(fade / (1.0 - beta2 ** (steps + decayed_by)))).add_(group.eps)
