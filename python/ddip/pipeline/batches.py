"""A rank's reader of batches: gives the micro-batches that its stages ask for, and keeps a batch as long as one will."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from numbers import Integral
from typing import Any

import torch

from ddip.errors import ConfigError
from ddip.pipeline.borders import tensors_in


class Batches:
    """`batches`: pairs (x, y) of tensors, or of lists, tuples and dictionaries of them, with the samples in the first dimension.
    Each is cut into `micro_batches`; a last one that is too small gives empty ones. `count`: so many of them at most; where nobody
    else says how many there are, all are read to know it. Each micro-batch is read `passes` times, one after the other, and has as
    many numbers."""

    def __init__(self, batches: Iterable[Any], micro_batches: int, count: int | None = None, passes: int = 1) -> None:
        if count is not None and (isinstance(count, bool) or not isinstance(count, Integral) or count < 0):
            raise ConfigError(f"count={count!r}: expected a whole number of batches, or None: all of them")
        self.micro_batches, self.passes = micro_batches, passes
        self.batches: Any = batches
        there = length_of(batches)
        if there is None and count is None:
            self.batches = list(batches)
            there = len(self.batches)
        self._count = min(number for number in (there, count) if number is not None)
        self._iterator: Iterator[Any] = iter(())
        self._open: dict[int, list[tuple[Any, Any, int]]] = {}
        self._readers: list[int] = []
        self._next = 0

    def __len__(self) -> int:
        return self._count

    @property
    def per_batch(self) -> int:
        return self.micro_batches * self.passes

    @property
    def read(self) -> int:
        """How many batches have been read since the start."""
        return self._next

    def skip(self, count: int) -> None:
        """An iterator that others have read further."""
        for _ in range(count):
            next(self.batches, None)

    def start(self) -> None:
        self._iterator = iter(self.batches)
        self._open.clear()
        self._readers.clear()
        self._next = 0

    def reader(self) -> Callable[[int], tuple[Any, Any, int]]:
        """A function from a micro-batch's number to (x, y, samples); the numbers must not go back."""
        index = len(self._readers)
        self._readers.append(0)

        def read(micro_batch: int) -> tuple[Any, Any, int]:
            batch, part = divmod(micro_batch, self.per_batch)
            if self._readers[index] != batch or not self._open:
                self._advance(index, batch)
            x, y, samples = self._open[batch][part // self.passes]
            if self.passes == 1:
                return x, y, samples
            # The pass before may have changed them in place.
            return part_of(x, 0, samples, torch.clone), part_of(y, 0, samples, torch.clone), samples

        return read

    def _advance(self, reader: int, batch: int) -> None:
        self._readers[reader] = batch
        while self._next <= batch:
            self._open[self._next] = self._cut(self._next)
            self._next += 1
        for old in [number for number in self._open if number < min(self._readers)]:
            del self._open[old]

    def _cut(self, number: int) -> list[tuple[Any, Any, int]]:
        try:
            batch = next(self._iterator)
        except StopIteration:
            raise ConfigError(
                f"the batches ended after {number}, though there were said to be {len(self)} (by their length, or by count=)"
            ) from None
        if not isinstance(batch, (tuple, list)) or len(batch) != 2:
            raise ConfigError(f"batch {number} is a {type(batch).__name__}; expected a pair (x, y)")
        x, y = batch
        samples = samples_of(x)
        if samples < self.micro_batches and number == 0 and len(self) > 1:
            raise ConfigError(f"a batch of {samples} samples cannot be cut into {self.micro_batches} micro-batches")
        refuse_uncut(x, "inputs", number)
        refuse_uncut(y, "targets", number)
        refuse_other_lengths(x, "inputs", number)
        refuse_other_lengths(y, "targets", number)
        if samples_of(y) not in (samples, 0):
            raise ConfigError(f"batch {number} has {samples} inputs and {samples_of(y)} targets")
        sizes = [
            samples // self.micro_batches + (part < samples % self.micro_batches) for part in range(self.micro_batches)
        ]
        parts = []
        begin = 0
        for size in sizes:
            parts.append((part_of(x, begin, size, torch.clone), part_of(y, begin, size), size))
            begin += size
        return parts


def length_of(batches: Iterable[Any]) -> int | None:
    """A DataLoader of an IterableDataset has a __len__ that says that there is none."""
    try:
        return len(batches)  # type: ignore[arg-type]
    except TypeError:
        return None


def samples_of(value: Any) -> int:
    """Of the first tensor in it; one without dimensions is everybody's, and counts where there are no others. 0 if there is none."""
    tensors = tensors_in(value)
    return next((int(tensor.shape[0]) for tensor in tensors if tensor.dim()), 1 if tensors else 0)


def refuse_other_lengths(value: Any, what: str, number: int) -> None:
    """All are cut alike, and what is longer would lose its end."""
    lengths = [int(tensor.shape[0]) for tensor in tensors_in(value) if tensor.dim()]
    if len(set(lengths)) > 1:
        raise ConfigError(
            f"the {what} of batch {number} are tensors of {', '.join(map(str, lengths))} samples; expected as many in each: they are "
            "cut along the first dimension"
        )


def refuse_uncut(value: Any, what: str, number: int) -> None:
    """What has a length and is no tensor: every micro-batch would get all of it."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            refuse_uncut(item, what, number)
        if len(value) > 1 and all(isinstance(item, (int, float, str)) for item in value):
            raise ConfigError(
                f"the {what} of batch {number} are a {type(value).__name__} of numbers or strings; expected tensors"
            )
    elif hasattr(value, "__array__") and not isinstance(value, torch.Tensor) and getattr(value, "ndim", 0) > 0:
        raise ConfigError(
            f"the {what} of batch {number} are of type {type(value).__name__}; expected tensors (torch.as_tensor)"
        )


def part_of(value: Any, begin: int, size: int, made: Callable[[torch.Tensor], torch.Tensor] = lambda part: part) -> Any:
    """Inputs are copied (`made`): a stage may change them in place, and the bits of a product may depend on where in memory its
    operands begin."""
    if isinstance(value, torch.Tensor):
        return made(value.narrow(0, begin, size)) if value.dim() else value
    if isinstance(value, dict):
        return {key: part_of(item, begin, size, made) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [part_of(item, begin, size, made) for item in value]
        return (
            type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        )  # a namedtuple takes them one by one
    return value
