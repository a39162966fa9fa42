"""Whether the layers of a traced model, one by one, do what the model does.

A trace is what one forward did; a model may do something else the next time. So both are run, in training and in evaluation
and with more than one set of random numbers, and everything that a step depends on is compared: what is returned, the
gradients, the buffers, parameters that a forward writes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from ddip.errors import ConfigError
from ddip.pipeline.auxiliary import collected, taken
from ddip.pipeline.hidden_weights import refuse_hidden_weights
from ddip.pipeline.in_place import changes_of
from ddip.pipeline.random_state import begin_with
from ddip.pipeline.split import Split, Stage, split
from ddip.pipeline.traced import Traced, first_line, keep_together, kind
from ddip.pipeline.untouched import Parameters, untouched
from ddip.pipeline.values import fresh, linked, loses_its_class, shape_of, tensors_of

# Two random states: what a forward drew once and kept is not what it draws the next time.
SEEDS = (0, 1)
# The same operations on the same machine; only the order of a sum may be another one.
NEAR = {torch.float64: 1e-10, torch.complex128: 1e-10, torch.float32: 1e-5, torch.complex64: 1e-5}
ON_GPU = 1e-3  # a GPU may round what goes into a product to ten bits
COARSE = 1e-2
SAMPLED = 1 << 20  # elements: enough to say how large they usually are
GAP = 1e3  # what is so much larger than the next one is of another kind
ALIKE = 1.01  # -1e9, and what it becomes where something was added


Gradients = dict[str, torch.Tensor | None]  # by parameter


class NotTheModel(ConfigError):
    """A cut would change what is computed."""


@dataclass
class Seen:
    """What one forward did, and its backward."""

    result: Any
    gradients: Gradients
    buffers: dict[str, torch.Tensor]  # and the parameters that were written
    written: set[str]
    losses: list[torch.Tensor] = field(default_factory=list)  # auxiliary ones


def check(traced: Traced, inputs: tuple[Any, ...]) -> None:
    """`inputs`: one micro-batch. Raises NotTheModel with the first difference. Layers that use a buffer or parameter
    which forwards write are one afterwards."""
    names = [node.name for node in traced.inputs()]
    if len(inputs) != len(names):
        raise ConfigError(
            f"{kind(traced.model)} was traced with the inputs {', '.join(names)} and the example has {len(inputs)}; expected as many"
        )
    with untouched(traced.model):
        written = _check_both_modes(traced, inputs)
    keep_together(traced, written)
    traced.checked = True


def _check_both_modes(traced: Traced, inputs: tuple[Any, ...]) -> set[str]:
    """What forwards in training write."""
    alone = split(traced, [[layer.name] for layer in traced.layers])
    mode, written = traced.model.training, set[str]()
    for training in (mode, not mode):
        try:
            theirs = seen(traced.model, _whole(traced), inputs, training)
        except Exception as error:
            if training != mode:
                continue  # it is no model for this mode
            with untouched(traced.model):
                composed(traced, alone, inputs)  # says which layer
            raise ConfigError(
                f"{kind(traced.model)} cannot run forward and backward on the example: {first_line(error)}"
            ) from error
        if training:
            written |= {name for one in theirs for name in one.written}
        try:
            ours = seen(traced.model, _layers(traced, alone, training, mode), inputs, training)
        except Exception as error:
            raise _refusal(traced, first_line(error), training) from error
        for mine, other in zip(ours, theirs, strict=True):
            if difference := difference_of(mine, other):
                raise _refusal(traced, difference, training)
        with untouched(traced.model):
            traced.model.train(training)
            if training:
                _look_at_each(traced, alone, inputs)
            for value, operations in changes_of(traced, inputs).items():
                traced.changes.setdefault(value, set()).update(operations)
    return written


def _look_at_each(traced: Traced, alone: Split, inputs: tuple[Any, ...]) -> None:
    """Which weights it trains, and whether what it makes can be sent."""
    with torch.enable_grad():
        values = composed(traced, alone, inputs, partial(fresh, gradient=True))
    traced.unsent = {name for name, value in values.items() if loses_its_class(value)}
    for layer, stage in zip(traced.layers, alone.stages, strict=True):
        if not traced.unsent.intersection(stage.takes):  # in what is of a class of its own, no copy cuts the graph
            refuse_hidden_weights(traced.model, layer.name, stage.module, [values[name] for name in stage.gives])


def _refusal(traced: Traced, difference: str, training: bool) -> NotTheModel:
    instead = f"{traced.instead}; with torch.export " if traced.instead else ""
    what = f"{instead}the layers of {kind(traced.model)} one by one do not give what the model gives"
    if training != traced.model.training:
        mode = "training" if training else "evaluation"
        if traced.how == "export":
            cause = (
                "torch.export fixes a model to the mode that it is in: make the forward one that torch.fx can follow"
            )
        else:
            cause = "a forward that asks self.training is fixed to one mode: use nn.Dropout and the like, name the module in leaves="
        return NotTheModel(f"{what} in {mode}: {difference}; {cause}, or give a list of stages")
    return NotTheModel(
        f"{what}: {difference}; does a layer change in place what another one needs, or does a forward depend on Python's "
        "own state or on random numbers? Name the module in leaves=, or give a list of stages"
    )


def composed(
    traced: Traced, alone: Split, inputs: tuple[Any, ...], copy: Callable[[Any], Any] = fresh
) -> dict[str, Any]:
    """Every value by its name. Each layer gets copies, as a stage does: what it changes in place, nobody else sees."""
    values: dict[str, Any] = dict(zip(alone.stages[0].takes, inputs, strict=True))
    for layer, stage in zip(traced.layers, alone.stages, strict=True):
        result = run_layer(traced, stage, layer.name, [copy(values[name]) for name in stage.takes if name in values])
        values.update({stage.gives[0]: result} if len(stage.gives) == 1 else result)
    return values


def run_layer(traced: Traced, stage: Stage, name: str, arguments: list[Any]) -> Any:
    try:
        return called(stage.module, *arguments)
    except Exception as error:
        makers = {node.name: layer.name for layer in traced.layers for node in layer.nodes}
        given = ", ".join(
            (f"{makers[value]} gives" if value in makers else f"the input {value} is") + f" {shape_of(argument)}"
            for value, argument in zip(stage.takes, arguments, strict=False)
        )
        raise ConfigError(f"layer {name} cannot run: {given}; {first_line(error)}") from error


def called(module: nn.Module, *arguments: Any) -> Any:
    """When it fails, a GraphModule's own call prints a traceback of code that nobody wrote."""
    return nn.Module.__call__(module, *arguments)


def _whole(traced: Traced) -> Callable[..., Any]:
    """A list of stages has no forward of its own."""
    return partial(called, traced.module) if isinstance(traced.model, nn.ModuleList) else traced.model


def _layers(traced: Traced, alone: Split, training: bool, given: bool) -> Callable[..., Any]:
    """`given`: the model's mode. A model that trains goes on with the modes that its own train() has set; into another mode a pipeline
    puts the stages, and no train() of the model's own is called then."""

    def call(*inputs: Any) -> Any:
        for stage in alone.stages if not (training and given) else ():
            stage.module.train(training)
        return composed(traced, alone, inputs, linked)[alone.stages[-1].gives[0]]

    return call


def seen(model: nn.Module, call: Callable[..., Any], inputs: tuple[Any, ...], training: bool) -> list[Seen]:
    """One forward after the other: what the first one leaves in the model, the second one finds."""
    with untouched(model) as parameters:
        model.train(training)
        return [_seen_once(model, call, inputs, seed, training and seed == SEEDS[0], parameters) for seed in SEEDS]


def _seen_once(
    model: nn.Module,
    call: Callable[..., Any],
    inputs: tuple[Any, ...],
    seed: int,
    backward: bool,
    parameters: Parameters,
) -> Seen:
    begin_with(seed)
    before = _buffers(model)
    with torch.set_grad_enabled(backward):
        with collected():
            result = call(*[fresh(value) for value in inputs])
        losses = taken()
        gradients = gradients_of(model, (result, losses)) if backward else {}
    after = _buffers(model)
    written = {name for name in after if name not in before or not _near(after[name], before[name], 0.0)}
    for name, parameter in parameters.written().items():  # it is a buffer in all but its class
        after[name] = parameter
        written.add(name)
    result = pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, result)
    return Seen(result, gradients, after, written, [loss.detach() for loss in losses])


def _buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: buffer.detach().clone() for name, buffer in model.named_buffers(remove_duplicate=False)}


def gradients_of(model: nn.Module, result: Any) -> Gradients:
    """Of a sum in which every element of the result has another weight."""
    wanted = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    made = [leaf for leaf in tensors_of(result) if leaf.requires_grad]
    if not made or not wanted:
        return dict.fromkeys(wanted)
    ramps = [
        torch.linspace(0.5, 1.5, leaf.numel(), device=leaf.device).view(leaf.shape).to(leaf.dtype) for leaf in made
    ]
    found = torch.autograd.grad(made, list(wanted.values()), ramps, allow_unused=True)
    return dict(zip(wanted, found, strict=True))


def difference_of(ours: Seen, theirs: Seen) -> str | None:
    """In words; None: there is none."""
    return (
        _other_result(ours, theirs) or _other_gradient(ours.gradients, theirs.gradients) or _other_buffer(ours, theirs)
    )


def _other_result(ours: Seen, theirs: Seen) -> str | None:
    kinds = [pytree.tree_structure(seen.result) for seen in (ours, theirs)]
    if shape_of(ours.result) != shape_of(theirs.result) or kinds[0] != kinds[1]:
        names = [f"{type(seen.result).__name__} {shape_of(seen.result)}" for seen in (ours, theirs)]
        return f"they return a {names[0]}, it returns a {names[1]}"
    if len(ours.losses) != len(theirs.losses):
        return f"they have {len(ours.losses)} auxiliary losses, it has {len(theirs.losses)}"
    pairs = zip(*(pytree.tree_leaves([seen.result, seen.losses]) for seen in (ours, theirs)), strict=True)
    for mine, other in pairs:
        if isinstance(other, torch.Tensor):
            same = _near(mine, other, _tolerance(other))
        else:
            same = mine == other or not isinstance(other, (bool, int, float, str))
        if not same:
            return "the result is another one"
    return None


def _other_gradient(ours: Gradients, theirs: Gradients) -> str | None:
    largest = max((_largest(gradient) for gradient in theirs.values() if gradient is not None), default=0.0)
    for name, other in theirs.items():
        mine = ours[name]
        if other is None and mine is not None:
            return f"parameter {name} gets a gradient from them and none from the model"
        if other is not None and mine is None:
            return f"parameter {name} gets a gradient from the model and none from them"
        # One that is zero but for rounding is compared with the largest.
        relative = 1e-3 if other is not None and other.dtype in NEAR else COARSE
        if other is not None and mine is not None and not _near(mine, other, relative, 1e-5 * largest):
            return f"parameter {name} gets another gradient"
    return None


def _other_buffer(ours: Seen, theirs: Seen) -> str | None:
    for name in {**theirs.buffers, **ours.buffers}:
        mine, other = ours.buffers.get(name), theirs.buffers.get(name)
        if mine is None or other is None or not _near(mine, other, _tolerance(other)):
            return f"{name} is another one afterwards"
    return None


def _tolerance(tensor: torch.Tensor) -> float:
    near = NEAR.get(tensor.dtype, COARSE)
    return max(near, ON_GPU) if tensor.is_cuda and near > 1e-8 else near


def _largest(tensor: torch.Tensor) -> float:
    """Of the finite elements."""
    sizes = tensor.to(_wide(tensor)).abs()
    return float(sizes[sizes.isfinite()].max()) if bool(sizes.isfinite().any()) else 0.0


def _usual(tensor: torch.Tensor) -> float:
    """How large its elements are, but for those that stand for something else, as a mask's -1e9: nothing lies between them and the
    others, and they are all alike, or few."""
    sizes = tensor.abs()
    sizes = sizes[sizes.isfinite() & (sizes > 0)]
    if not sizes.numel():
        return 0.0
    found = sizes[:: sizes.numel() // SAMPLED + 1].sort(descending=True).values
    some = max(1, found.numel() // 100)  # so many must be left
    (gaps,) = (found[:-some] > GAP * found[1 : found.numel() - some + 1]).nonzero(as_tuple=True)
    above = int(gaps[0]) + 1 if gaps.numel() else 0
    if not above or found[above - 1] < GAP or (above > some and found[0] > ALIKE * found[above - 1]):
        above = 0
    return float(found[above])


def _wide(tensor: torch.Tensor) -> torch.dtype:
    return torch.complex128 if tensor.is_complex() else torch.float64


def _near(ours: torch.Tensor, theirs: torch.Tensor, relative: float, absolute: float = 0.0) -> bool:
    if ours.shape != theirs.shape:
        return False
    ours, theirs = ours.to(_wide(ours)), theirs.to(_wide(theirs))
    other = (ours != theirs) & ~(ours.isnan() & theirs.isnan())
    if not bool(other.any()):
        return True
    if not bool((ours[other].isfinite() & theirs[other].isfinite()).all()):
        return False
    usual = max(_usual(theirs[other]), _usual(theirs))
    return torch.allclose(ours[other], theirs[other], rtol=relative, atol=max(relative * usual, absolute))
