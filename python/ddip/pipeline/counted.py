"""What a loss or a metric gives: one number, the mean over the samples, or (sum, count)."""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch


def is_one_number(found: Any) -> bool:
    return isinstance(found, torch.Tensor) and found.numel() == 1


def is_count(found: Any) -> bool:
    return (isinstance(found, Real) or is_one_number(found)) and 0 <= found < float("inf")


def in_words(found: Any) -> str:
    if isinstance(found, tuple):
        return f"({', '.join(map(in_words, found))})"
    if isinstance(found, Real):
        return str(found)
    return f"a tensor {list(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
