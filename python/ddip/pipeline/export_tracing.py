"""torch.export runs a model once on example inputs and writes down the operations."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from typing import Any

import torch
from torch import fx, nn
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils import _pytree as pytree

from ddip.errors import ConfigError
from ddip.pipeline.random_state import RandomState
from ddip.pipeline.traced import Traced, first_line, kind, traced_of
from ddip.pipeline.untouched import untouched
from ddip.pipeline.values import shape_of


def exported(model: nn.Module, inputs: tuple[Any, ...] | None) -> Traced:
    if inputs is None:
        raise ConfigError(f"torch.export of {kind(model)} needs example inputs")
    for value in inputs:
        if isinstance(value, (dict, list, tuple)):
            raise ConfigError(
                f"torch.export takes a {type(value).__name__} among the inputs of {kind(model)} apart, and a stage is called with it whole; "
                "expected tensors one by one"
            )
    with untouched(model, runs=False):
        numbers = RandomState()
        module = _module_of(model, inputs)
        if not numbers.is_still():  # torch's own are operations: those that were drawn are Python's
            raise ConfigError(f"torch.export cannot follow {kind(model)}: it draws random numbers in Python")
    graph, guards = module.graph, None
    for node in list(graph.nodes):
        if node.name == "_guards_fn":
            guards = module.get_submodule(str(node.target))
            graph.erase_node(node)
        elif node.target is torch.ops.aten.sym_size.int and not node.users:
            graph.erase_node(node)
    (end,) = graph.find_nodes(op="output")
    (flat,) = end.args
    shape: Any = module._out_spec
    end.args = (pytree.tree_unflatten(list(flat), shape),)
    _write_at_once(graph)
    graph.set_codegen(fx.graph.CodeGen())
    traced = traced_of(model, fx.GraphModule(module, graph), "export")
    traced.guard = Guard(guards, kind(model), shape_of(inputs)) if guards is not None else None
    return traced


def _module_of(model: nn.Module, inputs: tuple[Any, ...]) -> fx.GraphModule:
    """Sizes stay open where the model lets them; else they are the example's."""
    open_sizes = pytree.tree_map(
        lambda leaf: dict.fromkeys(range(leaf.dim()), Dim.AUTO) if isinstance(leaf, torch.Tensor) else None, inputs
    )
    try:
        return _exported_quietly(model, inputs, open_sizes)
    except GuardOnDataDependentSymNode as error:  # it looks at its values, whatever the sizes are
        raise ConfigError(f"torch.export cannot follow {kind(model)}: {first_line(error)}") from error
    except Exception:
        try:
            return _exported_quietly(model, inputs, None)
        except Exception as error:
            raise ConfigError(f"torch.export cannot follow {kind(model)}: {first_line(error)}") from error


def _exported_quietly(model: nn.Module, inputs: tuple[Any, ...], sizes: Any) -> fx.GraphModule:
    """What it cannot do, its error says; what it prints besides is for those who work on torch."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            module = torch.export.export(model, inputs, dynamic_shapes=sizes).module()
    finally:
        logging.disable(before)
    assert isinstance(module, fx.GraphModule)
    return module


def _write_at_once(graph: fx.Graph) -> None:
    """Export writes a buffer's new value at the very end, which would be another stage than the one that computes it."""
    place = {node: index for index, node in enumerate(graph.nodes)}
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
        buffer, value = node.args[:2]
        if not isinstance(buffer, fx.Node) or not isinstance(value, fx.Node) or buffer.op != "get_attr":
            continue
        if all(user is node or place[user] <= place[value] for user in buffer.users):  # nobody needs the old one
            value.append(node)


class Guard:
    """What a trace relies on: the sizes for which the model would do the same again."""

    def __init__(self, guards: nn.Module, name: str, example: str) -> None:
        self.guards, self.name, self.example = guards, name, example

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        try:
            self.guards(*pytree.tree_leaves(inputs))
        except AssertionError as error:
            why = first_line(error).removeprefix("AssertionError: ").removeprefix("Guard failed: ")
            raise ConfigError(
                f"{self.name} was traced with {self.example} and got {shape_of(inputs)}; expected {why}, or an example like it"
            ) from error

    def __deepcopy__(self, memo: Any) -> Guard:
        return self
