"""A model as layers and the values between them.

A layer is what a cut never divides: a module (`encoder.0.conv1`) with the small operations behind it that need nothing
else, or a run of operations of one module. Layers are pieces of one torch.fx graph, in the order in which the model
computes them, so that a cut between any two of them is legal.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import fx, nn

from ddip.errors import ConfigError

# Operations in a traced graph that compute something.
COMPUTES = ("call_module", "call_function", "call_method")


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
    instead: str = ""  # why fx could not do what export did
    guard: Any = None  # looks at the inputs: a hook of the first stage
    checked: bool = False  # that it computes what the model does
    # These are known when it is checked.
    written: set[str] = field(default_factory=set)  # buffers and parameters that a forward in training writes
    changes: dict[str, set[str]] = field(default_factory=dict)  # value → the operations that change it in place
    unsent: set[str] = field(default_factory=set)  # values that would lose their class on the way to another stage

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
            for value in needs_of(node):
                if value in layer_of and layer_of[value] != target:
                    found.setdefault((value, target), Flow(layer_of[value], target, value))
        return list(found.values())


def keep_together(traced: Traced, written: set[str]) -> None:
    """A value that cannot be sent stays in one layer. `written`: buffers and parameters that each forward writes. All layers from the
    first to the last use of one become one layer: two stages would each have one of their own. A list of stages is cut already."""
    traced.written = written
    if traced.how == "stages":
        return
    tensors = dict(traced.model.named_buffers(remove_duplicate=False)) | dict(traced.model.named_parameters())
    uses: dict[int, list[int]] = {id(tensors[name]): [] for name in written if name in tensors}
    for index, layer in enumerate(traced.layers):
        for used in _tensors_of(traced.module, layer) & set(uses):
            uses[used].append(index)
    joined = {index for where in uses.values() if where for index in range(min(where) + 1, max(where) + 1)}
    for flow in traced.flows():
        if flow.node.name in traced.unsent:
            joined |= set(range(flow.source + 1, flow.target + 1))
    _join(traced, joined)


def _tensors_of(module: fx.GraphModule, layer: Layer) -> set[int]:
    found: set[int] = set()
    for node in layer.nodes:
        if node.op == "call_module":
            part = module.get_submodule(str(node.target))
            found |= {id(tensor) for tensor in (*part.buffers(), *part.parameters())}
        for value in node.all_input_nodes:
            if value.op == "get_attr":
                path, _, name = str(value.target).rpartition(".")
                found.add(id(getattr(module.get_submodule(path), name)))
    return found


def is_read_anywhere(node: fx.Node) -> bool:
    """A value's type or device, which no message carries: each stage reads it from the value, and finds its own device."""
    return node.op == "call_function" and node.target is getattr and node.args[1] in ("dtype", "device", "layout")


def needs_of(node: fx.Node) -> list[fx.Node]:
    """The values that it is computed from."""
    found: dict[fx.Node, None] = {}
    for value in node.all_input_nodes:
        found.update(dict.fromkeys(needs_of(value) if is_read_anywhere(value) else [value]))
    return list(found)


def traced_of(model: nn.Module, module: fx.GraphModule, how: str) -> Traced:
    module.training = model.training  # its own: the model's modules are in it, each in its mode
    layers = _layers(model, module.graph)
    if not layers:
        raise ConfigError(f"{kind(model)} has no layer: it computes nothing")
    traced = Traced(module, model, layers, how)
    _join_what_nobody_needs(traced)
    return traced


def _join_what_nobody_needs(traced: Traced) -> None:
    """A layer that is called for what it counts only leads to no other stage: it is part of the layer before it."""
    needed, flows = {len(traced.layers) - 1}, traced.flows()
    for index in reversed(range(len(traced.layers))):
        if any(flow.source == index and flow.target in needed for flow in flows):
            needed.add(index)
    if traced.how != "stages":
        _join(traced, set(range(1, len(traced.layers))) - needed)


def _join(traced: Traced, joined: set[int]) -> None:
    """These with the layers before them."""
    layers: list[Layer] = []
    for index, layer in enumerate(traced.layers):
        if index in joined:
            layers[-1].nodes += layer.nodes
        else:
            layers.append(layer)
    traced.layers = layers


def _path_of(node: fx.Node) -> str:
    if node.op == "call_module":
        return str(node.target)
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]) if stack else ""


def _layers(model: nn.Module, graph: fx.Graph) -> list[Layer]:
    layers: list[Layer] = []
    names: set[str] = set()
    # They need no value that comes from the inputs (a counter that is increased, what is made of parameters alone): part of the layer
    # behind them, since a stage is what something leads to.
    waiting: list[fx.Node] = []
    for node in graph.nodes:
        if node.op not in COMPUTES or is_read_anywhere(node):
            continue
        needs = [value for value in needs_of(node) if value.op != "get_attr"]
        if all(value in waiting for value in needs):
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


def kind(model: nn.Module) -> str:
    return type(model).__name__


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
