"""Objects between notebook and workers, through a sealed memory file: big arrays and tensors are copied once and never
pickled, every reader maps the same pages privately, so they arrive writable and no rank sees another's writes.

Layout of the file: magic, length of the pickle, number of buffers, (offset, length) of each, the pickle, the buffers. A
buffer of tensors begins with one block that says which byte of their storage comes first.
Only processes of one group exchange these files; nothing of a stranger's is ever unpickled.
"""

from __future__ import annotations

import fcntl
import io
import mmap
import os
import pickle
import struct
import sys
import types
from typing import Any

import cloudpickle

MAGIC = b"ddipval1"
ALIGNMENT = 64
HEAD = struct.Struct("<8sQQ")
SPAN = struct.Struct("<QQ")

FUNCTION_ATTRIBUTES = ("__defaults__", "__kwdefaults__", "__qualname__", "__doc__", "__annotations__")

F_ADD_SEALS = 1033
SEALS = 0x1 | 0x2 | 0x4 | 0x8  # SEAL, SHRINK, GROW, WRITE


class Packed:
    """A sealed memory file that holds one object."""

    def __init__(self, fd: int, size: int) -> None:
        self.fd = fd
        self.size = size

    def release(self) -> int:
        fd, self.fd = self.fd, -1
        return fd

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.release())

    def __del__(self) -> None:
        self.close()


class Storage:
    """A tensor's memory; tensors that share it share one Storage, so they still share it where they arrive. Only the part
    that they cover together travels, and that is known when all of them have been pickled."""

    def __init__(self, storage: Any) -> None:
        self.storage = storage
        self.begin, self.end = storage.nbytes(), 0  # nothing yet
        self.buffer: pickle.PickleBuffer | None = None  # stands for the part in the pickle

    def cover(self, tensor: Any) -> None:
        if tensor.numel() == 0:
            return
        first = tensor.storage_offset()
        last = first + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
        begin = first * tensor.element_size()
        self.begin = min(self.begin, begin - begin % ALIGNMENT)  # aligned for every type of element
        self.end = max(self.end, (last + 1) * tensor.element_size())

    def __reduce_ex__(self, protocol: Any) -> Any:
        self.buffer = pickle.PickleBuffer(bytearray())  # and so writable where it arrives
        return restore_storage, (self.buffer,)

    def chunks(self) -> list[Any]:
        import torch

        if self.end == 0:
            return [bytes(ALIGNMENT)]
        memory: Any = torch.empty(0, dtype=torch.uint8).set_(self.storage).numpy()
        return [self.begin.to_bytes(ALIGNMENT, "little"), memoryview(memory)[self.begin : self.end]]


def restore_storage(buffer: Any) -> tuple[Any, int]:
    """The storage, and which byte of the one it was made from is its first."""
    import torch

    begin, part = int.from_bytes(buffer[:ALIGNMENT], "little"), buffer[ALIGNMENT:]
    flat = torch.frombuffer(part, dtype=torch.uint8) if len(part) else torch.empty(0, dtype=torch.uint8)
    return flat.untyped_storage(), begin


class Unpacking:
    """Where cuda tensors of the object being unpacked go, and which namespace its functions see."""

    device: str | None = None
    namespace: dict[str, Any] | None = None


def restore_tensor(
    part: tuple[Any, int], dtype: Any, offset: int, size: Any, stride: Any, requires_grad: bool, was_cuda: bool
) -> Any:
    import torch

    storage, begin = part
    tensor = torch.empty(0, dtype=dtype)
    # One without elements may lie outside of the part.
    tensor = tensor.set_(storage, max(0, offset - begin // tensor.element_size()), size, stride)
    if was_cuda and Unpacking.device and Unpacking.device.startswith("cuda"):
        tensor = tensor.to(Unpacking.device)
    return tensor.requires_grad_() if requires_grad else tensor


def make_function(code: Any, modules: dict[str, str], name: str, cells: int | None) -> Any:
    """A function of the notebook's __main__ sees the worker's variables, not a copy of the notebook's. It is filled in
    afterwards, because its closure may hold the function itself."""
    import importlib

    namespace = Unpacking.namespace if Unpacking.namespace is not None else sys.modules["__main__"].__dict__
    for own, module in modules.items():
        if own not in namespace:
            namespace[own] = importlib.import_module(module)
    closure = None if cells is None else tuple(types.CellType() for _ in range(cells))
    return types.FunctionType(code, namespace, name, None, closure)


def fill_function(function: Any, state: dict[str, Any]) -> None:
    for cell, content in zip(function.__closure__ or (), state["closure"], strict=False):
        if content:  # one that was empty stays so
            cell.cell_contents = content[0]
    for name in FUNCTION_ATTRIBUTES:
        setattr(function, name, state[name])
    function.__dict__.update(state["__dict__"])


class Pickler(cloudpickle.Pickler):
    def __init__(self, file: Any, buffers: list[pickle.PickleBuffer]) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffers.append)
        self.storages: dict[int, Storage] = {}  # by address

    def reducer_override(self, value: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and type(value) is torch.Tensor:
            return self.reduce_tensor(value, torch)
        if type(value) is types.FunctionType and value.__module__ == "__main__":
            return reduce_function(value)
        return super().reducer_override(value)

    def reduce_tensor(self, tensor: Any, torch: Any) -> Any:
        if tensor.grad_fn is not None:
            raise ValueError("a tensor that is part of a graph (not a leaf) cannot travel; send x.detach()")
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type not in ("cpu", "cuda"):
            return NotImplemented
        if tensor.is_conj() or tensor.is_neg():
            return NotImplemented
        was_cuda = tensor.device.type == "cuda"
        plain = tensor.detach().cpu() if was_cuda else tensor.detach()
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
            was_cuda,
        )
        return restore_tensor, arguments


def reduce_function(function: Any) -> Any:
    modules = {}
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if isinstance(value, types.ModuleType):
            modules[name] = value.__name__
    closure = function.__closure__
    state = {name: getattr(function, name) for name in (*FUNCTION_ATTRIBUTES, "__dict__")}
    state["closure"] = [content_of(cell) for cell in closure or ()]
    arguments = (function.__code__, modules, function.__name__, None if closure is None else len(closure))
    return make_function, arguments, state, None, None, fill_function


def content_of(cell: Any) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def pack(value: Any) -> Packed:
    """Raises what pickling raises; `pack_named` says which variable it was."""
    buffers: list[pickle.PickleBuffer] = []
    text = io.BytesIO()
    pickler = Pickler(text, buffers)
    pickler.dump(value)
    body = text.getbuffer()
    of_tensors = {id(storage.buffer): storage for storage in pickler.storages.values()}
    contents = [of_tensors[id(one)].chunks() if id(one) in of_tensors else [one.raw()] for one in buffers]
    at = HEAD.size + SPAN.size * len(contents) + len(body)
    spans = []
    for chunks in contents:
        at = -(-at // ALIGNMENT) * ALIGNMENT
        length = sum(len(chunk) for chunk in chunks)
        spans.append((at, length))
        at += length
    packed = Packed(os.memfd_create("ddip-value", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING), at)
    os.ftruncate(packed.fd, at)
    head = HEAD.pack(MAGIC, len(body), len(contents)) + b"".join(SPAN.pack(*span) for span in spans)
    write_at(packed.fd, head, 0)
    write_at(packed.fd, body, len(head))
    for (offset, _), chunks in zip(spans, contents, strict=True):
        for chunk in chunks:
            write_at(packed.fd, chunk, offset)
            offset += len(chunk)
    fcntl.fcntl(packed.fd, F_ADD_SEALS, SEALS)
    return packed


def pack_named(values: dict[str, Any]) -> Packed:
    """One file for several variables, so that those which share memory still do. The error names the culprit."""
    try:
        return pack(values)
    except Exception as error:
        for name, value in values.items():
            try:
                pack(value).close()
            except Exception as culprit:
                raise TypeError(f"cannot send '{name}' ({type(value).__name__}): {culprit}") from None
        raise TypeError(f"cannot send {', '.join(values)}: {error}") from None


def write_at(fd: int, data: Any, offset: int) -> None:
    view = memoryview(data).cast("B")
    while view.nbytes:
        count = os.pwrite(fd, view, offset)
        view, offset = view[count:], offset + count


def unpack(fd: int, namespace: dict[str, Any] | None = None, device: str | None = None) -> Any:
    """Closes fd. Large memory stays mapped, privately and copy-on-write, as long as something of it is alive."""
    try:
        size = os.fstat(fd).st_size
        area = mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    finally:
        os.close(fd)
    view = memoryview(area)
    magic, length, count = HEAD.unpack_from(view, 0)
    if magic != MAGIC:
        raise ValueError("not a packed value")
    spans = [SPAN.unpack_from(view, HEAD.size + index * SPAN.size) for index in range(count)]
    begin = HEAD.size + SPAN.size * count
    buffers = [view[offset : offset + nbytes] for offset, nbytes in spans]
    before = (Unpacking.namespace, Unpacking.device)
    Unpacking.namespace, Unpacking.device = namespace, device
    try:
        return pickle.loads(view[begin : begin + length], buffers=buffers)
    finally:
        Unpacking.namespace, Unpacking.device = before
