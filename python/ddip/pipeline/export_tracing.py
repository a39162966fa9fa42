"""torch.export runs a model once on example inputs and writes down the operations."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from ddip.errors import ConfigError
from ddip.pipeline.random_state import RandomState
from ddip.pipeline.traced import Traced, first_line, kind, traced_of
from ddip.pipeline.untouched import untouched


def exported(model: nn.Module, inputs: tuple[Any, ...] | None) -> Traced:
    if inputs is None:
        raise ConfigError(f"torch.export of {kind(model)} needs example inputs")
    with untouched(model):
        numbers = RandomState()
        try:
            module = torch.export.export(model, inputs).module()
        except Exception as error:
            raise ConfigError(f"torch.export cannot follow {kind(model)}: {first_line(error)}") from error
        if not numbers.is_still():  # torch's own are operations: those that were drawn are Python's
            raise ConfigError(f"torch.export cannot follow {kind(model)}: it draws random numbers in Python")
    assert isinstance(module, fx.GraphModule)
    graph = module.graph
    for node in list(graph.nodes):
        if node.name == "_guards_fn":  # checks the inputs' shapes, which may differ from the example's
            graph.erase_node(node)
    (flat,) = next(node for node in graph.nodes if node.op == "output").args
    shape: Any = module._out_spec
    next(node for node in graph.nodes if node.op == "output").args = (pytree.tree_unflatten(list(flat), shape),)
    graph.set_codegen(fx.graph.CodeGen())
    return traced_of(model, fx.GraphModule(module, graph), "export")
