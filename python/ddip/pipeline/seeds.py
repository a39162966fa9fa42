"""Every forward has a seed of its own, so that recomputation and replay need no stored generator state."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def seed_of(run: int, stage: int, micro_batch: int) -> int:
    return _mixed(_mixed(run + stage) + micro_batch) >> 1


def _mixed(value: int) -> int:
    """splitmix64."""
    low = (1 << 64) - 1
    value = (value + 0x9E3779B97F4A7C15) & low
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & low
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & low
    return value ^ (value >> 31)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The generator's state from before is there again afterwards."""
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed: where there is no GPU yet, that notes a stack trace each time, for later.
        torch.default_generator.manual_seed(seed)
        yield
