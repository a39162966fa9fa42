"""A model that is run, or followed, only to be looked at stays as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ddip.pipeline.random_state import RandomState

_CONTAINERS = ("_parameters", "_buffers", "_modules")
_ABSENT = object()


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

    def changed(self) -> tuple[str, Any] | None:
        """One that is not what it was, or was not there: its name, and what it is now."""
        for before, now in [(self._before, self.module.__dict__), *self._pairs()]:
            for name in [*before, *now]:
                if not name.startswith("_tensor_constant") and before.get(name, _ABSENT) is not now.get(name, _ABSENT):
                    return name, now.get(name)
        return None

    def restore(self) -> None:
        self.module.__dict__.clear()
        self.module.__dict__.update(self._before)
        for before, now in self._pairs():
            now.clear()
            now.update(before)

    def _pairs(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        return [(self._inside[name], self._before[name]) for name in _CONTAINERS]
