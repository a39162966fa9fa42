"""Pictures of ten classes, 3 x 16 x 16: a smooth pattern, shifted, flipped, dimmed, beside a piece of another class's and noise."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ddip.study.task import Samples, Task

CLASSES, SIDE, CHANNELS = 10, 16, 12
NOISE, DISTRACTOR = 1.0, 8  # standard deviation; side of the piece of another class


def patterns() -> Tensor:
    """One for each class, the same for ever: they are the task."""
    coarse = torch.randn(CLASSES, 3, 5, 5, generator=torch.Generator().manual_seed(20))
    smooth = nn.functional.interpolate(coarse, size=(SIDE, SIDE), mode="bicubic", align_corners=True)
    return smooth / smooth.std(dim=(1, 2, 3), keepdim=True)


def pictures(count: int, generator: torch.Generator) -> Samples:
    def whole(low: int, high: int) -> Tensor:
        return torch.randint(low, high, (count,), generator=generator)

    y, other = whole(0, CLASSES), whole(0, CLASSES)
    classes = patterns()
    x = turned(classes[y], whole(-3, 4), whole(-3, 4), whole(0, 2).bool())
    x = x * (0.5 + torch.rand(count, 1, 1, 1, generator=generator))
    piece = turned(classes[other], whole(0, SIDE), whole(0, SIDE), whole(0, 2).bool())
    across, down = whole(0, SIDE - DISTRACTOR + 1), whole(0, SIDE - DISTRACTOR + 1)
    place = torch.arange(SIDE)
    inside = within(place, across)[:, None, None, :] & within(place, down)[:, None, :, None]
    x = torch.where(inside, piece, x)
    return x + NOISE * torch.randn(x.shape, generator=generator), y


def within(place: Tensor, begin: Tensor) -> Tensor:
    return (place >= begin[:, None]) & (place < begin[:, None] + DISTRACTOR)


def turned(x: Tensor, across: Tensor, down: Tensor, flip: Tensor) -> Tensor:
    """What leaves on one side comes in on the other."""
    place = torch.arange(SIDE)
    columns = (place + across[:, None]) % SIDE
    columns = torch.where(flip[:, None], SIDE - 1 - columns, columns)
    rows = (place + down[:, None]) % SIDE
    sample = torch.arange(len(x))[:, None, None]
    return x.permute(0, 2, 3, 1)[sample, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


class Block(nn.Module):
    """x + a convolution of it, normalised within each picture: no statistics over a micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(3, CHANNELS)
        self.convolution = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = x + self.convolution(nn.functional.relu(self.norm(x)))
        return result


class Head(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(3, CHANNELS)
        self.classes = nn.Linear(CHANNELS * 4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        pooled = nn.functional.adaptive_avg_pool2d(nn.functional.relu(self.norm(x)), 2)
        result: Tensor = self.classes(pooled.flatten(1))
        return result


def layers() -> list[nn.Module]:
    begin = nn.Conv2d(3, CHANNELS, 3, padding=1, stride=2)
    return [begin, *(Block() for _ in range(6)), Head()]


VISION = Task(
    name="vision",
    said="10 classes of noisy 3x16x16 pictures, a convolutional network of 8 layers",
    samples=pictures,
    layers=layers,
    micro_batch=16,
    held_out=1000,
    target=0.5,
    rates={"sgd": 0.03, "adam": 0.003, "adamw": 0.003, "nadam": 0.003},
)
