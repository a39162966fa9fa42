"""Losses of stages that are not the last: a user's module hands them over in its forward, whoever called it takes them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, fx

from ddip.errors import ConfigError

_losses: list[Tensor] = []
_collecting = 0  # how many callers want them; nobody's would be kept for ever, each with its graph


def auxiliary_loss(loss: Tensor) -> None:
    """Called in a stage's forward: this loss, a mean over the samples, is added to the one at the end of the pipeline. Outside of a
    pipeline it is nobody's."""
    if isinstance(loss, fx.Proxy) or _is_exporting():
        # A graph has no place for it. A module inside the model is then left whole.
        raise ConfigError("auxiliary_loss() is in the model's own forward; expected it in that of a module inside it")
    if _collecting:
        _losses.append(loss)


@contextlib.contextmanager
def collected() -> Iterator[None]:
    """Around a call of a stage: `taken()` has its losses then, and none of a call that failed."""
    global _collecting
    _losses.clear()
    _collecting += 1
    try:
        yield
    finally:
        _collecting -= 1


def _is_exporting() -> bool:
    asked = getattr(torch.compiler, "is_exporting", None)  # since torch 2.7
    return asked is not None and bool(asked())


def taken() -> list[Tensor]:
    """Those since the last call."""
    found = list(_losses)
    _losses.clear()
    return found
