"""A weight that a layer trains and does not have: it was reached by a reference that no module registers (`self.ref = [embedding]`).

A stage would train a copy of its own, which the others never see. What is registered in both places is shared instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ddip.errors import ConfigError
from ddip.pipeline.values import tensors_of


def refuse_hidden_weights(names: dict[int, str], layer: str, module: nn.Module, result: Any) -> None:
    """`names`: of the model's parameters, by their ids. `result`: what the layer's module made, with its graph, from values that no
    weight of the model has made."""
    own = {id(parameter) for parameter in module.parameters()}
    for weight in _leaves_of(result):
        if id(weight) in names and id(weight) not in own:
            raise ConfigError(
                f"layer {layer} uses parameter {names[id(weight)]} by a reference that torch does not know, and a stage of its own would "
                "not train it; expected the parameter, or its module, as an attribute of the layer: then stages share it"
            )


def _leaves_of(result: Any) -> list[torch.Tensor]:
    """What a backward would give gradients to."""
    waiting = [tensor.grad_fn for tensor in tensors_of(result)]
    found, known = [], set(waiting)
    while waiting:
        node = waiting.pop()
        if node is None:
            continue
        if hasattr(node, "variable"):
            found.append(node.variable)
        new = {before for before, _ in node.next_functions} - known
        known |= new
        waiting += new
    return found


def hidden_references(modules: list[nn.Module]) -> list[str]:
    """What can be seen without running the stages: one of them keeps another's weights in a list or beside torch's back. It may be
    for something else than its forward."""
    stage_of = {id(parameter): stage for stage, module in enumerate(modules) for parameter in module.parameters()}
    found = []
    for stage, module in enumerate(modules):
        own = {id(parameter) for parameter in module.parameters()}
        kept = [thing for part in module.modules() for thing in _kept_by(part)]
        for other in {stage_of.get(id(weight), stage) for weight in kept if id(weight) not in own} - {stage}:
            found.append(
                f"stage {stage} refers to weights of stage {other} that are not its own: if its forward uses them, they are not trained "
                "there; example= finds out"
            )
    return found


def _kept_by(module: nn.Module) -> list[nn.Parameter]:
    """In its attributes, but for its own parameters, buffers and modules."""
    things = [value for name, value in vars(module).items() if name not in ("_parameters", "_buffers", "_modules")]
    found: list[nn.Parameter] = []
    while things:
        thing = things.pop()
        if isinstance(thing, nn.Module):
            found += thing.parameters()
        elif isinstance(thing, nn.Parameter):
            found.append(thing)
        elif type(thing) in (list, tuple, dict):
            inside = thing.values() if isinstance(thing, dict) else thing
            things += [one for one in inside if type(one) not in (list, tuple, dict)]  # one may hold itself
    return found
