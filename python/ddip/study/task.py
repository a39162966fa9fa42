"""What is learned in a study: data made from a seed, a model in stages, and when it counts as learned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Samples = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Task:
    name: str
    said: str  # in a line
    samples: Callable[[int, torch.Generator], Samples]  # how many; x and y
    layers: Callable[[], list[nn.Module]]  # one behind the other, freshly initialised
    micro_batch: int  # samples
    held_out: int
    target: float  # accuracy that counts as learned
    rates: dict[str, float]  # usual one of each optimizer: a sweep is around it


def loss_of(output: Tensor, target: Tensor) -> Tensor:
    """Mean over whatever is classified: images, or places in a text."""
    return nn.functional.cross_entropy(output.reshape(-1, output.shape[-1]), target.reshape(-1))


def accuracy_of(output: Tensor, target: Tensor) -> float:
    return (output.argmax(-1) == target).float().mean().item()


def stages_of(task: Task, count: int, seed: int) -> list[nn.Module]:
    """The same model for the same seed, however many stages it is cut into."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = task.layers()
    borders = [len(layers) * stage // count for stage in range(count + 1)]
    return [nn.Sequential(*layers[begin:end]) for begin, end in zip(borders, borders[1:], strict=False)]


def drawn(task: Task, count: int, seed: int) -> Samples:
    return task.samples(count, torch.Generator().manual_seed(seed))
