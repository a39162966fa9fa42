"""A U-Net in plain PyTorch whose blocks are cut as mirrors: encoder block k and decoder block k on one device.

ddip partition examples/unet_pipeline.py:make --stages 2 --mirrored --whole Block --whole Up --out plan.json --svg cut.svg
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Block(nn.Sequential):
    """Two convolutions."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__(
            nn.Conv2d(inside, outside, 3, padding=1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
            nn.Conv2d(outside, outside, 3, padding=1, bias=False),
            nn.BatchNorm2d(outside),
            nn.ReLU(),
        )


class Up(nn.Module):
    """What comes from below, twice as large, beside what the encoder kept."""

    def __init__(self, outside: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(2 * outside, outside, 2, 2)
        self.block = Block(2 * outside, outside)

    def forward(self, below: torch.Tensor, skip: torch.Tensor) -> torch.Tensor:
        return self.block(torch.cat([skip, self.up(below)], 1))  # type: ignore[no-any-return]


class UNet(nn.Module):
    def __init__(self, channels: int = 1, classes: int = 3, width: int = 8, depth: int = 3) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.encoder = nn.ModuleList([Block(a, b) for a, b in zip([channels, *widths], widths[:-1], strict=False)])
        self.bottom = Block(widths[-2], widths[-1])
        self.decoder = nn.ModuleList([Up(size) for size in widths[:-1]])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        value, skips = images, []
        for block in self.encoder:
            skips.append(block(value))
            value = functional.max_pool2d(skips[-1], 2)
        value = self.bottom(value)
        for level in reversed(range(len(skips))):
            value = self.decoder[level](value, skips[level])
        return self.head(value)  # type: ignore[no-any-return]


def make() -> tuple[UNet, torch.Tensor]:
    torch.manual_seed(0)
    return UNet(), torch.randn(2, 1, 32, 32)
