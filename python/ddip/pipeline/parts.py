"""A model as stages: which module each one has, which values go from which stage to which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ddip.errors import ConfigError
from ddip.pipeline.sequentials import is_plain_sequential, refuse_hooks, steps_of
from ddip.pipeline.shared_buffers import refuse_shared_statistics


class SplitStage(Protocol):
    module: Any
    takes: list[str]
    gives: list[str]


class Split(Protocol):
    """What `ddip.pipeline.split.split` makes."""

    stages: Any
    routes: dict[tuple[int, int], list[str]]


@dataclass
class Part:
    """One stage. Without names it takes one value and gives one."""

    module: torch.nn.Module
    prefix: str = ""
    takes: list[str] = field(default_factory=list)
    gives: list[str] = field(default_factory=list)
    incoming: list[tuple[int, list[str]]] = field(default_factory=list)  # (from stage, names), as the edges come
    outgoing: list[tuple[int, list[str]]] = field(default_factory=list)  # (to stage, names)
    first: bool = False
    one_input: bool = False  # the samples are its only argument, even if they are a tuple

    def call(self, inputs: list[Any]) -> list[Any]:
        """`inputs`: one for each incoming edge, or the samples. One result for each outgoing edge, or the model's output."""
        if not self.gives:
            return [self.module(inputs[0])]
        if self.first:
            several = isinstance(inputs[0], (tuple, list)) and not self.one_input
            given = inputs[0] if several else (inputs[0],)
            result = self.module(*given)
        else:
            values = {name: value for one in inputs for name, value in one.items()}
            result = self.module(*[values[name] for name in self.takes])
        if not self.outgoing:
            return [result]
        named = result if len(self.gives) > 1 else {self.gives[0]: result}
        return [{name: named[name] for name in names} for _, names in self.outgoing]

    def name_of(self, parameter: str) -> str:
        return self.prefix + parameter


def parts_of(
    model: torch.nn.Module | Sequence[torch.nn.Module] | Split, stages: int | None, ranks: int = 1
) -> list[Part]:
    """`stages`: as many as were asked for; None: a stage for each of the ranks."""
    parts = _parts_of(model, stages, ranks)
    refuse_shared_statistics([part.module for part in parts], getattr(model, "written", ()))
    return parts


def _parts_of(
    model: torch.nn.Module | Sequence[torch.nn.Module] | Split, stages: int | None, ranks: int = 1
) -> list[Part]:
    if hasattr(model, "routes"):
        return parts_of_split(model)
    if is_plain_sequential(model):
        return parts_of_sequential(model, stages or ranks)
    if isinstance(model, torch.nn.Module):
        refuse_hooks(model)
        raise ConfigError(
            f"{type(model).__name__} can be cut only with example=, the inputs of one micro-batch; without it, a list of stages or an "
            "nn.Sequential without a forward of its own is expected"
        )
    parts = [Part(module, f"{index}.") for index, module in enumerate(model)]  # type: ignore[arg-type]
    if any(not isinstance(part.module, torch.nn.Module) for part in parts):
        raise ConfigError("a list of stages holds something that is no nn.Module")
    if stages is not None and stages != len(parts):
        raise ConfigError(f"stages={stages}: the list has {len(parts)}; expected as many, or none said")
    return parts


def parts_of_sequential(model: torch.nn.Sequential, stages: int) -> list[Part]:
    layers = steps_of(model)
    if stages > len(layers):
        raise ConfigError(f"{stages} stages of a model with {len(layers)} layers: expected at most {len(layers)}")
    cuts = [round(i * len(layers) / stages) for i in range(stages + 1)]
    parts = []
    for begin, end in zip(cuts, cuts[1:], strict=False):
        module = torch.nn.Sequential()
        for name, layer in layers[begin:end]:
            module.add_module(name, layer)  # under its own name, so that a checkpoint is the model's
        parts.append(Part(module))
    return parts


def parts_of_split(split: Any) -> list[Part]:
    parts = [Part(stage.module, takes=list(stage.takes), gives=list(stage.gives)) for stage in split.stages]
    parts[0].first = True
    for (start, to), names in sorted(split.routes.items()):
        parts[start].outgoing.append((to, list(names)))
        parts[to].incoming.append((start, list(names)))
    return parts


def edges_of(parts: list[Part]) -> list[tuple[int, int]]:
    """(from stage, to stage); a stage's own lists of edges come in this order."""
    if any(part.gives for part in parts):
        return sorted((index, to) for index, part in enumerate(parts) for to, _ in part.outgoing)
    return [(index, index + 1) for index in range(len(parts) - 1)]
