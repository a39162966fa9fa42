"""What a stage holds in memory, in bytes: weights, gradients, the optimizer's state, and what waits between a forward and
its backward."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ddip.pipeline.borders import tensors_in

if TYPE_CHECKING:
    from ddip.pipeline.front import Pipeline


@dataclass
class Memory:
    """Of one stage; what comes and goes: the most that it was in the run."""

    weights: int = 0  # the true ones, and the prediction where no backward needs it
    gradients: int = 0
    optimizer: int = 0
    copies: int = 0  # older versions and predictions that a later forward or backward needs
    activations: int = 0  # the first micro-batch's, times those in flight; a stage that is compiled is not looked into
    in_flight: int = 0  # micro-batches between their forward and their backward

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer + self.copies + self.activations


NOT_COUNTED = nullcontext()


class Activations:
    """What one forward of a stage, and its loss, keep for the backward. Looked at once in each run: looking takes time."""

    def __init__(self, module: torch.nn.Module, recomputes: bool) -> None:
        self._module, self._recomputes = module, recomputes
        # Hooks on saved tensors would be compiled in, and out again.
        self._opaque = any(type(part).__name__ == "OptimizedModule" for part in module.modules())
        self._wanted: set[str] = set()
        self._kept: list[tuple[int, int]] = []  # from address to address

    def begin(self) -> None:
        self._kept = []
        self._wanted = set() if self._opaque else {"forward", "loss"}

    @property
    def bytes(self) -> int:
        return covered(self._kept)

    def counted(self, what: str, inputs: list[Any]) -> AbstractContextManager[None]:
        return self._count(what, inputs) if what in self._wanted else NOT_COUNTED

    @contextmanager
    def _count(self, what: str, inputs: list[Any]) -> Iterator[None]:
        self._wanted.discard(what)
        if self._recomputes:
            self._kept += [extent(tensor) for tensor in tensors_in(inputs) if is_plain(tensor)]
            yield
            return
        own = {tensor.untyped_storage().data_ptr() for tensor in (*self._module.parameters(), *self._module.buffers())}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if is_plain(tensor) and tensor.untyped_storage().data_ptr() not in own:
                self._kept.append(extent(tensor))
            return tensor.detach()  # the tensor itself would hold the graph that holds it

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield


def is_plain(tensor: torch.Tensor) -> bool:
    """It has memory of its own, and no other tensors inside."""
    return type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout == torch.strided


def covered(extents: list[tuple[int, int]]) -> int:
    """Bytes; those that several share are counted once."""
    total = end = 0
    for first, last in sorted(extents):
        total += max(0, last - max(first, end))
        end = max(end, last)
    return total


def extent(tensor: torch.Tensor) -> tuple[int, int]:
    if not tensor.numel():
        return 0, 0
    elements = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + elements * tensor.element_size()


def memory_of(pipe: Pipeline, stage: int, actions: list[Any]) -> tuple[Memory, int]:
    """Of a run that has ended: the bytes, and the number of copies that are in them."""
    flying = in_flight(actions, stage)
    found = Memory(activations=pipe.activations(stage).bytes * flying, in_flight=flying)
    if stage not in pipe.steppings:
        return found, 0
    stepping, versions = pipe.steppings[stage], pipe.versions[stage]
    flat = stepping.weights.truth.nbytes
    found.weights, found.gradients = flat * (2 if versions.predicts else 1), flat
    found.optimizer = sum(
        tensor.nbytes
        for state in (stepping.optimizer.state.values() if stepping.optimizer else ())
        for tensor in tensors_in(state)
    )
    steps = sum(done.action.kind == "step" and done.action.stage == stage for done in actions)
    stashes = pipe.policies[stage].needs(stepping.state()).stash or pipe.smoothing.radius > 0
    kept = copies(actions, stage, versions.version - steps, stashes)
    found.copies = kept * flat
    return found, kept


def in_flight(actions: list[Any], stage: int) -> int:
    """The most micro-batches at a time whose graphs are kept. One with a split backward waits for its second half; without
    backwards there are none."""
    mine = [done.action for done in actions if done.action.stage == stage]
    if not any(action.kind == "backward" for action in mine):
        return 0
    split = {action.micro_batch for action in mine if action.kind == "weight_gradient"}
    now = most = 0
    for action in mine:
        if action.kind == "forward":
            now += 1
            most = max(most, now)
        elif action.kind == "weight_gradient" or (action.kind == "backward" and action.micro_batch not in split):
            now -= 1
    return most


def copies(actions: list[Any], stage: int, first: int, stashes: bool) -> int:
    """The most copies of weights at a time, beside the newest: from the record of what was read, not from what is there
    when the run is over. `first`: the version at its beginning; `stashes`: a backward reads what its forward has read."""
    version = first
    ended: dict[int, int] = {}  # version -> place of the step that made it old
    forwards: dict[int, tuple[int, Any, bool]] = {}  # micro-batch -> place, what was used, whether it was old already
    needed: dict[int, int] = {}  # version -> place of its last use
    predicted: dict[int, tuple[int, int]] = {}  # label -> places of its first use and its last
    for place, done in enumerate(actions):
        if done.action.stage != stage:
            continue
        if done.action.kind == "step":
            ended[version] = place
            version += 1
        elif done.action.kind == "forward" and done.count:
            forwards[done.action.micro_batch] = place, done.used, done.used.version < version
        elif done.action.kind == "backward" and done.action.micro_batch in forwards:
            begun, used, old = forwards.pop(done.action.micro_batch)
            if used.predicted and stashes:
                predicted[used.label] = min(begun, predicted.get(used.label, (begun, 0))[0]), place
            elif old or (stashes and not used.predicted):
                needed[used.version] = place
    spans = list(predicted.values())
    spans += [(ended[one], last) for one, last in needed.items() if one in ended and ended[one] < last]
    edges = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    now = most = 0
    for _, change in edges:
        now += change
        most = max(most, now)
    return most


def readable(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
