"""Things that all ranks should have alike: parameters, an optimizer's state, objects, metrics. Every function is called on
all ranks of the group."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from ddip.communicators import comm, engine
from ddip.errors import ConfigError, PeerLost, TimedOut

T = TypeVar("T")


def broadcast_parameters(module: torch.nn.Module, root: int = 0) -> None:
    """Parameters and buffers become those of `root`."""
    tensors = [tensor.detach() for tensor in (*module.parameters(), *module.buffers())]
    engine().broadcast_all(comm(), tensors, root)


def broadcast_object(value: Any = None, root: int = 0, ranks: Any = None) -> Any:
    """What `root` gave, on every rank. Ranks of one group trust each other: it travels as a pickle. `ranks`: the
    communicator, `ddip.comm()` if not given."""
    ranks = comm() if ranks is None else ranks
    data, error = pickled(value) if ranks.rank == root else (None, None)
    size = torch.tensor([0 if data is None else data.numel()], device=home(ranks))
    ranks.broadcast(size, root)
    refuse_unpicklable([int(size)], error, [root])
    data = torch.empty(int(size), dtype=torch.uint8, device=home(ranks)) if data is None else data.to(home(ranks))
    ranks.broadcast(data, root)
    return value if ranks.rank == root else pickle.loads(data.cpu().numpy().tobytes())


def gather_objects(value: Any, ranks: Any = None, root: int | None = None) -> list[Any]:
    """What each rank gave, in the order of the ranks, on every rank; with `root` only there, and elsewhere nothing."""
    ranks = comm() if ranks is None else ranks
    data, error = pickled(value)
    sizes = ranks.all_gather(torch.tensor([data.numel()], device=home(ranks))).view(-1).tolist()
    refuse_unpicklable(sizes, error, range(ranks.world_size))
    padded = torch.zeros(max(sizes), dtype=torch.uint8)
    padded[: data.numel()] = data
    every = ranks.all_gather(padded.to(home(ranks))) if root is None else ranks.gather(padded.to(home(ranks)), root)
    if root not in (None, ranks.rank):
        return []
    return [pickle.loads(every[rank][:size].cpu().numpy().tobytes()) for rank, size in enumerate(sizes)]


def together(work: Callable[[], T], ranks: Any = None) -> T:
    """What `work` gives. If it fails on one rank, so it does on all: nobody waits for one that does not come."""
    made, failed = None, None
    try:
        made = work()
    except (PeerLost, TimedOut):
        raise  # nobody can be told
    except Exception as error:  # noqa: BLE001 - it is raised again below
        failed = error
    words = (
        ""
        if failed is None
        else str(failed)
        if isinstance(failed, ConfigError)
        else f"{type(failed).__name__}: {failed}"
    )
    everybody = gather_objects(words, ranks)
    if failed:
        try:
            raise failed
        finally:
            del failed  # else error and frame hold each other, and whatever `work` had
    for rank, why in enumerate(everybody):
        if why:
            raise ConfigError(f"rank {rank}: {why}")
    return made  # type: ignore[return-value]


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root: int = 0, ranks: Any = None) -> None:
    """Momenta, steps and learning rates become those of `root`; the parameters stay this rank's own. `ranks`: the
    communicator, `ddip.comm()` if not given."""
    ranks = comm() if ranks is None else ranks
    state = broadcast_object(on_cpu(optimizer.state_dict()) if ranks.rank == root else None, root, ranks)
    optimizer.load_state_dict(state)


def gather_metrics(values: Mapping[str, Any], op: str = "mean") -> dict[str, float]:
    """Numbers of all ranks as one: mean, sum, min or max of each. With "weight" among them, means are weighted by it: the
    number of samples, so that ranks with more of them count more."""
    if op not in ("mean", "sum", "min", "max"):
        raise ConfigError(f"op={op!r} is unknown, one of mean, sum, min, max was expected")
    names = sorted(values)
    told = gather_objects({name: float(values[name]) for name in names})
    for rank, other in enumerate(told):
        if sorted(other) != names:
            raise ConfigError(f"rank {comm().rank} has metrics {names}, but rank {rank} has {sorted(other)}")
    every = torch.tensor([[one[name] for name in names] for one in told], dtype=torch.float64)
    if op == "mean" and "weight" in names:
        weights = every[:, names.index("weight")]
        # A rank without samples has no mean to give: what it says, often that it is not a number, does not count.
        mean = torch.where(weights[:, None] == 0, 0.0, every * weights[:, None]).sum(0) / weights.sum()
        return {name: float(weights.sum()) if name == "weight" else float(mean[i]) for i, name in enumerate(names)}
    reduced = {"mean": every.mean(0), "sum": every.sum(0), "min": every.amin(0), "max": every.amax(0)}[op]
    return dict(zip(names, reduced.tolist(), strict=True))


def pickled(value: Any) -> tuple[torch.Tensor, Exception | None]:
    """As bytes; none of them, and why, if it cannot be: the other ranks wait for this one, and must be told."""
    try:
        return torch.frombuffer(bytearray(pickle.dumps(value)), dtype=torch.uint8), None
    except Exception as error:
        return torch.empty(0, dtype=torch.uint8), error


def refuse_unpicklable(sizes: Sequence[int], mine: Exception | None, senders: Sequence[int]) -> None:
    """On all ranks if one could not; there, with its own words."""
    if mine is not None:
        raise mine
    for sender, size in zip(senders, sizes, strict=True):
        if size == 0:
            raise ConfigError(f"what rank {sender} gave cannot be pickled; its own error says why")


def home(ranks: Any) -> Any:
    """Where small things must lie to travel: NCCL knows GPUs only."""
    from ddip import device

    return device() if ranks.name == "nccl" else "cpu"


def on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, dict):
        return {key: on_cpu(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(on_cpu(item) for item in value)
    return value
