"""Which samples of a loader this rank reads.

In training, `ranks` batches of the loader are one step: each rank has a batch of the size that the user chose. In validation
each batch of the loader is computed in parts, and put together again: metrics see what one process sees.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from fastai.data.load import DataLoader, _FakeLoader
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import IterableDataset

from ddip import replicas
from ddip.errors import ConfigError

Batch = list[int]


@dataclass
class Part:
    loader: Any
    sizes: list[list[int]]  # of each joint batch: how many of its samples each rank has

    def weight(self, number: int, rank: int) -> float:
        """What this rank's mean counts in the mean over the ranks, so that every sample counts the same."""
        sizes = self.sizes[number]
        return sizes[rank] * len(sizes) / sum(sizes)


def part_of(loader: Any, ranks: Any, training: bool) -> Part | None:
    """None: it cannot be split (an iterable, a list of batches), so each rank takes all of it."""
    batches = batches_of(loader)
    if batches is None:
        return None
    check_alike(loader, batches, ranks, training)
    batches = broadcast_batches(batches, ranks)
    if training:
        step = ranks.world_size
        batches = [sum(batches[begin : begin + step], []) for begin in range(0, len(batches), step)]
    sizes = [split(len(batch), ranks.world_size) for batch in batches]
    return Part(
        loader_of(loader, [own(batch, of, ranks.rank) for batch, of in zip(batches, sizes, strict=True)]), sizes
    )


def batches_of(loader: Any) -> list[Batch] | None:
    """The indexes of the batches that the loader would give now, shuffled anew if it shuffles."""
    if isinstance(loader, DataLoader):
        if not loader.indexed or loader.n is None or loader.bs is None:
            return None
        loader.randomize()
        indexes = [*loader.get_idxs()]
        batches = [indexes[begin : begin + loader.bs] for begin in range(0, len(indexes), loader.bs)]
        if loader.drop_last and batches and len(batches[-1]) < loader.bs:
            batches.pop()
        return batches if all(isinstance(index, int) for index in indexes) else None
    if isinstance(loader, TorchLoader):
        if loader.batch_sampler is None or isinstance(loader.dataset, IterableDataset):
            return None
        return [[int(index) for index in batch] for batch in loader.batch_sampler]
    return None


def check_alike(loader: Any, batches: list[Batch], ranks: Any, training: bool) -> None:
    counts = replicas.gather_objects(sum(map(len, batches)), ranks)
    if len(set(counts)) > 1:
        what = "training" if training else "validation"
        each = ", ".join(f"{count} on rank {rank}" for rank, count in enumerate(counts))
        raise ConfigError(
            f"the {what} set has {each} samples: every rank must make the same one (a random split needs a seed)"
        )


def broadcast_batches(batches: list[Batch], ranks: Any) -> list[Batch]:
    """Rank 0's order. The number of samples is the same on all, so the number of batches is."""
    flat = torch.tensor(sum(batches, []), dtype=torch.int64)
    if flat.numel() == 0:
        return []
    ranks.broadcast(flat, 0)
    indexes = iter(flat.tolist())
    return [[next(indexes) for _ in batch] for batch in batches]


def split(count: int, parts: int) -> list[int]:
    return [count // parts + (number < count % parts) for number in range(parts)]


def own(batch: Batch, sizes: Sequence[int], rank: int) -> Batch:
    begin = sum(sizes[:rank])
    # A rank must take part in every step: one sample that counts nothing where there are fewer than ranks.
    return batch[begin : begin + sizes[rank]] or batch[:1]


def loader_of(loader: Any, batches: list[Batch]) -> Any:
    """The same loader with these batches. All but the last have one size."""
    if isinstance(loader, TorchLoader):
        return TorchLoader(
            loader.dataset, batch_sampler=batches, num_workers=loader.num_workers, collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory, timeout=loader.timeout, worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context, generator=loader.generator,
        )  # fmt: skip
    found = copy.copy(loader)
    kind = type(loader)
    found.__class__ = type(kind.__name__, (PartOfLoader, kind), {"__module__": kind.__module__})
    found.ddip_batches = len(batches)
    found.get_idxs = Constant(sum(batches, []))
    found.bs = len(batches[0]) if batches else loader.bs
    found.drop_last = False
    fake = loader.fake_l
    found.fake_l = _FakeLoader(
        found, fake.pin_memory, fake.num_workers, fake.timeout,
        persistent_workers=fake.persistent_workers, pin_memory_device=fake.pin_memory_device,
    )  # fmt: skip
    return found


class Constant:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self) -> Any:
        return self.value


class PartOfLoader:
    ddip_batches: int

    def __len__(self) -> int:
        return self.ddip_batches


__all__ = ["Part", "part_of"]
