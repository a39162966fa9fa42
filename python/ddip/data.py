"""What ranks read: shards of a data set that are disjoint and miss nothing, and detector events read ahead by threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import ddip
from ddip._engine import EventLoader, Ledger, SamplerOptions
from ddip._engine import Sampler as NativeSampler

__all__ = ["Ledger", "Loader", "Sampler"]


def _sampling(samples: int, batch: int, rank: int | None, world: int | None, seed: int, shuffle: bool) -> Any:
    for name, value in {"samples": samples, "batch": batch, "seed": seed}.items():
        if value < 0:
            raise ddip.ConfigError(f"{name}={value}: expected a number that is not negative")
    return SamplerOptions(
        samples,
        batch,
        ddip.rank() if rank is None else rank,
        ddip.world_size() if world is None else world,
        seed,
        shuffle,
    )


class Sampler:
    """This rank's batches of sample numbers, for `DataLoader(dataset, batch_sampler=ddip.data.Sampler(len(dataset), 32))`.

    Each iteration is an epoch with an order of its own; ranks are disjoint, together they read everything, nothing is
    padded or dropped. Ranks may differ by one sample: use `DataParallel.join` where that gives one batch more.
    """

    def __init__(
        self,
        samples: int,
        batch: int = 1,
        *,
        rank: int | None = None,
        world: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        self._batch = batch
        self._sampler = NativeSampler(_sampling(samples, batch, rank, world, seed, shuffle))
        self._epoch = -1
        self._done = Ledger()

    def set_epoch(self, epoch: int, done: Ledger | None = None) -> None:
        """The next iteration is this epoch, without the samples in `done` (the same on all ranks)."""
        self._epoch = epoch - 1
        self._done = done or Ledger()

    def __iter__(self) -> Iterator[list[int]]:
        self._epoch += 1
        done, self._done = self._done, Ledger()
        self._sampler.begin_epoch(self._epoch, done)
        while batch := self._sampler.next():
            yield batch

    def __len__(self) -> int:
        self._sampler.begin_epoch(self._epoch + 1, self._done)
        return -(-self._sampler.remaining // self._batch)


class Loader:
    """Batches (images, labels) of a folder that `ddip data synth` made, or of a .parquet file; read ahead by threads.

    `for images, labels in loader` is one epoch: this rank's share, in an order that seed and epoch fix. `ledger` says
    which samples this rank was given in it.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        batch: int = 32,
        *,
        rank: int | None = None,
        world: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        threads: int = 2,
        ahead: int = 4,
        classes: int = 3,
    ) -> None:
        if Path(path).suffix == ".parquet" or (Path(path) / "events.parquet").exists():
            import pyarrow  # noqa: F401  its Arrow must be the one in this process

        self._batch = batch
        self._loader = EventLoader(
            os.fspath(path), _sampling(0, batch, rank, world, seed, shuffle), threads, ahead, classes
        )
        self._epoch = -1
        self._done = Ledger()
        self.ledger = Ledger()

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of all images: events, channels, height, width."""
        return tuple(self._loader.shape)  # type: ignore[return-value]

    def set_epoch(self, epoch: int, done: Ledger | None = None) -> None:
        """The next iteration is this epoch, without the samples in `done` (the same on all ranks)."""
        self._epoch = epoch - 1
        self._done = done or Ledger()

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        self._epoch += 1
        done, self._done = self._done, Ledger()
        self.ledger = Ledger()
        self._loader.begin_epoch(self._epoch, done)
        while (batch := self._loader.next()) is not None:
            self.ledger.add(batch.samples)
            yield batch.images, batch.labels
