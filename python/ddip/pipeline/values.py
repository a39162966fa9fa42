"""Values between layers: anything with tensors in it."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree


def shape_of(value: Any) -> str:
    """For people: float32[8, 64], or (float32[8, 64], int)."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(shape_of(item) for item in value)})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {shape_of(item)}' for key, item in value.items())}}}"
    return type(value).__name__


def bytes_of(value: Any) -> int:
    return sum(leaf.numel() * leaf.element_size() for leaf in tensors_of(value))


def tensors_of(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def fresh(value: Any, gradient: bool = False) -> Any:
    """A copy that a layer may change in place, and that asks for a gradient as a value from another layer does."""

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        wanted = gradient and (leaf.is_floating_point() or leaf.is_complex())
        return leaf.detach().clone().requires_grad_(wanted).clone() if wanted else leaf.detach().clone()

    return pytree.tree_map(copy, value)


def linked(value: Any) -> Any:
    """A copy that gradients go back through."""
    return pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, value)


def sent(value: Any) -> Any:
    """As another stage gets it: a copy that gradients go back through. A message has no place for a tuple's class."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    if isinstance(value, (tuple, list)):
        return (tuple if isinstance(value, tuple) else list)(sent(item) for item in value)
    if isinstance(value, dict):
        return {key: sent(item) for key, item in value.items()}
    return value


def loses_its_class(value: Any) -> bool:
    """When it is sent: a named tuple would arrive as a tuple; a dictionary of another class, or anything else that is no plain value, is
    refused."""
    if isinstance(value, dict):
        return type(value) is not dict or any(loses_its_class(item) for item in value.values())
    if isinstance(value, (tuple, list)):
        return type(value) not in (tuple, list, torch.Size) or any(loses_its_class(item) for item in value)
    return not isinstance(
        value, (torch.Tensor, bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
    )
