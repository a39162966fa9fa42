"""A weight that a layer trains and does not have: it was reached by a reference that no module registers (`self.ref = [embedding]`).

A stage would train a copy of its own, which the others never see. What is registered in both places is shared instead.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ddip.communicators import engine
from ddip.errors import ConfigError
from ddip.pipeline.values import tensors_of


def refuse_hidden_weights(model: nn.Module, layer: str, module: nn.Module, result: Any) -> None:
    """`result`: what a layer's module made, with its graph, from values that no weight of the model has made."""
    looks = engine().HiddenWeights(list(module.parameters()), list(model.named_parameters()))
    with torch.enable_grad():
        found = looks.leave(tensors_of(result))
    if found:
        raise ConfigError(
            f"layer {layer} uses parameter {found[0]} by a reference that torch does not know, and a stage of its own would not train "
            "it; expected the parameter, or its module, as an attribute of the layer: then stages share it"
        )


def hidden_weights(modules: list[nn.Module], stage: int) -> Any:
    """`_engine.HiddenWeights`, which looks at the first forwards of a stage."""
    others = [
        (f"{name} of stage {other}", parameter)
        for other, module in enumerate(modules)
        for name, parameter in module.named_parameters()
        if other != stage
    ]
    return engine().HiddenWeights(list(modules[stage].parameters()), others)


def refuse_hidden(stage: str, name: str, elements: int) -> None:
    """`name`: empty, if the weight is in no stage."""
    if name:
        raise ConfigError(
            f"{stage} computes with {name} by a reference that torch does not know, and would not train it; expected the parameter, "
            "or its module, as an attribute of the stage: then stages share it"
        )
    raise ConfigError(
        f"{stage} computes with a weight of {elements} elements that is in no stage, and would not train it; expected it, or its module, "
        "as an attribute of the stage, or one without requires_grad, or made anew in each forward"
    )


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
                f"stage {stage} refers to weights of stage {other} that are not its own: if its forward would train them, a run is "
                "refused"
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
