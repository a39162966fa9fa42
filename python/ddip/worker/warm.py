"""The warm parent: imports what is slow, checks that forking is safe, then forks workers on request.

Nothing parallel ever runs here: a thread pool does not survive a fork.
"""

from __future__ import annotations

import gc
import os
import sys
import time

# The first import, torch's, leaves up to this many threads, and forking is safe with them.
KNOWN_THREADS = 4
# Later ones may add threads of these names only: a pool of workers that computed something does not survive a fork, and
# the first parallel operator of a child would wait for it for ever.
HARMLESS_THREADS = {"jemalloc_bg_thd"}


def threads() -> list[str]:
    """Their names, without the main thread and the harmless ones."""
    names = []
    for number in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{number}/comm") as file:
                name = file.read().strip()
        except FileNotFoundError:
            continue  # it has just ended
        if int(number) != os.getpid() and name not in HARMLESS_THREADS:
            names.append(name)
    return names


def import_slow_modules(names: str) -> tuple[dict[str, float], int]:
    """Imports the comma-separated modules that exist. Seconds for each, and how many threads there were after torch's (or
    before any)."""
    import importlib
    import importlib.util

    seconds, known = {}, len(threads())
    for name in [part for part in names.split(",") if part]:
        begun = time.monotonic()
        if importlib.util.find_spec(name) is None:
            continue
        importlib.import_module(name)
        if name == "torch":
            torch = sys.modules["torch"]
            torch.set_num_threads(1)
            importlib.import_module("torch.distributed")
            known = len(threads())
        seconds[name] = time.monotonic() - begun
    return seconds, known


def why_unsafe(known: int) -> str:
    """Why workers must not be forked from this process; empty if they may."""
    names = threads()
    if len(names) > min(known, KNOWN_THREADS):
        return f"{len(names)} threads besides the main one after the imports: {', '.join(sorted(set(names)))}"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "CUDA was initialised by an import"
    return ""


def run(control: int) -> None:
    os.set_inheritable(control, False)
    from ddip import _worker
    from ddip.worker import figures

    begun = time.monotonic()
    parent = _worker.WarmParent(control)
    figures.draw_inline()
    seconds, known = import_slow_modules(os.environ.get("DDIP_PRELOAD", "torch"))
    from ddip.worker import born, shell

    shell.create()  # 0.4 s after a fork, nothing before it
    gc.collect()
    gc.freeze()  # what was imported is never looked at again, here or in the children
    report = {
        "seconds": time.monotonic() - begun,
        "imports": seconds,
        "threads": len(os.listdir("/proc/self/task")),
        "unsafe": why_unsafe(known),
    }
    parent.say_warmed(report)
    birth = parent.serve()
    if birth is None:
        return  # the agent is gone, and the children with it
    rank, incarnation, environment, descriptors = birth
    born.live(rank, incarnation, environment, descriptors, {"start": "fork"})
