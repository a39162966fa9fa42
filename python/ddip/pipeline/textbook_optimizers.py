"""SGD, Adam, AdamW and NAdam written out, one parameter at a time: the steps that replay takes.

Bit for bit what torch.optim does on one CPU tensor (foreach=False); the order of operations is in docs/ledger.md, B.
Nothing here is shared with the code that runs a pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass
class Group:
    """One parameter group of a stage's optimizer. `name`: sgd, adam, adamw or nadam."""

    name: str
    parameters: list[str]
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False
    maximize: bool = False
    # "sutskever", of SGD: the velocity carries the rate. "libtorch", of Adam: the first moment is rounded as torch::optim's
    form: str = "torch"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    momentum_decay: float = 0.004
    decoupled_weight_decay: bool = False

    @property
    def decays_weights_apart(self) -> bool:
        return self.name == "adamw" or self.decoupled_weight_decay


@dataclass
class Memory:
    """What the optimizer remembers about one parameter. Absent (None) before the first step."""

    steps: int = 0  # that had a gradient for it
    velocity: Tensor | None = None
    first: Tensor | None = None
    second: Tensor | None = None
    mu_product: Tensor = field(default_factory=lambda: torch.ones((), dtype=torch.float32))
    gradient: Tensor | None = None  # of the last step, with decay: what gap_aware without momentum looks at

    @property
    def has_moved(self) -> bool:
        return self.velocity is not None or self.first is not None


@dataclass
class Spike:
    """The step w − η(a·v + b·g) of `spike`."""

    a: float
    b: float


def mu(group: Group, step: float) -> float:
    """NAdam's momentum of a step (1 = the first)."""
    return float(group.betas[0] * (1.0 - 0.5 * (0.96 ** (step * group.momentum_decay))))


def stepped(group: Group, weight: Tensor, gradient: Tensor, memory: Memory, step: int, rate: float,
            spike: Spike | None = None) -> Tensor:  # fmt: skip
    """The parameter after its step number `step` (1 = the first); `memory` becomes that of after the step."""
    if group.maximize:
        gradient = -gradient
    if group.name == "sgd":
        return _sgd(group, weight, gradient, memory, rate, spike)
    weight = weight.clone()
    if group.weight_decay != 0:
        if group.decays_weights_apart:
            weight.mul_(1 - rate * group.weight_decay)
        else:
            gradient = gradient.add(weight, alpha=group.weight_decay)
    beta1, beta2 = group.betas
    first = torch.zeros_like(weight) if memory.first is None else memory.first
    second = torch.zeros_like(weight) if memory.second is None else memory.second
    if group.form == "libtorch":
        first = first.mul(beta1).add_(gradient, alpha=1 - beta1)
    else:
        first = first.lerp(gradient, 1 - beta1)
    second = second.mul(beta2).addcmul_(gradient, gradient, value=1 - beta2)
    memory.first, memory.second, memory.gradient = first, second, gradient
    if group.name == "nadam":
        return _nadam(group, weight, gradient, memory, step, rate)
    correction = 1 - beta2**step
    denominator = (second.sqrt() / correction**0.5).add_(group.eps)
    return weight.addcdiv_(first, denominator, value=-(rate / (1 - beta1**step)))


def _sgd(group: Group, weight: Tensor, gradient: Tensor, memory: Memory, rate: float, spike: Spike | None) -> Tensor:
    sutskever = group.form == "sutskever"
    if group.weight_decay != 0:
        gradient = gradient.add(weight, alpha=group.weight_decay)
    memory.gradient = gradient
    if group.momentum == 0:
        return weight.add(gradient.mul(rate), alpha=-1) if sutskever else weight.add(gradient, alpha=-rate)
    if memory.velocity is None:
        velocity = gradient.mul(rate) if sutskever else gradient.clone()
    else:
        share = 1 - group.dampening
        velocity = memory.velocity.mul(group.momentum).add_(gradient, alpha=rate * share if sutskever else share)
    memory.velocity = velocity
    if spike is not None:
        return weight.add(velocity.mul(spike.a).add_(gradient, alpha=spike.b), alpha=-rate)
    if sutskever:
        change = gradient.mul(rate).add_(velocity, alpha=group.momentum) if group.nesterov else velocity
        return weight.add(change, alpha=-1)
    change = gradient.add(velocity, alpha=group.momentum) if group.nesterov else velocity
    return weight.add(change, alpha=-rate)


def _nadam(group: Group, weight: Tensor, gradient: Tensor, memory: Memory, step: int, rate: float) -> Tensor:
    assert memory.first is not None and memory.second is not None
    now, following = mu(group, step), mu(group, step + 1)
    memory.mu_product = memory.mu_product * now  # a float32 tensor, as torch's
    product = memory.mu_product.item()
    denominator = memory.second.div(1 - group.betas[1] ** step).sqrt().add_(group.eps)
    weight = weight.addcdiv_(gradient, denominator, value=-rate * (1.0 - now) / (1.0 - product))
    return weight.addcdiv_(memory.first, denominator, value=(-rate * following) / (1.0 - product * following))


def group_of(name: str, form: str, described: dict[str, Any]) -> Group:
    """A header's group."""
    known = {**described, "betas": tuple(described.get("betas", (0.9, 0.999)))}
    return Group(name=name, form=form, **known)
