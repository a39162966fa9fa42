"""Losses of stages that are not the last: a user's module hands them over in its forward, whoever called it takes them."""

from __future__ import annotations

from torch import Tensor

_losses: list[Tensor] = []


def auxiliary_loss(loss: Tensor) -> None:
    """Called in a stage's forward: this loss, a mean over the samples, is added to the one at the end of the pipeline."""
    _losses.append(loss)


def taken() -> list[Tensor]:
    """Those since the last call."""
    found = list(_losses)
    _losses.clear()
    return found
