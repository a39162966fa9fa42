"""A model that is run, or followed, only to be looked at stays as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ddip.pipeline.random_state import RandomState

_CONTAINERS = ("_parameters", "_buffers", "_modules")


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """A batch norm counts what it sees, a dropout draws numbers, a module may keep what it computed: nothing of it is
    noticed afterwards."""
    numbers, kept = RandomState(), [Attributes(module) for module in model.modules()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for attributes in kept:
            attributes.restore()
        with torch.no_grad():
            for buffer, value in buffers:  # all: a batch norm does not tell torch's version counter what it writes
                buffer.copy_(value)
        numbers.restore()


class Attributes:
    """Those of one module, as they are now; not what is inside them."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._before = dict(module.__dict__)
        self._inside = {name: dict(module.__dict__[name]) for name in _CONTAINERS}

    def changes(self) -> Iterator[tuple[str, Any, Any]]:
        """Those that are not what they were: the name, what it was and what it is; None for what is not there."""
        for before, now in [(self._before, self.module.__dict__), *self._pairs()]:
            for name in {**before, **now}:
                # fx keeps its constants in the model.
                if before.get(name) is not now.get(name) and not name.startswith("_tensor_constant"):
                    yield name, before.get(name), now.get(name)

    def restore(self) -> None:
        self.module.__dict__.clear()
        self.module.__dict__.update(self._before)
        for before, now in self._pairs():
            now.clear()
            now.update(before)

    def _pairs(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        return [(self._inside[name], self._before[name]) for name in _CONTAINERS]
