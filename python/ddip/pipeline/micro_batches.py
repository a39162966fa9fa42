"""Batches cut into micro-batches, as a ledger counts them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ddip.pipeline.borders import tensors_in

Batches = Iterable[tuple[Any, Any]]


def micro_batches_of(batches: Batches, split: int) -> list[tuple[Any, Any]]:
    """Each batch in `split` parts along its first dimension, or one per sample if it has fewer."""
    parts = []
    for x, y in batches:
        count = min(split, samples_in(x))
        parts += list(zip(_split(x, count), _split(y, count), strict=True))
    return parts


def _split(tree: Any, count: int) -> list[Any]:
    if isinstance(tree, Tensor):
        return list(torch.tensor_split(tree, count))
    if isinstance(tree, (tuple, list)):
        return [type(tree)(parts) for parts in zip(*(_split(part, count) for part in tree), strict=True)]
    return [tree] * count


def samples_in(x: Any) -> int:
    return int(tensors_in(x)[0].shape[0])
