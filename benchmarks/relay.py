"""Slow links without the kernel's help: Gloo's connections led through a relay that passes on only so many bytes a second.

Gloo's ranks tell each other their addresses through a store. `Addresses` stands before that store in each rank and gives the relay's
address wherever a peer's is asked for, so that every pair of ranks is joined by two TCP connections with the relay between them.
Each direction of each pair has a thread of its own that takes up to 16 KiB, waits until its link has carried them, and hands them on.

Limited is the rate of each direction of each pair of ranks, whatever travels there (messages, barriers). Not limited: what lies in
front of the relay, that is what the kernel's socket buffers take (some MiB: a sender is hardly ever held up by them, as with the long
queue of `tc tbf`). There is no delay besides the rate's, and ranks that are not neighbours have a link of their own. The relay's
threads need a part of a core; they run in the process that starts the ranks, which is idle otherwise.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
import time
from typing import Any

import torch.distributed as dist

PIECE = 16 * 1024
# The rank with the larger address connects: the relay lies below the ranks' own address, for those who connect, and what is told to
# those who listen lies above it; they never use it.
RELAY, RANK, ABOVE = "127.0.0.1", "127.0.0.2", "127.0.0.3"
# How the kernel writes an IPv4 address of a rank: family, port, address.
WRITTEN = re.compile(
    re.escape(struct.pack("=H", socket.AF_INET)) + b"(..)" + re.escape(socket.inet_aton(RANK)), re.DOTALL
)


class Relay:
    """Doors for all pairs of ranks. `bytes_per_second` may be changed at any time."""

    def __init__(self, ranks: int) -> None:
        self.bytes_per_second = float("inf")
        self.store = dist.TCPStore(RELAY, 0, is_master=True, wait_for_workers=False)
        self._sockets: list[socket.socket] = []
        for lower in range(ranks):
            for upper in range(lower + 1, ranks):
                door = socket.create_server((RELAY, 0))
                self._sockets.append(door)
                self.store.set(f"door/{lower}/{upper}", str(door.getsockname()[1]))
                threading.Thread(target=self._join, args=(door, upper), daemon=True).start()

    def _join(self, door: socket.socket, upper: int) -> None:
        with contextlib.suppress(OSError):  # closed before anybody came
            left, _ = door.accept()
            right = socket.create_connection((RANK, int(self.store.get(f"port/{upper}"))))
            self._sockets += [left, right]
            for end in (left, right):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for source, sink in ((left, right), (right, left)):
                threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        free = time.monotonic()  # when the link has carried all that came before
        with contextlib.suppress(OSError):  # a rank has ended
            while True:
                try:  # What has waited for the link goes on where the last piece ended: waking up late costs nothing.
                    piece = source.recv(PIECE, socket.MSG_DONTWAIT)
                except BlockingIOError:
                    piece = source.recv(PIECE)
                    free = max(free, time.monotonic())
                if not piece:
                    break
                free += len(piece) / self.bytes_per_second
                ahead = free - time.monotonic()
                if ahead > 0:
                    time.sleep(ahead)
                sink.sendall(piece)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for one in self._sockets:
            one.close()


class Addresses(dist.Store):
    """The store, as rank `rank` sees it."""

    def __init__(self, port: int, rank: int) -> None:
        super().__init__()
        self.store, self.rank = dist.TCPStore(RELAY, port, is_master=False), rank

    def set(self, key: str, value: Any) -> None:  # type: ignore[override]
        value = bytes(value)
        found = WRITTEN.search(value)
        if not found:
            raise RuntimeError(f"Gloo's {key} has no address of {RANK}: this relay does not know its form")
        self.store.set(f"port/{self.rank}", str(struct.unpack("!H", found.group(1))[0]))
        self.store.set(f"from/{key}", str(self.rank))
        self.store.set(key, value)

    def get(self, key: str) -> bytes:
        value, peer = self.store.get(key), int(self.store.get(f"from/{key}"))
        if peer == self.rank:
            return value
        port = int(self.store.get(f"door/{self.rank}/{peer}")) if peer > self.rank else 1
        there = RELAY if peer > self.rank else ABOVE
        return WRITTEN.sub(
            lambda _: struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(there), value
        )

    def wait(self, keys: list[str], *patience: Any) -> None:  # type: ignore[override]
        self.store.wait(keys, *patience)

    def has_extended_api(self) -> bool:
        return False


def join(port: int, rank: int, ranks: int) -> Any:
    """Gloo of this rank, through the relay whose store listens at `port`."""
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=RANK)]  # type: ignore[attr-defined]
    return dist.ProcessGroupGloo(Addresses(port, rank), rank, ranks, options)  # type: ignore[attr-defined]
