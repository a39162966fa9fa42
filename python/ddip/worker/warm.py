"""The warm parent: imports what is slow, checks that forking is safe, then forks workers on request.

Nothing parallel ever runs here: a thread pool does not survive a fork.
"""

from __future__ import annotations

import gc
import os
import sys
import time

# torch's import leaves this many threads; more means that some library started workers of its own.
KNOWN_THREADS = 4


def import_slow_modules(names: str) -> dict[str, float]:
    """Imports the comma-separated modules that exist; returns seconds for each."""
    import importlib
    import importlib.util

    seconds = {}
    for name in [part for part in names.split(",") if part]:
        begun = time.monotonic()
        if importlib.util.find_spec(name) is None:
            continue
        importlib.import_module(name)
        if name == "torch":
            torch = sys.modules["torch"]
            torch.set_num_threads(1)
            importlib.import_module("torch.distributed")
        seconds[name] = time.monotonic() - begun
    return seconds


def why_unsafe() -> str:
    """Why workers must not be forked from this process; empty if they may."""
    threads = os.listdir("/proc/self/task")
    if len(threads) > KNOWN_THREADS:
        return f"{len(threads)} threads after the imports, at most {KNOWN_THREADS} expected"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA was initialised by an import"
    return ""


def run(control: int) -> None:
    os.set_inheritable(control, False)
    from ddip import _worker

    begun = time.monotonic()
    parent = _worker.WarmParent(control)
    seconds = import_slow_modules(os.environ.get("DDIP_PRELOAD", "torch"))
    from ddip.worker import born, shell

    shell.create()  # 0.4 s after a fork, nothing before it
    gc.collect()
    gc.freeze()  # what was imported is never looked at again, here or in the children
    report = {
        "seconds": time.monotonic() - begun,
        "imports": seconds,
        "threads": len(os.listdir("/proc/self/task")),
        "unsafe": why_unsafe(),
    }
    parent.say_warmed(report)
    birth = parent.serve()
    if birth is None:
        return  # the agent is gone, and the children with it
    rank, incarnation, environment, descriptors = birth
    born.live(rank, incarnation, environment, descriptors, {"start": "fork"})
