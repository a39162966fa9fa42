"""Frames and messages byte by byte, from net/frame.h and WIRE.md, so that wrong ones can be made."""

from __future__ import annotations

import socket
import struct
from typing import Any

HELLO, EXECUTE, INTERRUPT, INFO, WHY, RESTART, STOP, WATCH = 1, 2, 3, 4, 5, 6, 7, 8
WELCOME, ANSWER = 32, 36
CAP_BEFORE_HELLO = 64 << 10
CAP = 16 << 20


def _table() -> list[int]:
    table = []
    for number in range(256):
        for _ in range(8):
            number = (number >> 1) ^ (0x82F63B78 if number & 1 else 0)
        table.append(number)
    return table


_TABLE = _table()


def crc32c(data: bytes) -> int:
    value = 0xFFFFFFFF
    for byte in data:
        value = _TABLE[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ 0xFFFFFFFF


def header(
    length: int, checksum: int = 0, *, magic: bytes = b"DDIP", version: int = 1, descriptors: int = 0, reserved: int = 0
) -> bytes:
    return magic + struct.pack("<BBHII", version, descriptors, reserved, length, checksum)


def frame(body: bytes, **changes: Any) -> bytes:
    bare = header(len(body), **changes)[:12]
    return bare + struct.pack("<I", crc32c(bare + body)) + body


def pack(value: Any) -> bytes:
    """MessagePack, as far as we need it."""
    if isinstance(value, dict):
        return (
            b"\xde" + struct.pack(">H", len(value)) + b"".join(pack(key) + pack(entry) for key, entry in value.items())
        )
    if isinstance(value, bytes):
        return b"\xc6" + struct.pack(">I", len(value)) + value
    if isinstance(value, str):
        return b"\xdb" + struct.pack(">I", len(value.encode())) + value.encode()
    if isinstance(value, bool):
        return b"\xc3" if value else b"\xc2"
    if isinstance(value, int):
        return b"\xd3" + struct.pack(">q", value)
    if isinstance(value, list):
        return b"\xdd" + struct.pack(">I", len(value)) + b"".join(pack(entry) for entry in value)
    raise TypeError(type(value))


def message(kind: int, body: Any, number: int = 1, rank: int = -1, reserved: int = 0) -> bytes:
    return struct.pack("<HHiIQ", kind, reserved, rank, 0, number) + (body if isinstance(body, bytes) else pack(body))


def hello(key: bytes, role: str = "client", **more: Any) -> bytes:
    return message(HELLO, {"role": role, "client": "raw", "key": key, **more})


def connect(path: str, seconds: float = 5.0) -> socket.socket:
    raw = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    raw.settimeout(seconds)
    raw.connect(path)
    return raw


def answer(raw: socket.socket, seconds: float = 10.0) -> bytes:
    """What comes back until the other side closes; AssertionError if it stays open and silent."""
    raw.settimeout(seconds)
    data = b""
    try:
        while True:
            more = raw.recv(65536)
            if not more:
                return data
            data += more
    except ConnectionResetError:
        return data
    except TimeoutError:
        raise AssertionError(f"still open after {seconds} s; it said {data[:80]!r}") from None


def read_message(raw: socket.socket) -> tuple[int, bytes]:
    """Type and MessagePack body of the next message."""
    data = b""
    while len(data) < 16 or len(data) < 16 + struct.unpack_from("<I", data, 8)[0]:
        more = raw.recv(65536)
        assert more, "closed instead of answered"
        data += more
    return struct.unpack_from("<H", data, 16)[0], data[36:]
