"""ddip: train on many workers from the notebook cell you are typing in.

`%load_ext ddip` in a notebook; `ddip.Group(workers=2)` in plain Python.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if not sys.platform.startswith("linux"):
    raise ImportError("ddip runs on Linux only")

if TYPE_CHECKING:
    from ddip.cell import Cell, Result
    from ddip.communicators import comm
    from ddip.data_parallel import DataParallel
    from ddip.errors import ConfigError, PeerLost, ProtocolError, RankError, StageFailed, TimedOut
    from ddip.group import Group, attach, groups
    from ddip.pipeline import Pipeline
    from ddip.replicas import (
        broadcast_object,
        broadcast_optimizer_state,
        broadcast_parameters,
        gather_metrics,
        gather_objects,
    )
    from ddip.sync_batch_norm import SyncBatchNorm

__version__ = "0.1.0"
__all__ = [
    "Cell", "ConfigError", "DataParallel", "Group", "PeerLost", "Pipeline", "ProtocolError", "RankError", "Result", "StageFailed", "SyncBatchNorm", "TimedOut",
    "attach", "broadcast_object", "broadcast_optimizer_state", "broadcast_parameters", "comm", "device", "gather_metrics",
    "gather_objects", "groups", "rank", "rebuild", "wait_for_debugger", "world_size",
]  # fmt: skip

# Loaded on first use: a worker that forks from the warm parent needs none of the client.
_HOME = {
    "Cell": "ddip.cell",
    "Result": "ddip.cell",
    "DataParallel": "ddip.data_parallel",
    "Pipeline": "ddip.pipeline",
    "SyncBatchNorm": "ddip.sync_batch_norm",
    "broadcast_object": "ddip.replicas",
    "broadcast_optimizer_state": "ddip.replicas",
    "broadcast_parameters": "ddip.replicas",
    "comm": "ddip.communicators",
    "gather_metrics": "ddip.replicas",
    "gather_objects": "ddip.replicas",
    "ConfigError": "ddip.errors",
    "PeerLost": "ddip.errors",
    "ProtocolError": "ddip.errors",
    "RankError": "ddip.errors",
    "StageFailed": "ddip.errors",
    "TimedOut": "ddip.errors",
    "Group": "ddip.group",
    "attach": "ddip.group",
    "groups": "ddip.group",
}


def _register_backend() -> None:
    from ddip import backend

    backend.register_when_torch_is_there()


_register_backend()


def __getattr__(name: str) -> Any:
    if name in _HOME:
        import importlib

        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'ddip' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*_HOME, "rank", "world_size", "device", "rebuild", "wait_for_debugger", "load_ipython_extension"])


def rank() -> int:
    """This worker's position in its group, or under torchrun or mpirun; 0 elsewhere."""
    return int(os.environ["OMPI_COMM_WORLD_RANK"] if started_by_mpirun() else os.environ.get("RANK", "0"))


def world_size() -> int:
    return int(os.environ["OMPI_COMM_WORLD_SIZE"] if started_by_mpirun() else os.environ.get("WORLD_SIZE", "1"))


def started_by_mpirun() -> bool:
    """Whether Open MPI's mpirun started this process, and nobody since: RANK is what ddip and torchrun set."""
    return "OMPI_COMM_WORLD_SIZE" in os.environ and "RANK" not in os.environ


def device() -> Any:
    """The torch.device of this rank."""
    import torch

    return torch.device(os.environ.get("DDIP_DEVICE", "cpu"))


def rebuild() -> None:
    """In a cell, on every rank: process groups are made again under a new store prefix; variables stay."""
    from ddip.worker import collectives

    collectives.rebuild(int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) + 1)


def wait_for_debugger(timeout: float = 600.0) -> None:
    """Waits until a native debugger (gdb -p PID) is attached to this rank."""
    import time

    print(f"rank {rank()} waits for a debugger: gdb -p {os.getpid()}", flush=True)
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        with open("/proc/self/status") as status:
            if any(line.startswith("TracerPid:") and int(line.split()[1]) for line in status):
                return
        time.sleep(0.05)
    raise TimeoutError(f"no debugger came in {timeout} s")


def load_ipython_extension(shell: Any) -> None:
    from ddip import magics

    magics.load(shell)


def unload_ipython_extension(shell: Any) -> None:
    from ddip import magics

    magics.unload(shell)
