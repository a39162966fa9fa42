"""A training step of the U-Net: in C++, the same network in PyTorch eager, and (GPU) under torch.compile; in turn.

python benchmarks/unet.py [--device cuda] [--batch B] [--size S] [--width W] [--precision bf16] [--repeats N]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from torch import nn

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from ddip._engine import UNetOptions, UNetStepper

from tests.support.plain_unet import PlainUNet


def plain_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The loss of ddip unet, as one would write it in PyTorch."""
    likely = logits.float().log_softmax(1)
    weights = torch.ones(3, device=logits.device)
    weights[0] = 0.02
    truth = labels.long()
    entropy = nn.functional.nll_loss(likely, truth, weights)
    there = nn.functional.one_hot(truth, 3).permute(0, 3, 1, 2)[:, 1:].float()
    said = likely[:, 1:].exp()
    both, either = (said * there).sum((0, 2, 3)), said.sum((0, 2, 3)) + there.sum((0, 2, 3))
    return entropy + (1 - ((2 * both + 1) / (either + 1)).mean())


def eager(options: Any, compiled: bool) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    model = PlainUNet(1, 3, options.width, options.depth).to(options.device, memory_format=torch.channels_last)
    adam = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
    forward: Any = torch.compile(model) if compiled else model

    def step(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        adam.zero_grad()
        with torch.autocast(options.device, torch.bfloat16, enabled=options.precision == "bf16"):
            loss = plain_loss(forward(images), labels)
        loss.backward()
        adam.step()
        return loss

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--precision", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--compile", action="store_true", help="torch.compile beside them")
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True  # the same setting for both: it is the process's
    images = torch.rand(options.batch, 1, options.size, options.size, device=options.device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 3, (options.batch, options.size, options.size), device=options.device, dtype=torch.uint8)
    stepper = UNetStepper(
        UNetOptions(1, 3, options.width, options.depth), options.precision, torch.device(options.device)
    )
    sides: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "ddip, C++": lambda x, y: stepper.step(x, y, 1e-3),
        "PyTorch eager": eager(options, False),
    }
    if options.compile:
        sides["torch.compile"] = eager(options, True)
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(options.repeats + 3):
        for name, step in sides.items():
            begun = time.perf_counter()
            step(images, labels).item()
            if turn >= 3:
                seconds[name].append(time.perf_counter() - begun)
    print(
        f"U-Net width {options.width} depth {options.depth}, batch {options.batch} of {options.size}×{options.size}, "
        f"{options.precision} channels-last, Adam, on {options.device}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    ours = median(seconds["ddip, C++"])
    for name, found in seconds.items():
        speed = options.batch / median(found)
        print(
            f"{name:<14} {speed:8.1f} samples/s   {median(found) * 1e3:8.1f} ms   ddip is {median(found) / ours:.3f}×"
        )


if __name__ == "__main__":
    main()
