"""Batch norm over the batches of all ranks, on CPU and GPU (torch's own refuses CPU tensors)."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

from ddip import communicators

# Which ranks have a copy of a layer, where a wrapper has said it. Not in the layer: that would not be pickled or copied.
_ranks_of: weakref.WeakKeyDictionary[nn.Module, Callable[[], Any]] = weakref.WeakKeyDictionary()

PURPOSE = "batch norm"


class SyncBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Statistics are those of all ranks' batches together: training equals training in one process on the joint batch.
    `SyncBatchNorm.convert(model)` puts it in place of every BatchNorm. Inside a DataParallel with `ranks=`, "all ranks" are
    those: convert first, then wrap."""

    def forward(self, input: torch.Tensor) -> Any:
        if input.dim() < 2:
            raise ValueError(f"SyncBatchNorm expects (batch, channels, …), not {input.dim()} dimensions")
        if not self.training:
            # Each rank by itself: an evaluation may be one rank's own business.
            own = self.running_mean is None
            return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, own, 0.0, self.eps)
        # A communicator of its own: these calls come in the middle of a backward, while gradients travel on the other.
        normed, mean, variance, count = Normalize.apply(input, self.eps, communicator_of(self))
        if self.running_mean is not None and self.running_var is not None and self.num_batches_tracked is not None:
            with torch.no_grad():
                self.num_batches_tracked.add_(1)
                factor = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), factor)
                unbiased = variance * (count / (count - 1).clamp(min=1))
                self.running_var.lerp_(unbiased.to(self.running_var.dtype), factor)
        if self.weight is None:
            return normed
        shape = [1, -1] + [1] * (input.dim() - 2)
        return (normed * self.weight.view(shape) + self.bias.view(shape)).to(input.dtype)

    @classmethod
    def convert(cls, module: nn.Module) -> nn.Module:
        """The module with every BatchNorm replaced; weights and statistics are the same tensors."""
        return cls._converted(module, {})

    @classmethod
    def _converted(cls, module: nn.Module, known: dict[nn.Module, nn.Module]) -> nn.Module:
        """`known`: what was met before. A layer that is in several places stays one."""
        if module in known:
            return known[module]
        known[module] = module
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not isinstance(module, cls):
            made = cls(module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats)
            for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
                setattr(made, name, getattr(module, name))
            made.train(module.training)
            known[module] = made
            return made
        for name, child in module._modules.items():
            if child is not None:
                setattr(module, name, cls._converted(child, known))
        return module


def share_with(module: nn.Module, ranks: Callable[[], Any] | None) -> None:
    """The batch norms in it are those of these ranks from now on; of the whole group, if None. All of them call it."""
    layers = [layer for layer in module.modules() if isinstance(layer, SyncBatchNorm)]
    for layer in layers:
        _ranks_of.pop(layer, None)
        if ranks is not None:
            _ranks_of[layer] = ranks
    if layers and ranks is not None:
        communicator_of(layers[0])  # made here, where all ranks are at the same place


def communicator_of(layer: SyncBatchNorm) -> Any:
    """Asked for every time: after a rebuild it is another one."""
    ranks = _ranks_of.get(layer)
    return communicators.private(PURPOSE) if ranks is None else communicators.beside(ranks(), PURPOSE)


class Normalize(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor, eps: float, ranks: Any) -> Any:
        flat = x.transpose(0, 1).reshape(x.size(1), -1)
        wide = flat.float() if x.dtype in (torch.float16, torch.bfloat16) else flat
        channels = x.size(1)
        # Two rounds: a variance as the difference of two large sums would lose its digits.
        sums = torch.cat([wide.sum(1), wide.new_full((1,), wide.size(1))])
        ranks.all_reduce(sums)
        count, mean = sums[channels], sums[:channels] / sums[channels]
        centred = wide - mean[:, None]
        squares = centred.square().sum(1)
        ranks.all_reduce(squares)
        variance = squares / count
        scale = (variance + eps).rsqrt()
        normed = centred * scale[:, None]
        context.save_for_backward(normed, scale, count)
        context.ranks = ranks
        context.mark_non_differentiable(mean, variance, count)
        return unflatten(normed, x).to(x.dtype), mean, variance, count

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: torch.Tensor, *_: Any) -> Any:
        normed, scale, count = context.saved_tensors
        wide = gradient.transpose(0, 1).reshape(gradient.size(1), -1).to(normed.dtype)
        sums = torch.cat([wide.sum(1), (wide * normed).sum(1)])
        context.ranks.all_reduce(sums)
        mean, along = sums[: len(scale)] / count, sums[len(scale) :] / count
        result = (wide - mean[:, None] - normed * along[:, None]) * scale[:, None]
        return unflatten(result, gradient).to(gradient.dtype), None, None


def unflatten(flat: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    return flat.reshape(like.size(1), like.size(0), *like.shape[2:]).transpose(0, 1)
