"""Threads that follow cells. They end before the interpreter does: one that comes back from C++ after that aborts it."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable

# So long a follower waits for news before it looks whether it is to end, and so long, at most, its end is waited for.
LOOK = 0.05
PATIENCE = 1.0

_threads: set[threading.Thread] = set()
_interpreter_ends = threading.Event()


def start(follow: Callable[[], None], name: str) -> None:
    """`follow` returns soon after is_to_end()."""

    def run() -> None:
        try:
            follow()
        finally:
            _threads.discard(threading.current_thread())

    thread = threading.Thread(target=run, name=name, daemon=True)
    _threads.add(thread)
    thread.start()


def is_to_end() -> bool:
    return _interpreter_ends.is_set()


@atexit.register
def _end_all() -> None:
    _interpreter_ends.set()
    for thread in list(_threads):
        thread.join(PATIENCE)
