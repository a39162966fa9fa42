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
from typing import Any

from ddip.value_pickler import ALIGNMENT, Pickler, Unpacking

MAGIC = b"ddipval1"
HEAD = struct.Struct("<8sQQ")
SPAN = struct.Struct("<QQ")

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
    packed = Packed(above_standard(os.memfd_create("ddip-value", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)), at)
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


def above_standard(fd: int) -> int:
    """A cell that has closed 1 and 2 leaves their numbers to us, and at its end they are its streams again."""
    if fd > 2:
        return fd
    higher = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    os.close(fd)
    return higher


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
