"""How tensors and the notebook's own functions are pickled; all else is cloudpickle's.

Tensors keep their memory out of the pickle, and share it where they arrive if they did before. Functions of `__main__` see
the variables of the process that they arrive in.
"""

from __future__ import annotations

import pickle
import sys
import types
from collections.abc import Iterator
from typing import Any

import cloudpickle

# Where memory may begin, in a storage and in the file that carries it: good for every type of element.
ALIGNMENT = 64

FUNCTION_ATTRIBUTES = ("__defaults__", "__kwdefaults__", "__qualname__", "__doc__", "__annotations__")


class Unpacking:
    """Where cuda tensors of the object being unpacked go, and which namespace its functions see."""

    device: str | None = None
    namespace: dict[str, Any] | None = None


class Pickler(cloudpickle.Pickler):
    def __init__(self, file: Any, buffers: list[pickle.PickleBuffer]) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers.append)
        self.storages: dict[int, Storage] = {}  # by address
        self.variables: dict[int, ClosedOver] = {}  # by the address of their cell

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and type(value) is torch.Tensor:
            return self.reduce_tensor(value, torch)
        if type(value) is types.FunctionType and value.__module__ == "__main__":
            return reduce_function(value, self.variables)
        return super().reducer_override(value)

    def reduce_tensor(self, tensor: Any, torch: Any) -> Any:
        if tensor.grad_fn is not None:
            raise ValueError("a tensor that is part of a graph (not a leaf) cannot travel; send its .detach()")
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type not in ("cpu", "cuda"):
            return NotImplemented
        if tensor.is_conj() or tensor.is_neg():
            return NotImplemented
        plain = tensor.detach()
        memory = plain.untyped_storage()
        storage = self.storages.setdefault(memory.data_ptr() or id(memory), Storage(memory))
        storage.cover(plain)
        arguments = (
            storage,
            plain.dtype,
            plain.storage_offset(),
            tuple(plain.size()),
            plain.stride(),
            tensor.requires_grad,
        )
        return restore_tensor, arguments


# ---- tensors


class Storage:
    """A tensor's memory; tensors that share it share one Storage, so they still share it where they arrive. Only the part
    that they cover together travels, and that is known when all of them have been pickled."""

    def __init__(self, storage: Any) -> None:
        self.storage = storage
        self.begin, self.end = sys.maxsize, 0  # nothing yet
        self.buffer: pickle.PickleBuffer | None = None  # stands for the part in the pickle

    def cover(self, tensor: Any) -> None:
        # Storages that numpy owns may begin at one address and end at different ones; the longest has all of it.
        self.storage = max(self.storage, tensor.untyped_storage(), key=lambda storage: storage.nbytes())
        if tensor.numel() == 0:
            return
        first = tensor.storage_offset()
        last = first + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
        begin = first * tensor.element_size()
        self.begin = min(self.begin, begin - begin % ALIGNMENT)  # aligned for every type of element
        self.end = max(self.end, (last + 1) * tensor.element_size())

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.buffer = pickle.PickleBuffer(bytearray())  # and so writable where it arrives
        return restore_storage, (self.buffer, self.storage.device.type == "cuda")

    def chunks(self) -> list[Any]:
        import torch

        if self.end == 0:
            return [bytes(ALIGNMENT)]
        whole = torch.empty(0, dtype=torch.uint8, device=self.storage.device).set_(self.storage)
        part: Any = whole[self.begin : self.end].cpu().numpy()
        return [self.begin.to_bytes(ALIGNMENT, "little"), memoryview(part)]


def restore_storage(buffer: Any, was_cuda: bool) -> tuple[Any, int]:
    """The storage, and which byte of the one it was made from is its first."""
    import torch

    begin, part = int.from_bytes(buffer[:ALIGNMENT], "little"), buffer[ALIGNMENT:]
    flat = torch.frombuffer(part, dtype=torch.uint8) if len(part) else torch.empty(0, dtype=torch.uint8)
    if was_cuda and Unpacking.device and Unpacking.device.startswith("cuda"):
        flat = flat.to(Unpacking.device)
    return flat.untyped_storage(), begin


def restore_tensor(part: tuple[Any, int], dtype: Any, offset: int, size: Any, stride: Any, requires_grad: bool) -> Any:
    import torch

    storage, begin = part
    tensor = torch.empty(0, dtype=dtype, device=storage.device)
    # One without elements may lie outside of the part.
    tensor = tensor.set_(storage, max(0, offset - begin // tensor.element_size()), size, stride)
    return tensor.requires_grad_() if requires_grad else tensor


# ---- functions


def names_in(code: types.CodeType) -> Iterator[str]:
    """Also those in its comprehensions, lambdas and inner functions, which are code of their own."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from names_in(constant)


class ClosedOver:
    """A variable of a closure, still empty. Functions that share it share one of these, so they still share it where they
    arrive; each of them brings its content along afterwards, because that may be the function itself."""

    def __init__(self, cell: types.CellType) -> None:
        self.cell = cell

    def __reduce__(self) -> Any:
        return types.CellType, ()


def reduce_function(function: Any, variables: dict[int, ClosedOver]) -> Any:
    modules = {}
    for name in names_in(function.__code__):
        value = function.__globals__.get(name)
        if isinstance(value, types.ModuleType):
            modules[name] = value.__name__
    cells = function.__closure__
    closure = None if cells is None else tuple(variables.setdefault(id(cell), ClosedOver(cell)) for cell in cells)
    state = {name: getattr(function, name) for name in (*FUNCTION_ATTRIBUTES, "__dict__")}
    state["closure"] = [content_of(cell) for cell in cells or ()]
    arguments = (function.__code__, modules, function.__name__, closure)
    return make_function, arguments, state, None, None, fill_function


def content_of(cell: Any) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def make_function(code: Any, modules: dict[str, str], name: str, closure: tuple[types.CellType, ...] | None) -> Any:
    """A function of the notebook's __main__ sees the worker's variables, not a copy of the notebook's."""
    import importlib

    namespace = Unpacking.namespace if Unpacking.namespace is not None else sys.modules["__main__"].__dict__
    for own, module in modules.items():
        if own not in namespace:
            namespace[own] = importlib.import_module(module)
    return types.FunctionType(code, namespace, name, None, closure)


def fill_function(function: Any, state: dict[str, Any]) -> None:
    for cell, content in zip(function.__closure__ or (), state["closure"], strict=False):
        if content:  # one that was empty stays so
            cell.cell_contents = content[0]
    for name in FUNCTION_ATTRIBUTES:
        setattr(function, name, state[name])
    function.__dict__.update(state["__dict__"])
