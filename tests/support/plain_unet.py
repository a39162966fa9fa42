"""A U-Net as anybody would write it in PyTorch: the reference for ours."""

from __future__ import annotations

import torch
from torch import nn


class Level(nn.Module):
    def __init__(self, before: int, after: int, up: bool = False) -> None:
        super().__init__()
        if up:
            self.up = nn.ConvTranspose2d(before, after, 2, stride=2)
        self.conv1 = nn.Conv2d(before, after, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(x)))


class PlainUNet(nn.Module):
    def __init__(self, channels: int = 1, classes: int = 3, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        sizes = [width << level for level in range(depth + 1)]
        self.down = nn.ModuleList(Level(a, b) for a, b in zip([channels, *sizes], sizes[:-1], strict=False))
        self.bridge = Level(sizes[-2], sizes[-1])
        self.up = nn.ModuleList(Level(a, b, up=True) for a, b in zip(sizes[:0:-1], sizes[-2::-1], strict=True))
        self.head = nn.Conv2d(width, classes, 1)
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mirrors = []
        for level in self.down:
            x = level(x)
            mirrors.append(x)
            x = self.pool(x)
        x = self.bridge(x)
        for level in self.up:
            x = level(torch.cat([mirrors.pop(), level.up(x)], 1))
        return self.head(x)
