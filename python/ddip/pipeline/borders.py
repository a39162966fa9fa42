"""What crosses from stage to stage: a tensor, or tensors in tuples, lists and dicts, with None and numbers among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def tensors_in(tree: Any) -> list[Tensor]:
    """In the order in which `with_tensors` meets them."""
    found: list[Tensor] = []
    with_tensors(tree, lambda tensor: found.append(tensor) or tensor)  # type: ignore[func-returns-value]
    return found


def with_tensors(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same tree with each tensor changed."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(with_tensors(part, change) for part in tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)(with_tensors(part, change) for part in tree)
    if isinstance(tree, dict):
        return {key: with_tensors(part, change) for key, part in tree.items()}
    return tree
