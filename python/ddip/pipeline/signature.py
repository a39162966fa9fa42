"""How the inputs of an example fill the arguments of a model's forward."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ddip.errors import ConfigError
from ddip.pipeline.traced import kind


@dataclass
class Given:
    omitted: dict[str, Any] = field(default_factory=dict)  # arguments that are left out, with what they are then
    nothing: dict[str, int] = field(default_factory=dict)  # arguments that are None, with their places
    others: int | None = None  # how many inputs `*args` takes; None: there is no example

    def guard(self, model: nn.Module) -> Nothing | None:
        return Nothing(kind(model), self.nothing) if self.nothing else None


@dataclass
class Nothing:
    """A hook of the first stage. A trace is of a forward that had None there, and would leave out whatever else comes."""

    model: str
    places: dict[str, int]

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        for name, place in self.places.items():
            if place < len(inputs) and inputs[place] is not None:
                raise ConfigError(
                    f"{self.model} was traced with {name}=None and got a {type(inputs[place]).__name__}; expected an example like it"
                )


def given_of(model: nn.Module, inputs: tuple[Any, ...]) -> Given:
    signature = inspect.signature(model.forward)
    try:
        arguments = signature.bind(*inputs).arguments
    except TypeError as error:
        raise ConfigError(
            f"{kind(model)}.forward takes {', '.join(signature.parameters) or 'nothing'} and cannot be called with {len(inputs)} "
            f"{'input' if len(inputs) == 1 else 'inputs'}: {error}"
        ) from None
    found = Given(others=0)
    for place, (name, parameter) in enumerate(signature.parameters.items()):
        if parameter.kind is parameter.VAR_POSITIONAL:
            found.others = len(arguments.get(name, ()))
        elif name not in arguments and parameter.default is not parameter.empty:
            found.omitted[name] = parameter.default
        elif name in arguments and arguments[name] is None:
            found.nothing[name] = place
    return found
