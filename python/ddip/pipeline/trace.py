"""The doors by which a model becomes layers: a list of stages, an nn.Sequential, torch.fx, torch.export."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx, nn

from ddip._client import did_you_mean
from ddip.errors import ConfigError
from ddip.pipeline.export_tracing import exported
from ddip.pipeline.fx_tracing import KeepsState, symbolic
from ddip.pipeline.sequentials import is_plain_sequential, refuse_hooks, steps_of
from ddip.pipeline.signature import Given, given_of
from ddip.pipeline.traced import Traced, first_line, kind, traced_of

__all__ = ["Traced", "classes_of", "trace"]


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
    Whether it is the model, `faithful.check` sees, before a cut is made of it.
    """
    _refuse_lazy([model] if isinstance(model, nn.Module) else list(model))
    if not isinstance(model, nn.Module):
        return _of_list(list(model), inputs)
    refuse_hooks(model)
    given = given_of(model, inputs) if inputs is not None else Given()
    if how == "export":
        return exported(model, inputs)
    if how == "auto" and is_plain_sequential(model):
        return _of_children(model, _flattened(model, tuple(leaves)), "sequential")
    try:
        return symbolic(model, tuple(leaves), given)
    except (KeepsState, ConfigError) as error:  # nobody could do it
        raise ConfigError(f"{kind(model)} cannot be cut: {error}") from error
    except Exception as error:
        why = f"torch.fx cannot trace {kind(model)}: {first_line(error)}"
        if how == "fx" or inputs is None:
            raise ConfigError(why) from error
        if leaves:
            raise ConfigError(f"{why}; torch.export might, but leaves no module whole") from error
        try:
            traced = exported(model, inputs)
        except ConfigError as second:
            raise ConfigError(f"{why}; nor {second}") from second
        traced.instead = why
        return traced


def classes_of(
    model: nn.Module | Sequence[nn.Module], wanted: Sequence[str | type[nn.Module]], asked: str
) -> list[type[nn.Module]]:
    """The classes of these modules, or of modules of these names. `asked`: how, for whoever asked for one that is not there."""
    parts = [model] if isinstance(model, nn.Module) else model
    modules = [
        inner for part in parts if isinstance(part, nn.Module) for inner in part.modules()
    ]  # the others, trace refuses
    known = {type(module).__name__: type(module) for module in modules}
    found = []
    for one in wanted:
        name = one if isinstance(one, str) else one.__name__
        there = name in known if isinstance(one, str) else any(isinstance(module, one) for module in modules)
        if not there:
            raise ConfigError(f"{asked}{name}: no such module{did_you_mean(name, sorted(known))}")
        found.append(known[name] if isinstance(one, str) else one)
    return found


def _refuse_lazy(parts: list[Any]) -> None:
    for part in parts:
        for name, parameter in part.named_parameters() if isinstance(part, nn.Module) else ():
            if nn.parameter.is_lazy(parameter):
                raise ConfigError(f"parameter {name} has no shape yet; expected a model that has seen one batch")


def _of_list(modules: list[nn.Module], inputs: tuple[Any, ...] | None) -> Traced:
    if inputs is not None and len(inputs) != 1:
        raise ConfigError(
            f"a list of stages takes one input and the example has {len(inputs)}; a tuple as one input is ((a, b),)"
        )
    for number, module in enumerate(modules):
        if not isinstance(module, nn.Module):
            raise ConfigError(f"stage {number} is a {type(module).__name__}; expected a torch module")
    if not modules:
        raise ConfigError("the list of stages is empty; expected at least one module")
    return _of_children(nn.ModuleList(modules), [str(number) for number in range(len(modules))], "stages")


def _flattened(model: nn.Sequential, leaves: tuple[type[nn.Module], ...], above: str = "") -> list[str]:
    """The paths of a plain Sequential's modules, those of plain Sequentials inside included."""
    found = []
    for name, child in steps_of(model):
        if is_plain_sequential(child) and not isinstance(child, leaves) and len(child) > 0:
            found += _flattened(child, leaves, f"{above}{name}.")
        else:
            found.append(above + name)
    return found


def _of_children(model: nn.Module, paths: list[str], how: str) -> Traced:
    if not paths:
        raise ConfigError(f"{kind(model)} has no layer")
    graph = fx.Graph()
    value = graph.placeholder("x")
    for path in paths:
        value = graph.call_module(path, (value,))
    graph.output(value)
    return traced_of(model, fx.GraphModule(model, graph), how)
