"""A traced model and a cut become one module per stage.

The contract of a stage module: it is called with the values named in `takes`, in that order or by name, and returns what
is named in `gives`: the value itself if that is one, else a dict by name. The first stage takes the model's own inputs,
the last one gives what the model returns, whatever that is. A chain of plain modules is one value in, one value out.

Parameters and buffers are the model's own, under the names that they have there: the model's state_dict is the union of
the stages'.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from ddip.errors import ConfigError
from ddip.pipeline.traced import Traced, is_read_anywhere
from ddip.pipeline.values import linked, sent

OUTPUT = "output"


@dataclass
class Stage:
    module: fx.GraphModule
    takes: list[str]
    gives: list[str]


@dataclass
class Split:
    stages: list[Stage]
    # (from stage, to stage) → the values that go straight from one to the other
    routes: dict[tuple[int, int], list[str]]
    # Parameters that several stages use: the stages and the name that each has it by. The first one is its owner.
    tied: list[list[tuple[int, str]]]
    written: set[str] = field(default_factory=set)  # buffers and parameters that forwards write, as far as it is known

    @property
    def modules(self) -> list[fx.GraphModule]:
        return [stage.module for stage in self.stages]

    def __call__(self, *inputs: Any) -> Any:
        """All stages one after the other, in this process: what the model returns."""
        return self.run(inputs, lambda module, *given: module(*given))

    def run(self, inputs: Sequence[Any], call: Callable[..., Any]) -> Any:
        """`call`: calls a stage's module. Each stage has copies, as if they had been sent: what it changes in place, nobody else sees."""
        values: dict[str, Any] = dict(zip(self.stages[0].takes, inputs, strict=False))
        result: Any = None
        for number, stage in enumerate(self.stages):
            given = [values[name] for name in stage.takes if name in values]
            result = call(stage.module, *(sent(value) if number else value for value in given))
            if len(stage.gives) == 1:
                values[stage.gives[0]] = result
            else:
                values.update(result)
        return result

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The model's, put together."""
        return {name: tensor for stage in self.stages for name, tensor in stage.module.state_dict().items()}


def split(traced: Traced, stages: Sequence[Sequence[str]]) -> Split:
    """`stages`: the names of each stage's layers, as a plan has them. Each layer once, none needs a later stage."""
    number_of = {layer.name: number for number, layer in enumerate(traced.layers)}
    stage_of: dict[int, int] = {}
    for stage, names in enumerate(stages):
        if not names:
            raise ConfigError(f"stage {stage} is empty; expected at least one layer")
        for name in names:
            if name not in number_of:
                raise ConfigError(f"stage {stage}: there is no layer {name}")
            if number_of[name] in stage_of:
                raise ConfigError(f"layer {name} is in stage {stage_of[number_of[name]]} and in stage {stage}")
            stage_of[number_of[name]] = stage
    for name, number in number_of.items():
        if number not in stage_of:
            raise ConfigError(f"layer {name} is in no stage")
    routes = _routes(traced, stage_of)
    made = [_stage(traced, stage_of, stage, len(stages), routes) for stage in range(len(stages))]
    if traced.guard is not None:
        made[0].module.register_forward_pre_hook(traced.guard)
    saved = traced.model.state_dict()
    _keep_unused(traced.model, saved, made)
    for stage_made in made:
        _leave_constants_out(stage_made.module, saved)
    return Split(made, routes, _tied(made), traced.written)


def _routes(traced: Traced, stage_of: dict[int, int]) -> dict[tuple[int, int], list[str]]:
    found: dict[tuple[int, int], list[str]] = {}
    place = {node: index for index, node in enumerate(traced.graph.nodes)}
    for flow in sorted(traced.flows(), key=lambda flow: place[flow.node]):
        source, target = stage_of[flow.source], stage_of[flow.target]
        if source > target:
            raise ConfigError(
                f"layer {traced.layers[flow.target].name} of stage {target} needs {traced.layers[flow.source].name} "
                f"of stage {source}; expected an earlier or the same stage"
            )
        if source < target and flow.node.name not in found.setdefault((source, target), []):
            found[source, target].append(flow.node.name)
    return dict(sorted(found.items()))


def _stage(
    traced: Traced, stage_of: dict[int, int], stage: int, stages: int, routes: dict[tuple[int, int], list[str]]
) -> Stage:
    graph = fx.Graph()
    known: dict[fx.Node, fx.Node] = {}
    by_name = {node.name: node for node in traced.graph.nodes}
    received = [name for (_, target), names in routes.items() if target == stage for name in names]
    takes = list(received)
    if stage == 0:
        takes = [node.name for node in traced.inputs()]
        for node in traced.inputs():
            known[node] = graph.node_copy(node)
    for name in received:
        known[by_name[name]] = graph.placeholder(name)

    def copied(node: fx.Node) -> fx.Node:
        """Constants and parameters are fetched where they are used."""
        if node not in known and node.op == "get_attr":
            known[node] = graph.get_attr(str(node.target))
        if node not in known and is_read_anywhere(node):
            known[node] = graph.node_copy(node, copied)
        return known[node]

    gives = sorted(
        {name for (source, _), names in routes.items() if source == stage for name in names}, key=list(by_name).index
    )
    layer_of, copies = traced.layer_of(), dict[str, fx.Node]()
    changed = {
        name: {layer_of[by_name[one]] for one in traced.changes.get(name, ()) if by_name[one] in layer_of}
        for name in gives
    }
    for index, layer in enumerate(traced.layers):
        if stage_of[index] != stage:
            continue
        for node in layer.nodes:
            known[node] = graph.node_copy(node, copied)
        # Whoever takes it reads it as it is now; what the stage does to it afterwards comes later in the model.
        for name in gives:
            if layer_of[by_name[name]] == index and any(
                later > index and stage_of[later] == stage for later in changed[name]
            ):
                copies[name] = graph.call_function(linked, (known[by_name[name]],))
    if stage == stages - 1:
        gives = [OUTPUT]
        graph.output(fx.map_arg(traced.output().args[0], copied))
    else:
        values = {name: copies.get(name, known[by_name[name]]) for name in gives}
        graph.output(values[gives[0]] if len(gives) == 1 else values)
    graph.lint()
    module = fx.GraphModule(traced.module, graph, f"Stage{stage}")
    module.training = traced.module.training
    return Stage(module, takes, gives)


def _leave_constants_out(module: nn.Module, saved: dict[str, Any]) -> None:
    """torch.fx makes buffers of constants, and saves those that the model does not save."""
    for path, part in module.named_modules():
        for name in part._buffers:
            if f"{path}.{name}".lstrip(".") not in saved:
                part._non_persistent_buffers_set.add(name)


def _keep_unused(model: nn.Module, saved: dict[str, Any], stages: list[Stage]) -> None:
    """What the model has and never uses stays with the first stage, so that nothing is lost from a checkpoint."""
    there = {name for stage in stages for name in stage.module.state_dict()}
    for name in saved:
        if name in there:
            continue
        *path, leaf = name.split(".")
        if leaf == "_extra_state":
            raise ConfigError(
                f"{type(model.get_submodule('.'.join(path))).__name__} has get_extra_state(), which its stages cannot keep; expected "
                "it in leaves=, or a list of stages"
            )
        at: nn.Module = stages[0].module
        for part in path:
            if part not in at._modules:
                at.add_module(part, nn.Module())
            at = at._modules[part]  # type: ignore[assignment]
        owner = model.get_submodule(".".join(path))
        if leaf in owner._parameters:
            at.register_parameter(leaf, owner._parameters[leaf])
        else:
            at.register_buffer(leaf, owner._buffers[leaf])


def _tied(stages: list[Stage]) -> list[list[tuple[int, str]]]:
    places: dict[int, list[tuple[int, str]]] = {}
    for number, stage in enumerate(stages):
        for name, parameter in stage.module.named_parameters():
            places.setdefault(id(parameter), []).append((number, name))
    return [found for found in places.values() if len({number for number, _ in found}) > 1]
