"""A model as layers and the values between them.

A layer is what a cut never divides: a module (`encoder.0.conv1`) with the small operations behind it that need nothing
else, or a run of operations of one module. Layers are pieces of one torch.fx graph, in the order in which the model
computes them, so that a cut between any two of them is legal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from ddip._client import did_you_mean
from ddip.errors import ConfigError

# Operations in a traced graph that compute something.
_COMPUTES = ("call_module", "call_function", "call_method")


@dataclass
class Layer:
    name: str
    path: str  # of the module that the operations belong to; "" is the model itself
    nodes: list[fx.Node]


@dataclass(frozen=True)
class Flow:
    """`node`'s value goes from one layer to another. The model's inputs come from the first layer, what the model returns
    goes to the last one."""

    source: int
    target: int
    node: fx.Node


@dataclass
class Traced:
    module: fx.GraphModule  # computes what the model does, with the model's own parameters under their own names
    model: nn.Module
    layers: list[Layer]
    how: str  # "sequential", "stages", "fx" or "export"

    @property
    def graph(self) -> fx.Graph:
        return self.module.graph

    def inputs(self) -> list[fx.Node]:
        return [node for node in self.graph.nodes if node.op == "placeholder"]

    def output(self) -> fx.Node:
        found: fx.Node
        (found,) = self.graph.find_nodes(op="output")
        return found

    def layer_of(self) -> dict[fx.Node, int]:
        found = {node: index for index, layer in enumerate(self.layers) for node in layer.nodes}
        found.update({node: 0 for node in self.inputs()})
        found[self.output()] = len(self.layers) - 1
        return found

    def flows(self) -> list[Flow]:
        """Every value that another layer needs, once for each layer that does."""
        layer_of = self.layer_of()
        found: dict[tuple[fx.Node, int], Flow] = {}
        for node, target in layer_of.items():
            for value in node.all_input_nodes:
                if value in layer_of and layer_of[value] != target:
                    found.setdefault((value, target), Flow(layer_of[value], target, value))
        return list(found.values())


def trace(
    model: nn.Module | Sequence[nn.Module],
    inputs: tuple[Any, ...] | None = None,
    *,
    leaves: Sequence[type[nn.Module]] = (),
    how: str = "auto",
) -> Traced:
    """`model`: a module, or a list of modules each of which takes what the one before returns.

    nn.Sequential and lists are taken as they are; anything else is traced by torch.fx. A module inside that fx cannot
    follow (it looks at its values) is one layer, and so are those of the classes `leaves`. If fx cannot follow the model
    itself, torch.export does, with `inputs`; what it gives is fixed to training or evaluation as the model is now.
    """
    if not isinstance(model, nn.Module):
        return _of_list(list(model))
    if how == "export":
        return _exported(model, inputs)
    if how == "auto" and isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward:
        return _of_children(model, _flattened(model, tuple(leaves)), "sequential")
    try:
        return _symbolic(model, tuple(leaves))
    except Exception as error:
        if how == "fx" or inputs is None:
            raise ConfigError(f"torch.fx cannot trace {_kind(model)}: {_first_line(error)}") from error
        if leaves:
            raise ConfigError(
                f"torch.fx cannot trace {_kind(model)}: {_first_line(error)}; torch.export might, but leaves no module whole"
            ) from error
        try:
            return _exported(model, inputs)
        except ConfigError as second:
            raise ConfigError(f"torch.fx cannot trace {_kind(model)}: {_first_line(error)}; nor {second}") from second


def classes_of(
    model: nn.Module | Sequence[nn.Module], wanted: Sequence[str | type[nn.Module]], asked: str
) -> list[type[nn.Module]]:
    """The classes of these modules, or of modules of these names. `asked`: how, for whoever asked for one that is not there."""
    parts = [model] if isinstance(model, nn.Module) else model
    modules = [inner for part in parts for inner in part.modules()]
    known = {type(module).__name__: type(module) for module in modules}
    found = []
    for one in wanted:
        name = one if isinstance(one, str) else one.__name__
        there = name in known if isinstance(one, str) else any(isinstance(module, one) for module in modules)
        if not there:
            raise ConfigError(f"{asked}{name}: no such module{did_you_mean(name, sorted(known))}")
        found.append(known[name] if isinstance(one, str) else one)
    return found


def _kind(model: nn.Module) -> str:
    return type(model).__name__


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def _of_list(modules: list[nn.Module]) -> Traced:
    for number, module in enumerate(modules):
        if not isinstance(module, nn.Module):
            raise ConfigError(f"stage {number} is a {type(module).__name__}; expected a torch module")
    if not modules:
        raise ConfigError("the list of stages is empty; expected at least one module")
    return _of_children(nn.ModuleList(modules), [str(number) for number in range(len(modules))], "stages")


def _flattened(model: nn.Module, leaves: tuple[type[nn.Module], ...], above: str = "") -> list[str]:
    """The paths of a Sequential's modules, those of Sequentials inside included."""
    found = []
    for name, child in model.named_children():
        inside = isinstance(child, nn.Sequential) and not isinstance(child, leaves) and len(child) > 0
        found += _flattened(child, leaves, f"{above}{name}.") if inside else [above + name]
    return found


def _of_children(model: nn.Module, paths: list[str], how: str) -> Traced:
    if not paths:
        raise ConfigError(f"{_kind(model)} has no layer")
    graph = fx.Graph()
    value = graph.placeholder("x")
    for path in paths:
        value = graph.call_module(path, (value,))
    graph.output(value)
    return _traced(model, fx.GraphModule(model, graph), how)


class _Tracer(fx.Tracer):
    def __init__(self, leaves: tuple[type[nn.Module], ...]) -> None:
        super().__init__()
        self.leaves = leaves

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, self.leaves) or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """One that looks at its values cannot be followed: then it is one layer, and its operations so far are undone."""
        before = set(self.graph.nodes)
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            for node in reversed(list(self.graph.nodes)):
                if node not in before:
                    self.graph.erase_node(node)
            return self.create_proxy("call_module", self.path_of_module(m), args, kwargs)


def _symbolic(model: nn.Module, leaves: tuple[type[nn.Module], ...]) -> Traced:
    module = fx.GraphModule(model, _Tracer(leaves).trace(model))
    module.graph.eliminate_dead_code()
    return _traced(model, module, "fx")


def _exported(model: nn.Module, inputs: tuple[Any, ...] | None) -> Traced:
    if inputs is None:
        raise ConfigError(f"torch.export of {_kind(model)} needs example inputs")
    try:
        module = torch.export.export(model, inputs).module()
    except Exception as error:
        raise ConfigError(f"torch.export cannot follow {_kind(model)}: {_first_line(error)}") from error
    assert isinstance(module, fx.GraphModule)
    graph = module.graph
    for node in list(graph.nodes):
        if node.name == "_guards_fn":  # checks the inputs' shapes, which may differ from the example's
            graph.erase_node(node)
    (flat,) = next(node for node in graph.nodes if node.op == "output").args
    shape: Any = module._out_spec
    next(node for node in graph.nodes if node.op == "output").args = (pytree.tree_unflatten(list(flat), shape),)
    graph.set_codegen(fx.graph.CodeGen())
    return _traced(model, fx.GraphModule(module, graph), "export")


def _path_of(node: fx.Node) -> str:
    if node.op == "call_module":
        return str(node.target)
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]) if stack else ""


def _traced(model: nn.Module, module: fx.GraphModule, how: str) -> Traced:
    module.train(model.training)
    layers = _layers(model, module.graph)
    if not layers:
        raise ConfigError(f"{_kind(model)} has no layer: it computes nothing")
    return Traced(module, model, layers, how)


def _layers(model: nn.Module, graph: fx.Graph) -> list[Layer]:
    layers: list[Layer] = []
    names: set[str] = set()
    waiting: list[fx.Node] = []  # they need no value (a counter that is increased): part of the layer behind them
    for node in graph.nodes:
        if node.op not in _COMPUTES:
            continue
        needs = [value for value in node.all_input_nodes if value.op != "get_attr"]
        if not needs:
            waiting.append(node)
            continue
        path = _path_of(node)
        if layers and _belongs(node, path, needs, layers[-1], waiting):
            layers[-1].nodes += [*waiting, node]
        else:
            layers.append(Layer(_new_name(model, node, path, names), path, [*waiting, node]))
        waiting = []
    if waiting and layers:
        layers[-1].nodes += waiting
    return layers


def _belongs(node: fx.Node, path: str, needs: list[fx.Node], layer: Layer, waiting: list[fx.Node]) -> bool:
    """Whether an operation is part of the layer before it."""
    if node.op == "call_module":
        return False
    if path and path == layer.path and layer.nodes[-1].op != "call_module":
        return True
    small = not any(value.op == "get_attr" for value in node.all_input_nodes)
    inside = set(layer.nodes) | set(waiting)
    return small and all(value in inside for value in needs)


def _new_name(model: nn.Module, node: fx.Node, path: str, names: set[str]) -> str:
    """The module's path if it has no parts of its own; else with the operation's name. A module that is used again is #2."""
    try:
        whole = node.op == "call_module" or not any(True for _ in model.get_submodule(path).children())
    except AttributeError:
        whole = False
    base = path if path and whole else ".".join(part for part in (path, node.name) if part)
    name, times = base, 1
    while name in names:
        times += 1
        name = f"{base}#{times}"
    names.add(name)
    return name
