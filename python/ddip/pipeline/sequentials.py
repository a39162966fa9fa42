"""Which nn.Sequential is no more than its modules, one after the other."""

from __future__ import annotations

from typing import Any, TypeGuard

from torch import nn

from ddip.errors import ConfigError

# What a module calls around its forward and backward: whoever runs its parts by themselves would lose it.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def is_plain_sequential(module: Any) -> TypeGuard[nn.Sequential]:
    """A subclass with its own forward is not, nor is one with hooks: what they add would be lost with a cut."""
    return (
        isinstance(module, nn.Sequential)
        and type(module).forward is nn.Sequential.forward
        and "forward" not in vars(module)
        and not has_hooks(module)
    )


def has_hooks(module: nn.Module) -> bool:
    return any(getattr(module, hooks, None) for hooks in _HOOKS)


def refuse_hooks(model: nn.Module) -> None:
    """Those of modules inside are called; the whole model's own never would be."""
    if has_hooks(model):
        raise ConfigError(
            f"{type(model).__name__} has hooks of its own, which no stage would call; expected them on modules inside it"
        )


def steps_of(module: nn.Sequential) -> list[tuple[str, nn.Module]]:
    """In the order of its forward. A module that is in it twice is used twice: named_children() would give it once."""
    return [(name, child) for name, child in module._modules.items() if child is not None]
