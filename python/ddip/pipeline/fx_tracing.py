"""torch.fx follows a model's forward with stand-ins for its values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx, nn

from ddip.pipeline.traced import Traced, traced_of


def symbolic(model: nn.Module, leaves: tuple[type[nn.Module], ...]) -> Traced:
    module = fx.GraphModule(model, _Tracer(leaves).trace(model))
    module.graph.eliminate_dead_code()
    return traced_of(model, module, "fx")


class _Tracer(fx.Tracer):
    def __init__(self, leaves: tuple[type[nn.Module], ...]) -> None:
        super().__init__()
        self.leaves = leaves

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, self.leaves) or super().is_leaf_module(m, module_qualified_name)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """One that looks at its values cannot be followed: then it is one layer, and its operations so far are undone."""
        before = set(self.graph.nodes)
        try:
            return super().call_module(m, forward, args, kwargs)
        except Exception:
            for node in reversed(list(self.graph.nodes)):
                if node not in before:
                    self.graph.erase_node(node)
            return self.create_proxy("call_module", self.path_of_module(m), args, kwargs)
