"""What ranks read: shards of a data set that are disjoint and miss nothing, and detector events read ahead by threads."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch

import ddip
from ddip._engine import EventBatch, EventLoader, Ledger, SamplerOptions
from ddip._engine import Sampler as NativeSampler

__all__ = ["Ledger", "Loader", "Sampler"]


Place = tuple[int, int]  # rank, number of ranks


def _place(rank: int | None, world: int | None) -> Place:
    return ddip.rank() if rank is None else rank, ddip.world_size() if world is None else world


def _sampling(samples: int, batch: int, place: Place, seed: int, shuffle: bool) -> SamplerOptions:
    for name, value in {"samples": samples, "batch": batch, "seed": seed}.items():
        if value < 0:
            raise ddip.ConfigError(f"{name}={value}: expected a number that is not negative")
    return SamplerOptions(samples, batch, *place, seed, shuffle)


def _batches(samples: int, place: Place, batch: int) -> int:
    rank, world = place
    mine = (samples + world - 1 - rank) // world  # every world-th sample, from the rank-th on
    return -(-mine // batch)


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
        self._samples, self._batch, self._place = samples, batch, _place(rank, world)
        self._sampler = NativeSampler(_sampling(samples, batch, self._place, seed, shuffle))
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
        return _batches(self._samples, self._place, self._batch)


class Loader:
    """Batches (images, labels) of a folder that `ddip data synth` made, or of a .parquet file; read ahead by threads.

    `for images, labels in loader` is one epoch: this rank's share, in an order that seed and epoch fix. `ledger` says
    which samples this rank was given in it. `part=(0, 900)`: only the events from the first number to before the second.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        batch: int = 32,
        *,
        part: tuple[int, int] | None = None,
        rank: int | None = None,
        world: int | None = None,
        seed: int = 0,
        shuffle: bool = True,
        threads: int = 2,
        ahead: int = 4,
        classes: int = 3,
    ) -> None:
        if Path(path).suffix == ".parquet" or (Path(path) / "events.parquet").exists():
            try:
                import pyarrow  # noqa: F401  its Arrow must be the one in this process
            except ImportError as error:
                raise ddip.ConfigError(f"{path}: Parquet needs pyarrow, which is not installed here") from error
        self._batch, self._place = batch, _place(rank, world)
        sampling = _sampling(0, batch, self._place, seed, shuffle)
        if part is not None and min(part) < 0:
            raise ddip.ConfigError(f"part={part}: expected a first event and the one behind the last")
        self._loader = EventLoader(os.fspath(path), sampling, part, threads, ahead, classes)
        self._epoch = -1
        self._done = Ledger()
        self._turn = 0
        self.ledger = Ledger()

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """Of all images: events, channels, height, width."""
        return tuple(self._loader.shape)  # type: ignore[return-value]

    def set_epoch(self, epoch: int, done: Ledger | None = None) -> None:
        """The next iteration is this epoch, without the samples in `done` (the same on all ranks)."""
        self._epoch = epoch - 1
        self._done = done or Ledger()

    def __len__(self) -> int:
        """Batches of a whole epoch, for this rank."""
        return _batches(self.shape[0], self._place, self._batch)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        self._epoch += 1
        done, self._done = self._done, Ledger()
        self.ledger = Ledger()
        self._turn += 1
        turn = self._turn
        self._loader.begin_epoch(self._epoch, done)
        while (batch := self._next(turn)) is not None:
            self.ledger.add(batch.samples)
            yield batch.images, batch.labels

    def _next(self, turn: int) -> EventBatch | None:
        if turn != self._turn:
            raise RuntimeError("another iteration of this loader has begun; make a second Loader to read twice at once")
        return self._loader.next()
