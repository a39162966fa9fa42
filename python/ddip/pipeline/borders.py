"""What crosses from stage to stage: a tensor, or tensors in tuples, lists and dicts, with None and numbers among them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor

from ddip.errors import ConfigError


def tensors_in(tree: Any) -> list[Tensor]:
    """In the order in which `with_tensors` meets them."""
    found: list[Tensor] = []
    with_tensors(tree, lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return found


def floats_in(tree: Any) -> list[Tensor]:
    """Those that have gradients."""
    return [tensor for tensor in tensors_in(tree) if tensor.is_floating_point()]


def with_tensors(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same tree with each tensor changed."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(with_tensors(part, change) for part in tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)(with_tensors(part, change) for part in tree)
    if isinstance(tree, dict):
        made = {} if type(tree) is dict else copy.copy(tree)  # of its own class
        for key, part in tree.items():
            made[key] = with_tensors(part, change)
        return made
    return tree


def refuse_other_dicts(tree: Any, name: str) -> None:
    """A message has no place for a dictionary's class: an OrderedDict would arrive as a dict."""
    if isinstance(tree, dict):
        if type(tree) is not dict:
            raise ConfigError(f"{name} returned a {type(tree).__name__} for the next stage; expected a plain dict")
        tree = tuple(tree.values())
    if isinstance(tree, (tuple, list)):
        for part in tree:
            refuse_other_dicts(part, name)


class Routes:
    """Which stage's values go to which stage. Without names in the header: a chain, each stage's output to the next."""

    def __init__(self, header: dict[str, Any]) -> None:
        stages = range(header["stages"])
        self.named = "takes" in header
        self.takes: list[list[str]] = header["takes"] if self.named else [[f"output {i - 1}"] for i in stages]
        self.gives: list[list[str]] = header["gives"] if self.named else [[f"output {i}"] for i in stages]
        self.source = {name: stage for stage in stages[:-1] for name in self.gives[stage]}
        for stage in stages[1:]:
            for name in self.takes[stage]:
                if self.source.get(name, stage) >= stage:
                    raise ConfigError(f"stage {stage} takes {name!r}, which no earlier stage gives")
        for name in set(self.source) - {name for taken in self.takes for name in taken}:
            raise ConfigError(f"stage {self.source[name]} gives {name!r}, which no stage takes")

    def values(self, stage: int, output: Any) -> dict[str, Any]:
        """What a stage gives, by name."""
        names = self.gives[stage]
        return {names[0]: output} if len(names) == 1 else {name: output[name] for name in names}


def added(parts: list[list[Tensor | None]]) -> list[Tensor | None]:
    """Gradients of one value from several stages, in the order given."""
    result = list(parts[0])
    for part in parts[1:]:
        result = [b if a is None else a if b is None else a + b for a, b in zip(result, part, strict=True)]
    return result
