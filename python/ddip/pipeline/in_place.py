"""Which operation changes which value in place. A value belongs to whoever reads it next in the model's own order; a cut may put
that reader into a later stage than the operation that changes the value."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ddip.pipeline.traced import Traced
from ddip.pipeline.values import fresh, tensors_of

Changes = dict[str, set[str]]  # value → the operations that change it after it was made, all by their names


def changes_of(traced: Traced, inputs: tuple[Any, ...]) -> Changes:
    """Of one forward in the mode that the model is in, of the values that go from layer to layer."""
    watching = _Watching(traced)
    with torch.no_grad():
        watching.run(*[fresh(value) for value in inputs])
    return watching.changes


class _Watching(fx.Interpreter):
    """torch counts what is written to a tensor, by whatever name: a view and what it is a view of have one counter, and one memory."""

    def __init__(self, traced: Traced) -> None:
        super().__init__(traced.module)
        self.extra_traceback = False
        self.crossing = {flow.node for flow in traced.flows()}
        self.seen: dict[str, tuple[Any, list[int]]] = {}
        self.in_memory: dict[int, set[str]] = {}  # which values lie there
        self.changes: Changes = {}

    def run_node(self, n: fx.Node) -> Any:
        given = [self.env[node] for node in n.all_input_nodes]  # afterwards some are forgotten
        result = super().run_node(n)
        for name in {name for place in _memory_of(given) for name in self.in_memory.get(place, ())}:
            value, before = self.seen[name]
            if (now := _writes(value)) != before:
                self.seen[name] = value, now
                self.changes.setdefault(name, set()).add(n.name)
        if n in self.crossing:
            self.seen[n.name] = result, _writes(result)
            for place in _memory_of(result):
                self.in_memory.setdefault(place, set()).add(n.name)
        return result


def _memory_of(value: Any) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors_of(value) if tensor.layout == torch.strided}


def _writes(value: Any) -> list[int]:
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors_of(value)]
