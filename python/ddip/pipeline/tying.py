"""A parameter that several stages use: the first of them owns it, the others borrow it.

What the owner computes with goes along with each micro-batch, as one more value between the stages, and its gradient comes back
the same way. So both use the same version of it for the same micro-batch under every schedule and policy, the gradients are
summed where the optimizer is, and replay needs to know nothing about it. The price is its bytes on the link, both ways, for every
micro-batch; stages on one rank pay a copy.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from ddip.pipeline.parts import Part


@dataclass
class Tie:
    """One parameter, by the names that each stage has it under."""

    owner: int
    name: str
    borrowers: dict[int, list[str]]  # stage → its names there

    @property
    def value(self) -> str:
        return f"weight {self.name} of stage {self.owner}"


def ties_of(modules: list[nn.Module]) -> list[Tie]:
    ties: dict[int, Tie] = {}
    for stage, module in enumerate(modules):
        for name, parameter in module.named_parameters(remove_duplicate=False):
            tie = ties.setdefault(id(parameter), Tie(stage, name, {}))
            if stage != tie.owner:
                tie.borrowers.setdefault(stage, []).append(name)
    return [tie for tie in ties.values() if tie.borrowers]


def tie_stages(parts: list[Part]) -> list[Tie]:
    """Changes the parts, not their modules: those stay as they are."""
    ties = ties_of([part.module for part in parts])
    if not ties:
        return []
    if not any(part.gives for part in parts):
        name_values(parts)
    modules = wrapped([part.module for part in parts], [part.gives for part in parts], ties)
    for part, module in zip(parts, modules, strict=True):
        part.module = module
    for tie in ties:
        parts[tie.owner].gives.append(tie.value)
        for stage in tie.borrowers:
            parts[stage].takes.append(tie.value)
            add_route(parts[tie.owner].outgoing, stage, tie.value)
            add_route(parts[stage].incoming, tie.owner, tie.value)
    return ties


def wrapped(modules: list[nn.Module], gives: list[list[str]], ties: list[Tie]) -> list[nn.Module]:
    """`gives`: what each stage gives without the parameters."""
    made = []
    for stage, module in enumerate(modules):
        borrowed = [tie.borrowers[stage] for tie in ties if stage in tie.borrowers]
        lent = {tie.value: tie.name for tie in ties if tie.owner == stage}
        inner = Borrower(module, borrowed) if borrowed else module
        made.append(Lender(inner, list(gives[stage]), lent) if lent else inner)
    return made


def name_values(parts: list[Part]) -> None:
    """A chain, in which each stage takes the one before's only value, with names for these values."""
    for stage, part in enumerate(parts):
        part.first, part.one_input = stage == 0, True
        part.takes = [f"output {stage - 1}"] if stage else ["input"]
        part.gives = [f"output {stage}"]
        if stage:
            parts[stage - 1].outgoing.append((stage, [f"output {stage - 1}"]))
            part.incoming.append((stage - 1, [f"output {stage - 1}"]))


def add_route(routes: list[tuple[int, list[str]]], stage: int, value: str) -> None:
    for other, names in routes:
        if other == stage:
            names.append(value)
            return
    routes.append((stage, [value]))
    routes.sort(key=lambda route: route[0])


class Lender(nn.Module):
    """A stage that gives parameters beside its values. Parameters and buffers have the names that they have in the module."""

    inner: nn.Module
    gives: list[str]
    lent: dict[str, str]  # value → parameter

    def __init__(self, module: nn.Module, gives: list[str], lent: dict[str, str]) -> None:
        super().__init__()
        take_over(self, module)
        self.__dict__.update(inner=module, gives=gives, lent=lent)

    def forward(self, *inputs: Any) -> dict[str, Any]:
        result = self.inner(*inputs)
        values = dict(result) if len(self.gives) > 1 else {self.gives[0]: result}
        # A copy: the stage may load other weights before this one has been sent.
        return values | {value: attribute(self.inner, name).clone() for value, name in self.lent.items()}

    def train(self, mode: bool = True) -> Lender:
        self.inner.train(mode)
        return super().train(mode)


class Borrower(nn.Module):
    """A stage that is called with parameters behind its values."""

    inner: nn.Module
    borrowed: list[list[str]]

    def __init__(self, module: nn.Module, borrowed: list[list[str]]) -> None:
        super().__init__()
        inner = without(module, [name for names in borrowed for name in names])
        take_over(self, inner)
        self.__dict__.update(inner=inner, borrowed=borrowed)

    def forward(self, *inputs: Any) -> Any:
        values, weights = inputs[: -len(self.borrowed)], inputs[-len(self.borrowed) :]
        places = []
        for names, weight in zip(self.borrowed, weights, strict=True):
            for name in names:
                path, _, leaf = name.rpartition(".")
                places.append((self.inner.get_submodule(path).__dict__, leaf))
                places[-1][0][leaf] = weight
        try:
            return self.inner(*values)
        finally:
            for place, leaf in places:
                del place[leaf]

    def train(self, mode: bool = True) -> Borrower:
        self.inner.train(mode)
        return super().train(mode)


def attribute(module: nn.Module, name: str) -> torch.Tensor:
    """A parameter, or what a functional call has put in its place."""
    path, _, leaf = name.rpartition(".")
    return getattr(module.get_submodule(path), leaf)  # type: ignore[no-any-return]


def take_over(wrapper: nn.Module, module: nn.Module) -> None:
    """The wrapper's parameters, buffers and children are the module's own, whoever changes them."""
    wrapper._parameters, wrapper._buffers, wrapper._modules = module._parameters, module._buffers, module._modules
    wrapper._non_persistent_buffers_set = module._non_persistent_buffers_set
    wrapper.training = module.training


def without(module: nn.Module, names: list[str]) -> nn.Module:
    """The same module without these parameters; everything else is shared."""
    found = shallow(module)
    for name in names:
        *path, leaf = name.split(".")
        at = found
        for part in path:
            at._modules[part] = shallow(at._modules[part])  # type: ignore[arg-type]
            at = at._modules[part]  # type: ignore[assignment]
        del at._parameters[leaf]
    return found


def shallow(module: nn.Module) -> nn.Module:
    made: nn.Module = object.__new__(type(module))
    made.__dict__ = dict(module.__dict__)
    for name in ("_parameters", "_buffers", "_modules"):
        made.__dict__[name] = copy.copy(module.__dict__[name])
    return made


def aliases(ties: list[Tie], parts: list[Part], weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Borrowed parameters under the names that the whole model has them by, too."""
    found = {}
    for tie in ties:
        for stage, names in tie.borrowers.items():
            for name in names:
                found[parts[stage].name_of(name)] = weights[parts[tie.owner].name_of(tie.name)]
    return found
