"""The U-Net of `ddip unet` as an ordinary torch module: computed in C++, on Parameters that optimizers, DDP and
`state_dict` treat like any others."""

from __future__ import annotations

import os

import torch
from torch import nn

from ddip._engine import (
    Scores,
    UNetOptions,
    unet_forward,
    unet_loss,
    unet_of_run,
    unet_prepared,
    unet_tensors,
)

__all__ = ["Scores", "UNet", "prepared", "segmentation_loss"]


def segmentation_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy, in which background counts little, plus one minus the Dice overlap of the other classes."""
    return unet_loss(logits, labels)


def prepared(images: torch.Tensor, device: torch.device | str = "cpu") -> torch.Tensor:
    """Energies as the network likes them, on the device where it computes."""
    return unet_prepared(images, torch.device(device))


class UNet(nn.Module):
    """`forward` gives logits (N, classes, H, W) of images (N, channels, H, W) of any size.

    Names and shapes are those of a U-Net written in PyTorch (`down.0.conv1.weight`, …), with `depth` levels of twice the
    channels each, from `width` on. The C++ code works on these Parameters' own memory.
    """

    def __init__(
        self, channels: int = 1, classes: int = 3, width: int = 64, depth: int = 4, *, seed: int | None = None
    ) -> None:
        super().__init__()
        self.size = (channels, classes, width, depth)
        first = int(torch.randint(2**62, ())) if seed is None else seed  # else as torch.manual_seed says
        parameters, buffers = unet_tensors(UNetOptions(*self.size), first)
        for name, tensor in parameters:
            path, leaf = self._place(name)
            path.register_parameter(leaf, nn.Parameter(tensor))
        for name, tensor in buffers:
            path, leaf = self._place(name)
            path.register_buffer(leaf, tensor)

    def _place(self, name: str) -> tuple[nn.Module, str]:
        """The module at a dotted path, made where it is missing, and the name of a tensor in it."""
        *path, leaf = name.split(".")
        at: nn.Module = self
        for part in path:
            if part not in at._modules:
                at.add_module(part, nn.Module())
            at = at.get_submodule(part)
        return at, leaf

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return unet_forward(
            UNetOptions(*self.size), images, list(self.parameters()), list(self.buffers()), self.training
        )

    @classmethod
    def from_run(cls, run: str | os.PathLike[str]) -> UNet:
        """The best checkpoint of a folder that `ddip unet train` wrote."""
        options, tensors = unet_of_run(os.fspath(run))
        model = cls(options.channels, options.classes, options.width, options.depth, seed=0)
        model.load_state_dict(dict(tensors))
        return model
