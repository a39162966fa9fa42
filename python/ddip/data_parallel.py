"""Data parallel training: the same model on every rank, each with its own part of the batch, gradients averaged."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ddip import replicas
from ddip.communicators import comm, engine
from ddip.errors import ConfigError
from ddip.keywords import known_keywords_only
from ddip.sync_batch_norm import share_with

# Ours; every other attribute is the model's.
OWN = {"module", "training", "_dp", "_dp_ranks"}
DDP = "module."  # what torch's DistributedDataParallel puts before every key
_wrapper_of: weakref.WeakKeyDictionary[nn.Module, weakref.ref[DataParallel]] = weakref.WeakKeyDictionary()


class DataParallel(nn.Module):
    """Wraps a model; train it as before. Gradients are averaged over the ranks while backward runs, so that training equals
    training in one process on the joint batch.

    The model's attributes and methods stay reachable through the wrapper, and which of them computes the loss does not
    matter. `state_dict` has the model's own keys, and loads checkpoints of torch's DistributedDataParallel.

    compress     what travels: none, fp16, bf16, int8, topk (the largest 1%; "topk:0.05"), powersgd (rank 4; "powersgd:2")
    bucket_mb    gradients travel together in pieces of this size
    find_unused  parameters may get no gradient in a backward (False saves a message per step)
    static_graph every backward uses the same parameters as the first
    broadcast_buffers  rank 0's running statistics are everybody's, at every forward in training
    nonfinite    what happens when a gradient is not finite: "skip" drops the gradients of that step on all ranks (the
                 default with compression), "keep" leaves them for a GradScaler to find (the default without);
                 stats()["nonfinite"] counts either way
    ranks        the communicator, or a function that is asked for it before every forward; `ddip.comm` if not given
    """

    @known_keywords_only
    def __init__(
        self,
        module: nn.Module,
        *,
        compress: str = "none",
        bucket_mb: float = 25.0,
        find_unused: bool = True,
        static_graph: bool = False,
        broadcast_buffers: bool = True,
        nonfinite: str | None = None,
        ranks: Any = None,
    ) -> None:
        super().__init__()
        if not isinstance(module, nn.Module):
            raise ConfigError(f"DataParallel wraps a torch.nn.Module, not a {type(module).__name__}")
        if lazy := [name for name, parameter in module.named_parameters() if is_lazy(parameter)]:
            raise ConfigError(f"parameter {lazy[0]} has no shape yet: call the model once on all ranks, then wrap it")
        if nonfinite not in (None, "skip", "keep"):
            raise ConfigError(f"nonfinite={nonfinite!r} is unknown, skip or keep was expected")
        if not bucket_mb > 0:
            raise ConfigError(f"bucket_mb={bucket_mb} is no size")
        self._dp_ranks = comm if ranks is None else ranks if callable(ranks) else lambda: ranks
        self.module = module
        # Stays when the model is planned anew: what it keeps for the next step belongs to the parameters.
        compressor = engine().make_compressor(compress)
        self._dp = engine().Replica(
            self._dp_ranks,
            lambda: parameters_of(module),
            lambda: [name for name, _ in module.named_parameters()],
            lambda: list(module.buffers()),
            lambda: module.training,
            first_bucket_bytes=int(min(1.0, bucket_mb) * 2**20),
            bucket_bytes=int(bucket_mb * 2**20),
            find_unused=find_unused,
            static_graph=static_graph,
            keep_nonfinite=nonfinite == "keep" or (nonfinite is None and compressor is None),
            compressor=compressor,
            broadcast_buffers=broadcast_buffers,
        )
        share_with(module, None if ranks is None else self._dp_ranks)
        # Two would average the same gradients: the new one takes over, as soon as there is one.
        before = _wrapper_of.get(module)
        old: Any = before() if before is not None else None
        if old is not None:
            old._dp.retire()
        _wrapper_of[module] = weakref.ref(self)

    # --- training

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self._dp.before_forward()
        return self.module(*args, **kwargs)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards inside only add up gradients; the next one outside averages the sum."""
        before, self._dp.sync = self._dp.sync, False
        try:
            yield
        finally:
            self._dp.sync = before

    @contextlib.contextmanager
    def join(
        self, optimizer: torch.optim.Optimizer | None = None, divide_by_initial_world_size: bool = False
    ) -> Iterator[None]:
        """Ranks may have different numbers of batches: who is done takes part with nothing until all are. The mean is over
        the ranks that have data. At the end all have the model of a rank that trained to the last, and, if it is given, the
        state of its optimizer: one with momentum goes on differently without."""
        self._dp.begin_join(divide_by_initial_world_size)
        try:
            yield
        except BaseException:
            self._dp.abandon_join()
            raise
        newest = self._dp.end_join()
        if optimizer is not None:
            replicas.broadcast_optimizer_state(optimizer, newest, self._dp_ranks())

    def stats(self) -> dict[str, Any]:
        """Since the last call: steps, seconds of compute, of communication that backward waited for (exposed), of waiting
        for each rank and which is the slowest, bytes; the timeline of the last backward."""
        stats: dict[str, Any] = self._dp.take_stats()
        waited = stats["waited_seconds"]
        stats["slowest_rank"] = max(range(len(waited)), key=waited.__getitem__) if any(waited) else None
        stats["buckets"] = len(self._dp.buckets)
        return stats

    def compression_state_dict(self) -> dict[str, torch.Tensor]:
        """What compression keeps on this rank from one step for the next. Each rank saves its own, beside the model and the
        optimizer: a run that gets it back goes on, bit for bit, as if it had not ended. Empty where nothing is kept."""
        return dict(self._dp.compression_state())

    def load_compression_state_dict(self, state_dict: Mapping[str, torch.Tensor]) -> None:
        """All ranks call it, after loading the model."""
        self._dp.load_compression_state(dict(state_dict))

    def check_replicas(self) -> list[str]:
        """Names of parameters and buffers that differ between the ranks. All ranks call it."""
        return list(self._dp.differing([name for name, _ in self.module.named_buffers()]))

    # --- the model shines through

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "_modules" not in self.__dict__ or "module" not in self.__dict__["_modules"]:
                raise
        value = getattr(self.module, name)
        if callable(value) and not isinstance(value, nn.Module) and "_dp" in self.__dict__:
            self._dp.refresh()  # a method may train: the plan must fit the model as it is now
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "module" and "_dp" in self.__dict__:
            raise ConfigError("another model needs another DataParallel: wrap it")
        if name in OWN or "_dp" not in self.__dict__:
            super().__setattr__(name, value)
        else:
            setattr(self.module, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.module, name)

    # nn.Module has these itself, and what they put into the wrapper would be in no state_dict.

    def register_buffer(self, *args: Any, **kwargs: Any) -> None:
        self.module.register_buffer(*args, **kwargs)

    def register_parameter(self, *args: Any, **kwargs: Any) -> None:
        self.module.register_parameter(*args, **kwargs)

    def add_module(self, *args: Any, **kwargs: Any) -> None:
        self.module.add_module(*args, **kwargs)

    def register_module(self, *args: Any, **kwargs: Any) -> None:
        self.module.register_module(*args, **kwargs)

    def __getitem__(self, key: Any) -> Any:
        return self.module[key]  # type: ignore[index]

    def __len__(self) -> int:
        return len(self.module)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.module)  # type: ignore[call-overload, no-any-return]

    def __bool__(self) -> bool:
        return True  # also around a model of length 0

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Any, *args: Any, **kwargs: Any) -> Any:
        """Also of a checkpoint that torch's DistributedDataParallel wrote, whose keys begin with "module."."""
        if is_of_ddp(state_dict, self.module.state_dict()):
            state_dict = {key.removeprefix(DDP): value for key, value in state_dict.items()}
        return self.module.load_state_dict(state_dict, *args, **kwargs)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        """As a part of another model: the keys there have no "module." either, and what torch loads from has."""
        mine = {key[len(prefix) :]: key for key in state_dict if key.startswith(prefix)}
        if is_of_ddp(mine, self.module.state_dict()):
            return
        # All at once: a model may have a part of this name itself, and the new key of one be the old key of another.
        values = {f"{prefix}{DDP}{rest}": state_dict.pop(key) for rest, key in mine.items()}
        state_dict.update(values)

    def named_parameters(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Any:
        return self.module.named_parameters(prefix, recurse, remove_duplicate)

    def named_buffers(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Any:
        return self.module.named_buffers(prefix, recurse, remove_duplicate)

    def __getstate__(self) -> Any:
        raise ConfigError("DataParallel belongs to its ranks: save dp.state_dict() or dp.module")

    def __deepcopy__(self, memo: Any) -> Any:
        raise ConfigError("DataParallel belongs to its ranks: copy dp.module")


def is_of_ddp(keys: Iterable[str], own: Container[str]) -> bool:
    """Whether they are a model's keys as torch's DistributedDataParallel writes them. `own`: the model's; it may have a part
    named "module", so that one look at the beginning of a key does not tell."""
    keys = list(keys)
    with_prefix = sum(key in own for key in keys)
    without = sum(key.removeprefix(DDP) in own for key in keys)
    return all(key.startswith(DDP) for key in keys) and without > with_prefix


def parameters_of(module: nn.Module) -> list[nn.Parameter]:
    """list(module.parameters()), without the names: this runs in every forward."""
    found: list[nn.Parameter] = []
    seen: set[int] = set()
    modules = [module]
    seen_modules: set[int] = set()
    while modules:
        one = modules.pop()
        if id(one) in seen_modules:
            continue
        seen_modules.add(id(one))
        for parameter in one._parameters.values():
            if parameter is not None and id(parameter) not in seen:
                seen.add(id(parameter))
                found.append(parameter)
        modules += [child for child in reversed(one._modules.values()) if child is not None]
    return found


__all__ = ["DataParallel"]
