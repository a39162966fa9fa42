"""A model that is run, or followed, only to be looked at stays as it was."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from ddip.pipeline.random_state import RandomState

_CONTAINERS = ("_parameters", "_buffers", "_modules")
_TORCHS = set(nn.Module().__dict__)
_untouched: dict[int, Parameters] = {}  # of models that somebody looks at right now: one copy of all weights is enough


@contextmanager
def untouched(model: nn.Module, runs: bool = True) -> Iterator[Parameters]:
    """A batch norm counts what it sees, an embedding may limit its rows, a dropout draws numbers, a module may keep what it computed:
    nothing of it is noticed afterwards. A model that is only followed, with stand-ins, writes no parameter: all ranks do that at the same
    time, and a copy of all weights for each would be too many."""
    numbers, kept = RandomState(), [Attributes(module) for module in model.modules()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    outer = _untouched.get(id(model))
    parameters = outer or Parameters(model if runs else nn.Module())
    if runs:
        _untouched[id(model)] = parameters
    try:
        yield parameters
    finally:
        for attributes in kept:
            attributes.restore()
        with torch.no_grad():
            for buffer, value in buffers:  # all: a batch norm does not tell torch's version counter what it writes
                buffer.copy_(value)
        parameters.restore()
        if runs and not outer:
            del _untouched[id(model)]
        numbers.restore()


class Parameters:
    """Those of a model, as they are now. Few forwards write one, but what does it by `.data` is not counted by torch, and what it was
    can only come from a copy; on the CPU, since a GPU may have no room for all weights twice. Whether something was written is
    looked at where the weights are: to fetch them each time would take minutes."""

    def __init__(self, model: nn.Module) -> None:
        self._before = [(name, one, one.detach().to("cpu", copy=True)) for name, one in model.named_parameters()]
        self._marks = [_mark(one) for _, one, _ in self._before]

    def _changed(self) -> Iterator[tuple[int, str, torch.Tensor, torch.Tensor]]:
        for index, (name, parameter, before) in enumerate(self._before):
            if _mark(parameter) != self._marks[index] and not _same(parameter.detach(), before):
                yield index, name, parameter, before

    def written(self) -> dict[str, torch.Tensor]:
        """Copies of those that are others now."""
        return {name: parameter.detach().clone() for _, name, parameter, _ in self._changed()}

    def restore(self) -> None:
        with torch.no_grad():
            for index, _, parameter, before in self._changed():
                parameter.copy_(before)
                self._marks[index] = _mark(parameter)


def _mark(tensor: torch.Tensor) -> str:
    """Another one, if somebody has written to it: torch's counter, and sums that a write past it would have to meet by chance."""
    values = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    values = values.float() if values.element_size() == 1 and values.is_floating_point() else values
    sums = [values.sum(dtype=torch.float64), values[..., ::2].sum(dtype=torch.float64)] if values.dim() else [values]
    return f"{tensor._version} {tensor.data_ptr()} {torch.stack(sums).tolist()}"  # as text, NaN is NaN


def _same(now: torch.Tensor, before: torch.Tensor) -> bool:
    """NaN is the same as NaN."""
    now = now.cpu()
    return (
        torch.equal(now, before)
        or torch.equal(now.isnan(), before.isnan())
        and torch.equal(now.nan_to_num(), before.nan_to_num())
    )


class Attributes:
    """Those of one module, as they are now, with what is in its lists and dictionaries; not what is inside other objects."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._before = dict(module.__dict__)
        self._inside = {name: dict(module.__dict__[name]) for name in _CONTAINERS}
        self._kept = {name: _collections_in(value) for name, value in self._before.items() if name not in _TORCHS}

    def changes(self) -> Iterator[tuple[str, Any, Any]]:
        """Those that are not what they were: the name, what it was and what it is; None for what is not there."""
        for before, now in [(self._before, self.module.__dict__), *self._pairs()]:
            for name in {**before, **now}:
                # fx keeps its constants in the model.
                if before.get(name) is not now.get(name) and not name.startswith("_tensor_constant"):
                    yield name, before.get(name), now.get(name)
        for name, kept in self._kept.items():
            for now, before in kept:
                if not _same_items(before, now):
                    yield name, *_change_of(before, now)

    def restore(self) -> None:
        self.module.__dict__.clear()
        self.module.__dict__.update(self._before)
        for before, now in self._pairs():
            now.clear()
            now.update(before)
        for now, before in (pair for kept in self._kept.values() for pair in kept):
            if not _same_items(before, now):
                now.clear()
                (now.extend if isinstance(now, (list, deque)) else now.update)(before)

    def _pairs(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        return [(self._inside[name], self._before[name]) for name in _CONTAINERS]


def _collections_in(value: Any) -> list[tuple[Any, Any]]:
    """Each with a copy of its own, also those in others."""
    found, waiting, known = [], [value], set[int]()
    while waiting:
        one = waiting.pop()
        if not isinstance(one, (list, dict, set, deque, tuple)) or id(one) in known:
            continue
        known.add(id(one))
        waiting += one.values() if isinstance(one, dict) else one
        if not isinstance(one, tuple):
            found.append((one, dict(one) if isinstance(one, dict) else list(one)))
    return found


def _same_items(before: Any, now: Any) -> bool:
    """The very same: comparing tensors would be a tensor."""
    if isinstance(now, dict):
        before, now = [*before, *before.values()], [*now, *now.values()]
    if isinstance(now, set):
        return {id(item) for item in before} == {id(item) for item in now}
    return len(before) == len(now) and all(map(operator.is_, before, now))


def _change_of(before: Any, now: Any) -> tuple[Any, Any]:
    """Of a dictionary that has only got more, what it got."""
    if isinstance(now, dict) and all(key in now and now[key] is value for key, value in before.items()):
        return None, [value for key, value in now.items() if key not in before]
    return before, list(now.values() if isinstance(now, dict) else now)
