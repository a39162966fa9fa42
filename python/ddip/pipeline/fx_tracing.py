"""torch.fx follows a model's forward with stand-ins for its values.

It sees operations on values, and nothing else: not whether gradients were off, not what Python did beside. A module that
does such things is not followed, but is one layer; a model that does them itself cannot be traced by fx.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

from ddip.pipeline.random_state import RandomState
from ddip.pipeline.sequentials import has_hooks
from ddip.pipeline.signature import Given
from ddip.pipeline.traced import COMPUTES, Traced, traced_of
from ddip.pipeline.untouched import Attributes, untouched


class CannotFollow(Exception):
    """What fx would leave out without a word."""


class KeepsState(CannotFollow):
    """Nobody could: it is in no graph."""


def symbolic(model: nn.Module, leaves: tuple[type[nn.Module], ...], given: Given) -> Traced:
    if "forward" in vars(model):
        raise CannotFollow("its forward is not its class's")
    with untouched(model, runs=False):
        before, tracer = _Before(model), _Tracer(leaves, given)
        module = fx.GraphModule(model, tracer.trace(model))
        before.refuse_changes()
    module.graph.eliminate_dead_code(is_impure_node=_has_effects)
    _read_fields_at_once(module.graph)
    traced = traced_of(model, module, "fx")
    traced.guard = given.guard(model)
    return traced


def _has_effects(node: fx.Node) -> bool:
    """It may do something even if nobody needs its result: a batch norm counts, an operation in place changes."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    # Python's own: `x += y` and `x[0] = y`.
    in_place |= getattr(node.target, "__module__", "") == "_operator" and name.startswith(("i", "setitem"))
    in_place |= bool(node.kwargs.get("inplace") or "out" in node.kwargs)
    return in_place or node.op == "call_module" or bool(node.is_impure())


def _read_fields_at_once(graph: fx.Graph) -> None:
    """A message has no place for a named tuple's class: its fields are read where it was made, and go from there one by one."""
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target is not getattr or node.args[0].op not in COMPUTES:
            continue
        of_tensors = getattr(torch.Tensor, node.args[1], None)
        if of_tensors is None or callable(of_tensors):  # a method that is not called is a field of that name
            node.args[0].append(node)


class _Before:
    """What a module's Python could change while it is followed; the stand-ins record nothing of it."""

    def __init__(self, module: nn.Module) -> None:
        self.numbers, self.attributes = RandomState(), [Attributes(part) for part in module.modules()]

    def refuse_changes(self) -> None:
        if not self.numbers.is_still():
            raise CannotFollow("it draws random numbers that depend on no input")
        proxied = ""
        for name, before, now in (change for attributes in self.attributes for change in attributes.changes()):
            kept = pytree.tree_leaves(now)
            if any(isinstance(leaf, fx.Proxy) for leaf in kept):
                proxied = name
            elif before is not None or not kept or not all(isinstance(leaf, torch.Tensor) for leaf in kept):
                raise KeepsState(
                    f"its forward changes self.{name}; expected it in a buffer, in a module inside it, or a list of stages"
                )  # else it is a constant that is made once
        if proxied:
            # It may be there to be looked at only; export gives it up, and a second forward shows whether it was needed.
            raise CannotFollow(f"its forward changes self.{proxied}")

    def restore(self) -> None:
        self.numbers.restore()
        for attributes in self.attributes:
            attributes.restore()


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True  # a buffer may be another one in the next step

    def __init__(self, leaves: tuple[type[nn.Module], ...], given: Given) -> None:
        super().__init__()
        self.leaves, self.given, self.modes = leaves, given, _modes()
        self.fetched: dict[str, Any] = {}  # parameters and buffers, by name

    def _proxy_placeholder(self, name: str, *rest: Any) -> Any:
        """What stands for an argument: itself, where the example says what it is."""
        if name in self.given.omitted:
            return _in_one_piece(self.given.omitted[name])
        if name.startswith("*") and self.given.others is not None:
            if name.startswith("**"):
                return _Dict()
            places = range(self.given.others)
            return _Tuple(self.create_proxy("placeholder", f"{name[1:]}_{place}", (), {}) for place in places)
        stand_in = super()._proxy_placeholder(name, *rest)
        return None if name in self.given.nothing else stand_in

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        whole = isinstance(m, self.leaves) or has_hooks(m) or _asks_its_mode(m)
        return whole or super().is_leaf_module(m, module_qualified_name)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if _modes() != self.modes:
            raise CannotFollow("it turns gradients or autocast off or on")
        return super().create_node(*args, **kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        self.fetched = parameter_proxy_cache
        return super().getattr(attr, attr_val, parameter_proxy_cache)

    def call_module(
        self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """One that cannot be followed is one layer, and its operations so far are undone."""
        path = self.path_of_module(m)
        if self.is_leaf_module(m, path):
            return super().call_module(m, forward, args, kwargs)
        nodes, stack, before = set(self.graph.nodes), list(self.module_stack.items()), _Before(m)
        try:
            result = super().call_module(m, forward, args, kwargs)
            before.refuse_changes()
            return result
        except Exception:
            before.restore()
            self.module_stack.clear()
            self.module_stack.update(stack)
            for node in reversed(list(self.graph.nodes)):
                if node not in nodes:
                    self.graph.erase_node(node)
            for name in [name for name, proxy in self.fetched.items() if proxy.node not in nodes]:
                del self.fetched[name]
            return self.create_proxy("call_module", path, args, kwargs)


class _Tuple(tuple[Any, ...]):
    """fx would make an argument of every item; it does so of Python's own tuples, lists and dictionaries only."""


class _List(list[Any]):
    pass


class _Dict(dict[Any, Any]):
    pass


def _in_one_piece(value: Any) -> Any:
    wraps: dict[type, Callable[[Any], Any]] = {tuple: _Tuple, list: _List, dict: _Dict}
    return wraps[type(value)](value) if type(value) in wraps else value


def _asks_its_mode(module: nn.Module) -> bool:
    """Its forward reads self.training: followed, it would be fixed to the mode that it is in now."""
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    return code is not None and "training" in code.co_names


def _modes() -> tuple[Any, ...]:
    devices = ("cpu", "cuda")
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        *[torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) for device in devices],
    )
