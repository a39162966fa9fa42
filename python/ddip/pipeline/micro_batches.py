"""Batches cut into micro-batches, as a ledger counts them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from ddip.pipeline.borders import tensors_in

Batches = Iterable[tuple[Any, Any]]


def micro_batches_of(batches: Batches, split: int) -> list[tuple[Any, Any]]:
    """Each batch in `split` parts along its first dimension. One with fewer samples gives empty parts, which keep their numbers:
    a micro-batch's number says in which batch it is."""
    parts = []
    for x, y in batches:
        parts += list(zip(_split(x, split), _split(y, split), strict=True))
    return parts


def _split(tree: Any, count: int) -> list[Any]:
    if isinstance(tree, Tensor) and tree.dim():
        return list(torch.tensor_split(tree, count))
    if isinstance(tree, (tuple, list)) and tree:
        several = zip(*(_split(part, count) for part in tree), strict=True)
        return [type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts) for parts in several]
    if isinstance(tree, dict) and tree:
        values = zip(*(_split(part, count) for part in tree.values()), strict=True)
        return [dict(zip(tree, parts, strict=True)) for parts in values]
    return [tree] * count


def samples_in(x: Any) -> int:
    return next((int(tensor.shape[0]) for tensor in tensors_in(x) if tensor.dim()), 0)
