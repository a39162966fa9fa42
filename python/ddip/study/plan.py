"""Which runs a study has: a sweep of rates for every policy, then every policy at its best rate on seeds of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ddip.study.policies import Choice, with_references
from ddip.study.results import Row
from ddip.study.settings import Run, Settings
from ddip.study.tasks import TASKS

SWEEP_SEEDS = 1000  # from here on: no seed that chose a rate is reported
BASELINES = ["seq", "1f1b"]  # nothing stale: steps as often, and a pipeline that waits


@dataclass(frozen=True)
class Cell:
    """A row of the table: what is run with several rates and seeds."""

    task: str
    schedule: str
    policy: str
    optimizer: str

    def run(self, rate: float, seed: int, phase: str) -> Run:
        return Run(self.task, self.schedule, self.policy, self.optimizer, rate, seed, phase)


@dataclass(frozen=True)
class Study:
    settings: Settings
    tasks: list[str]
    choices: list[Choice]
    seeds: int
    sweep_seeds: int
    rates: list[float]  # times the task's usual rate for the optimizer

    @property
    def cells(self) -> list[Cell]:
        choices = with_references(self.choices)
        found = []
        for task in self.tasks:
            for optimizer in dict.fromkeys(optimizer for _, optimizer in choices):
                baselines = [name for name in BASELINES if name != self.settings.schedule]
                found += [Cell(task, schedule, "none", optimizer) for schedule in baselines]
                found += [Cell(task, self.settings.schedule, policy, o) for policy, o in choices if o == optimizer]
        return found

    def rates_of(self, cell: Cell) -> list[float]:
        """Around the usual one; where a step has more micro-batches than the study's schedule, by the root of that larger."""
        larger = self.settings.per_step(cell.schedule) / self.settings.per_step(self.settings.schedule)
        usual = TASKS[cell.task].rates[cell.optimizer] * math.sqrt(larger)
        return [float(f"{usual * factor:.3g}") for factor in self.rates]

    def sweep(self) -> list[Run]:
        """Nothing to choose from: nothing to run."""
        if len(self.rates) == 1:
            return []
        return [
            cell.run(rate, SWEEP_SEEDS + seed, "sweep")
            for cell in self.cells
            for rate in self.rates_of(cell)
            for seed in range(self.sweep_seeds)
        ]

    def final(self, rows: dict[Run, Row]) -> list[Run]:
        return [
            cell.run(self.best_rate(cell, rows), seed, "final") for cell in self.cells for seed in range(self.seeds)
        ]

    def best_rate(self, cell: Cell, rows: dict[Run, Row]) -> float:
        """The one with the smallest mean loss in the sweep. REQUIRES: the sweep is done."""
        if len(self.rates) == 1:
            return self.rates_of(cell)[0]

        def mean_loss(rate: float) -> float:
            runs = [cell.run(rate, SWEEP_SEEDS + seed, "sweep") for seed in range(self.sweep_seeds)]
            return float(sum(rows[run]["loss"] for run in runs)) / len(runs)

        return min(self.rates_of(cell), key=mean_loss)

    def at_edge(self, cell: Cell, rate: float) -> bool:
        """Another rate, outside the sweep, may be better still."""
        rates = self.rates_of(cell)
        return len(rates) > 1 and rate in (min(rates), max(rates))
