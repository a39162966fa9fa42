"""The communicator of this rank's group: which one, and why it was chosen."""

from __future__ import annotations

import datetime
import os
from typing import TYPE_CHECKING, Any

from ddip.errors import ConfigError

if TYPE_CHECKING:
    from ddip._engine import Communicator

BACKENDS = ("auto", "shm", "c10d")
# Waiting longer than this for another rank is an error.
PATIENCE = datetime.timedelta(minutes=30)

# The communicators of this attempt: a rebuild begins a new one.
_attempt = ""
_made: dict[str, Communicator] = {}
_times = 0


def engine() -> Any:
    """The native module; torch must be loaded before it."""
    try:
        import torch.distributed  # noqa: F401

        from ddip import _engine
    except ImportError as error:
        raise ConfigError(f"the engine was not built for this torch ({error})") from None
    return _engine


def comm(backend: str = "auto", *, timeout: float | None = None) -> Communicator:
    """This group's communicator, made by the first call on all ranks. `backend`: shm (memory that the ranks of one host
    share, on CPU and GPU), c10d (the default process group, whatever it is), auto (shm)."""
    global _attempt, _times
    if backend not in BACKENDS:
        raise ConfigError(f"backend={backend!r} is unknown, one of {', '.join(BACKENDS)} was expected")
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if attempt != _attempt:
        _made.clear()
        _attempt, _times = attempt, 0
    if backend not in _made:
        _made[backend] = make(backend, datetime.timedelta(seconds=timeout) if timeout else PATIENCE)
    return _made[backend]


def private(purpose: str) -> Communicator:
    """One more like comm(), for calls that come while others are under way on that: all ranks must make the same calls in
    the same order on each."""
    comm()
    if purpose not in _made:
        _made[purpose] = make("auto", PATIENCE)
    return _made[purpose]


def make(backend: str, patience: datetime.timedelta) -> Any:
    import torch.distributed as distributed

    from ddip import device, rank, world_size

    _engine = engine()
    initialized = distributed.is_available() and distributed.is_initialized()
    if backend == "c10d" and not initialized:
        raise ConfigError(
            "backend='c10d' works over the default process group: call torch.distributed.init_process_group first"
        )
    if backend == "c10d":
        group = distributed.distributed_c10d._get_default_group()
        name = distributed.get_backend()
        return _engine.Communicator(group._get_backend(device()), name, "the default process group")
    made = _engine.C10dBackend(store(), rank(), world_size(), patience)
    if control() is not None:
        control().add_group(f"ddip.comm {_times}", [made.abort_socket])
        control().add_describer(f"ddip.comm {_times}", made.describer)
    where = "the GPU's" if device().type == "cuda" else "one host's"
    reason = "asked for" if backend == "shm" else f"all ranks see {where} memory"
    return _engine.Communicator(made, "shm", reason)


def store() -> Any:
    """Where the ranks of this attempt find each other; new keys each time."""
    global _times
    import torch.distributed as distributed
    from torch.distributed import HashStore, PrefixStore, distributed_c10d, rendezvous  # type: ignore[attr-defined]

    from ddip import rank, world_size

    _times += 1
    prefix = f"ddip/comm/{_attempt}/{_times}"
    if world_size() == 1:
        return PrefixStore(prefix, HashStore())
    if distributed.is_initialized():
        return PrefixStore(prefix, distributed_c10d._get_default_store())
    if control() is not None:
        from ddip.worker import store as worker_store

        worker_store.host_now()
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ConfigError(
            f"WORLD_SIZE is {world_size()}, but {missing[0]} is not set: start with %makedip, ddip run or torchrun"
        )
    found, _, _ = next(rendezvous("env://", rank(), world_size()))
    return PrefixStore(prefix, found)


def control() -> Any:
    """The worker's control, if this process is a worker of a group."""
    import sys

    module = sys.modules.get("ddip.worker.collectives")
    return module._control if module is not None else None
