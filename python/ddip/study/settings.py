"""What all runs of a staleness study have in common, and what one run is."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ddip.pipeline.simulate_order import SYNCHRONOUS

CHECKS = 16  # times that a run is evaluated on its way


@dataclass(frozen=True)
class Settings:
    stages: int = 4
    schedule: str = "async_1f1b"
    accumulate: int = 1  # micro-batches of a step, of asynchronous schedules
    micro_batches: int = 8  # of a batch, of synchronous schedules
    steps: int = 200  # of the asynchronous schedule
    cost: float = 1.0  # c: forward and backward of a micro-batch on one stage
    link: float = 0.5  # x: a message between two stages
    max_staleness: int = -1  # of virtual_async; -1: no other bound than the stages
    target: float = 0.0  # accuracy; 0: the task's
    held_out: int = 0  # samples; 0: the task's

    @property
    def unit(self) -> int:
        """Micro-batches after which every schedule has just stepped."""
        return math.lcm(self.accumulate, self.micro_batches)

    @property
    def length(self) -> int:
        """Micro-batches of a run, the same for all."""
        return self.unit * math.ceil(self.steps * self.accumulate / self.unit)

    @property
    def points(self) -> list[int]:
        """Micro-batches after which a run is evaluated."""
        units = self.length // self.unit
        return sorted({self.unit * math.ceil(units * point / CHECKS) for point in range(1, CHECKS + 1)})

    def per_step(self, schedule: str) -> int:
        return self.micro_batches if schedule in SYNCHRONOUS and schedule != "seq" else self.accumulate

    def per_batch(self, schedule: str) -> int:
        """`seq` is one process that steps as often as the asynchronous schedule: nothing is stale."""
        return self.accumulate if schedule == "seq" else self.micro_batches


@dataclass(frozen=True)
class Run:
    """`phase`: sweep (to find the rate) or final, on other seeds."""

    task: str
    schedule: str
    policy: str
    optimizer: str
    rate: float
    seed: int
    phase: str

    def __str__(self) -> str:
        return (
            f"{self.task}, {self.schedule}, {self.policy} with {self.optimizer}, rate {self.rate:g}, seed {self.seed}"
        )
