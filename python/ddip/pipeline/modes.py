"""Which layers train and which evaluate, as their owner has set them: a batch norm may be left in evaluation while the rest trains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def evaluating(modules: list[torch.nn.Module]) -> Iterator[None]:
    """Afterwards each layer is what it was."""
    before = [(layer, layer.training) for module in modules for layer in module.modules()]
    for module in modules:
        module.eval()
    try:
        yield
    finally:
        for layer, training in before:
            layer.training = training


def make_train(modules: list[torch.nn.Module]) -> None:
    """Modules whose layers all evaluate have been left so by somebody's evaluation, and train now."""
    # Those within: what holds them may be ours, made of somebody's layers.
    layers = [layer for module in modules for layer in module.modules() if not next(layer.children(), None)]
    if not any(layer.training for layer in layers):
        for module in modules:
            module.train()
