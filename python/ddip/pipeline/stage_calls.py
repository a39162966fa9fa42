"""What C++ calls for a stage of Python's."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ddip.communicators import engine
from ddip.errors import ConfigError
from ddip.pipeline.auxiliary import collected
from ddip.pipeline.batches import Batches
from ddip.pipeline.borders import refuse_other_dicts, tensors_in, with_tensors
from ddip.pipeline.counted import in_words, is_count, is_one_number
from ddip.pipeline.hidden_weights import refuse_hidden
from ddip.pipeline.memory import Activations
from ddip.pipeline.metrics import Metrics

AS_IT_IS = contextlib.nullcontext()


def weakly(method: Callable[..., Any]) -> Callable[..., Any]:
    """For C++: Python does not see what is kept there, and would never let go of a circle through it (a pipeline whose loss is a
    method of the object that has the pipeline). Somebody else keeps the method's object."""
    kept = weakref.WeakMethod(method)
    return lambda *arguments: kept()(*arguments)  # type: ignore[misc]


class StageCalls:
    """One stage's. `name`: for people."""

    def __init__(
        self, name: str, part: Any, device: torch.device, precision: str, activations: Activations, hidden: Any
    ) -> None:
        """`hidden`: `_engine.HiddenWeights`."""
        self.name, self.part, self.device, self.precision, self.activations = name, part, device, precision, activations
        self.hidden = hidden
        self._native = engine()
        self.is_last = False
        self.loss_of: Callable[..., Any] | None = None
        self._read: Callable[[int], tuple[Any, Any, int]] | None = None
        self._metrics = Metrics(None)
        self._per_batch = 1

    def begin(self, source: Batches, metrics: Metrics) -> None:
        """Before a run, of a stage that reads samples or targets."""
        self._read, self._metrics, self._per_batch = source.reader(), metrics, source.per_batch

    def end(self) -> None:
        """Nobody's batches are kept between two runs."""
        self._read, self._metrics = None, Metrics(None)

    def forward(self, inputs: list[Any]) -> list[Any]:
        if not self.hidden.is_done:
            self.hidden.enter(tensors_in(inputs))
        with collected(), autocast(self.device, self.precision), self.activations.counted("forward", inputs):
            outputs: list[Any] = self.part.call(inputs)
        if outputs[0] is None and not self.is_last:
            raise ConfigError(
                f"{self.name} returned None for the next stage; expected a tensor, or several in a tuple, list or dict"
            )
        if not self.is_last:
            refuse_other_dicts(outputs, self.name)
        if not self.hidden.is_done and (found := self.hidden.leave(tensors_in(outputs))):
            refuse_hidden(self.name, *found)
        return outputs

    def sample(self, micro_batch: int) -> Any:
        assert self._read
        x, _, count = self._read(micro_batch)
        return self._native.Sample(x, count, begins_batch=micro_batch % self._per_batch == 0)

    def loss(self, outputs: list[Any], micro_batch: int, samples: int) -> Any:
        assert self._read and self.loss_of
        _, target, _ = self._read(micro_batch)
        with autocast(self.device, self.precision), self.activations.counted("loss", outputs):
            target = to_device(target, self.device)
            found = self.loss_of(outputs[0], target)
            self._metrics.add(outputs[0], target, samples)
        if isinstance(found, tuple) and len(found) == 2 and is_one_number(found[0]) and is_count(found[1]):
            return self._native.Loss(found[0], float(found[1]))
        if not is_one_number(found):
            raise ConfigError(
                f"loss= gave {in_words(found)}; expected one number, the mean over the samples, or (sum, count)"
            )
        # Half of a million is no number of half precision.
        mean = found.float() if found.dtype == torch.float16 else found
        return self._native.Loss(mean * samples, float(samples))

    def buffers(self) -> list[torch.Tensor]:
        return list(self.part.module.buffers())


def autocast(device: torch.device, precision: str) -> Any:
    if precision == "fp32" and not torch.is_autocast_enabled(device.type):
        return AS_IT_IS  # making an autocast takes as long as a small layer
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    return torch.autocast(device.type, dtype=dtype, enabled=precision != "fp32")


def to_device(value: Any, device: torch.device) -> Any:
    """Every tensor in it."""
    return with_tensors(value, lambda tensor: tensor.to(device))
