"""The communicator of this rank's group: which one, and why it was chosen."""

from __future__ import annotations

import contextlib
import datetime
import os
import uuid
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ddip import started_by_mpirun
from ddip.errors import ConfigError

if TYPE_CHECKING:
    from ddip._engine import Communicator

BACKENDS = ("auto", "shm", "nccl", "mpi", "gloo", "c10d")
# Waiting longer than this for another rank is an error.
PATIENCE = datetime.timedelta(minutes=30)

# The communicators of this attempt: a rebuild begins a new one.
_attempt = ""
_made: dict[str, Communicator] = {}
# By purpose, those beside one that was given.
_beside: weakref.WeakKeyDictionary[Communicator, dict[str, Communicator]] = weakref.WeakKeyDictionary()
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
    """This group's communicator, made by the first call on all ranks. `backend`:

    shm    memory that the ranks of one host share, on CPU and GPU
    nccl   torch's NCCL: one GPU per rank
    gloo   torch's Gloo
    mpi    Open MPI, in a program started by mpirun
    c10d   the default process group, whatever it is
    auto   what the group's --backend says; else mpi under mpirun and shm everywhere else
    """
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


def beside(ranks: Communicator, purpose: str) -> Communicator:
    """The same for the ranks of a communicator that may be a part of the group: they alone call it, all of them."""
    from ddip import world_size

    if ranks.world_size == world_size():
        return private(purpose)
    made = _beside.setdefault(ranks, {})
    if purpose not in made:
        made[purpose] = make_beside(ranks, purpose)
    return made[purpose]


def make_beside(ranks: Communicator, purpose: str) -> Any:
    """In shared memory, which is what all ranks of a host have."""
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    from ddip.replicas import broadcast_object

    # Not by a number: the ranks that have no part in it would count one less.
    name = broadcast_object(f"ddip {purpose} {uuid.uuid4().hex}" if ranks.rank == 0 else None, 0, ranks)
    backend = shared_memory(PrefixStore(name, shared_store()), ranks.rank, ranks.world_size, PATIENCE, name)
    return engine().Communicator(backend, "shm", f"for {purpose}, beside one of {ranks.world_size} ranks")


def chosen(backend: str) -> tuple[str, str]:
    """What auto is here, and why, for people."""
    from ddip import device

    of_group = os.environ.get("DDIP_BACKEND", "auto")
    if backend != "auto":
        return backend, "asked for"
    if control() is not None and of_group != "auto":
        return of_group, f"the group has --backend {of_group}"
    if started_by_mpirun():
        return "mpi", "started by mpirun"
    where = "the GPU's" if device().type == "cuda" else "one host's"
    return "shm", f"all ranks see {where} memory"


def make(backend: str, patience: datetime.timedelta) -> Any:
    name, reason = chosen(backend)
    if name == "c10d":
        return of_default_group()
    made = engine().Communicator(MAKERS[name](patience), name, reason)
    if control() is not None and name != "shm":  # that one's backend says more
        control().add_describer(f"ddip.comm {_times}", made.describer)
    return made


def of_default_group() -> Any:
    import torch.distributed as distributed

    from ddip import device

    if not (distributed.is_available() and distributed.is_initialized()):
        raise ConfigError(
            "backend='c10d' works over the default process group: call torch.distributed.init_process_group first"
        )
    group = distributed.distributed_c10d._get_default_group()
    return engine().Communicator(group._get_backend(device()), distributed.get_backend(), "the default process group")


def make_shm(patience: datetime.timedelta) -> Any:
    from ddip import rank, world_size

    found = store()
    return shared_memory(found, rank(), world_size(), patience, f"ddip.comm {_times}")


def shared_memory(found: Any, rank: int, world: int, patience: datetime.timedelta, name: str) -> Any:
    """`name`: what a worker calls it when it says what it waits in."""
    made = engine().C10dBackend(found, rank, world, patience)
    if control() is not None:
        control().add_group(name, [made.abort_socket])
        control().add_describer(name, made.describer)
    return made


def make_mpi(patience: datetime.timedelta) -> Any:
    if control() is not None or not started_by_mpirun():
        why = "this rank is a worker of a group" if control() is not None else "OMPI_COMM_WORLD_SIZE is not set"
        raise ConfigError(f"backend='mpi' is for programs started by mpirun: {why}")
    return engine().C10dBackend.over_mpi(patience)


def make_gloo(patience: datetime.timedelta) -> Any:
    import torch.distributed as distributed

    from ddip import rank, world_size

    if not (distributed.is_available() and distributed.is_gloo_available()):
        raise ConfigError("backend='gloo': this torch has no Gloo")
    with sockets_watched():
        return distributed.ProcessGroupGloo(store(), rank(), world_size(), patience)  # type: ignore[attr-defined]


def make_nccl(patience: datetime.timedelta) -> Any:
    """Refuses what NCCL would wait for without end or report from deep inside, before it is asked."""
    import torch
    import torch.distributed as distributed

    from ddip import device, rank, world_size

    if device().type != "cuda":
        raise ConfigError(
            f"backend='nccl' needs one GPU per rank, and rank {rank()} has none: shm and gloo work on CPUs"
        )
    if not (distributed.is_available() and distributed.is_nccl_available()):
        raise ConfigError("backend='nccl': this torch has no NCCL; shm works on GPUs too")
    found = store()
    found.set(f"gpu/{rank()}", str(getattr(torch.cuda.get_device_properties(device()), "uuid", device())))
    refuse_shared_gpus([found.get(f"gpu/{peer}").decode() for peer in range(world_size())])
    torch.cuda.set_device(device())
    options = distributed.ProcessGroupNCCL.Options()  # type: ignore[attr-defined]
    options._timeout = patience
    with sockets_watched():
        return distributed.ProcessGroupNCCL(found, rank(), world_size(), options)  # type: ignore[attr-defined]


def refuse_shared_gpus(gpu_of: list[str]) -> None:
    """`gpu_of`: by rank, a name that tells GPUs apart."""
    first: dict[str, int] = {}
    for rank, gpu in enumerate(gpu_of):
        if gpu in first:
            raise ConfigError(
                f"backend='nccl' needs one GPU per rank, and ranks {first[gpu]} and {rank} share one: shm lets them"
            )
        first[gpu] = rank


MAKERS = {"shm": make_shm, "mpi": make_mpi, "gloo": make_gloo, "nccl": make_nccl}


@contextlib.contextmanager
def sockets_watched() -> Iterator[None]:
    """Connections of torch's own that appear inside: in a group, a stop ends what waits in them."""
    if control() is None:
        yield
        return
    from ddip import _worker

    port = int(os.environ.get("MASTER_PORT", "0") or 0)
    before = set(_worker.connected_sockets(port))
    yield
    control().add_group(
        f"ddip.comm {_times}", [number for number in _worker.connected_sockets(port) if number not in before]
    )


def store() -> Any:
    """Where the ranks of this attempt find each other; new keys each time."""
    global _times
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    _times += 1
    return PrefixStore(f"ddip/comm/{_attempt}/{_times}", shared_store())


def shared_store() -> Any:
    import torch.distributed as distributed
    from torch.distributed import HashStore, distributed_c10d, rendezvous  # type: ignore[attr-defined]

    from ddip import rank, world_size

    if world_size() == 1:
        return HashStore()
    if distributed.is_initialized():
        return distributed_c10d._get_default_store()
    if control() is not None:
        from ddip.worker import store as worker_store

        worker_store.host_now()
    missing = [name for name in ("MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
    if missing:
        raise ConfigError(
            f"WORLD_SIZE is {world_size()}, but {missing[0]} is not set: start with %makedip, ddip run or torchrun"
        )
    found, _, _ = next(rendezvous("env://", rank(), world_size()))
    return found


def control() -> Any:
    """The worker's control, if this process is a worker of a group."""
    import sys

    module = sys.modules.get("ddip.worker.collectives")
    return module._control if module is not None else None
