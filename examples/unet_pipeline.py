"""A U-Net in plain PyTorch whose blocks are cut as mirrors: encoder block k and decoder block k on one device, so that no skip
connection crosses a link. Trained as a pipeline that never waits, on pictures of discs and rectangles:

ddip run -n 2 -- python examples/unet_pipeline.py

Only the cut, with a picture of it:

ddip partition examples/unet_pipeline.py:make --stages 2 --mirrored --whole Block --whole Up --out plan.json --svg cut.svg
"""

from __future__ import annotations

from typing import Any

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


def pictures(count: int, seed: int, size: int = 32) -> tuple[torch.Tensor, torch.Tensor]:
    """Noise with a disc (1) and a rectangle (2) of the same brightness in each: only their forms tell them apart."""
    generator = torch.Generator().manual_seed(seed)
    rows, columns = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    labels = torch.zeros(count, size, size, dtype=torch.long)
    for label in labels:
        (x, y, u, v), (r, w, h) = torch.randint(7, size - 7, (4,), generator=generator), torch.randint(3, 7, (3,), generator=generator)
        label[(rows - x) ** 2 + (columns - y) ** 2 <= r * r] = 1
        label[((rows - u).abs() <= w) & ((columns - v).abs() <= h)] = 2
    images = (labels > 0).float() + 0.1 * torch.randn(count, size, size, generator=generator)
    return images[:, None], labels


def train() -> None:
    import ddip

    torch.set_num_threads(1)
    model, example = make()
    pipe = ddip.Pipeline(
        model, example=example, partition="mirrored", leaves=[Block, Up],  # a block stays whole
        schedule="async_1f1b", window="depth", micro_batches=4, loss=functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, 0.02, momentum=0.9),
    )
    images, labels = pictures(512, seed=1)
    batches = [(images[i : i + 16], labels[i : i + 16]) for i in range(0, len(images), 16)]
    report = pipe.run(batches * 4)

    held_images, held_labels = pictures(64, seed=2)
    held = pipe.evaluate([(held_images, held_labels)])
    weights = pipe.state_dict()  # the whole model's, on every rank
    if ddip.rank() != 0:
        return
    print(cut_of(pipe))
    print(report)
    whole, _ = make()
    whole.load_state_dict(weights)
    with torch.no_grad():
        output = whole.eval()(held_images)
    print(f"policy {pipe.policy_name}: loss {report.losses[0]:.3f} -> {report.losses[-1]:.3f}")
    print(f"held out: {held.losses[0]:.6f} in the pipeline, {functional.cross_entropy(output, held_labels):.6f} in one piece")
    drawn = held_labels > 0
    print(f"right, of the pixels that are not background: {(output.argmax(1) == held_labels)[drawn].float().mean():.3f}")


def cut_of(pipe: Any) -> str:
    """Which blocks lie where, and what goes from stage to stage."""
    lines = [f"stage {stage} on rank {pipe.placement[stage]}: {', '.join(names)}" for stage, names in enumerate(pipe.cut.plan.stages)]
    ends = {True: [], False: []}
    for source, target in pipe.edges:
        ends[pipe.placement[source] == pipe.placement[target]].append(f"{source} to {target}")
    return "\n".join([*lines, f"between ranks: {', '.join(ends[False])}; within a rank: {', '.join(ends[True])}"])


if __name__ == "__main__":
    train()
