"""Learning rates: what a scheduler makes of them now, what it will make of them, and those that are set by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from ddip.errors import ConfigError

MakeScheduler = Callable[[torch.optim.Optimizer], Any]

# Where schedulers keep rates from which they compute each later one: in parameter groups, and in lists of their own.
IN_GROUPS = ("initial_lr", "max_lr", "min_lr")
IN_LISTS = ("base_lrs", "max_lrs")


def scheduler_of(make: MakeScheduler, optimizer: torch.optim.Optimizer) -> Any:
    try:
        made = make(optimizer)
    except TypeError as error:
        raise ConfigError(f"scheduler= is called with a stage's optimizer, and said: {error}") from error
    if not hasattr(made, "step"):
        raise ConfigError(f"scheduler= gave {made!r}; expected a function of the optimizer that makes a scheduler")
    return made


def parts_of_scheduler(scheduler: Any) -> list[Any]:
    """Those that know first rates: it, and those that it is made of (SequentialLR, ChainedScheduler)."""
    parts = [scheduler] if hasattr(scheduler, "base_lrs") else []
    return parts + [part for one in getattr(scheduler, "_schedulers", []) for part in parts_of_scheduler(one)]


class FirstRates:
    """What a scheduler computes rates from, as it was when it was made."""

    def __init__(self, groups: list[dict[str, Any]], scheduler: Any) -> None:
        self._in_groups = [{key: float(group[key]) for key in IN_GROUPS if key in group} for group in groups]
        self._in_lists = [  # by name: a scheduler that is loaded has other lists
            (part, name, [float(rate) for rate in rates])
            for part in parts_of_scheduler(scheduler)
            for name in IN_LISTS
            if (rates := getattr(part, name, None))
        ]

    def scale(self, index: int, group: dict[str, Any], factor: float) -> None:
        """Of one group: every rate that comes from them will be so much larger than it would have been at first."""
        for key, first in self._in_groups[index].items():
            group[key] = first * factor
        for part, name, first_rates in self._in_lists:
            getattr(part, name)[index] = first_rates[index] * factor


class Future:
    """What a scheduler will make of the rates: another one of its kind runs ahead on an optimizer without weights."""

    def __init__(self, optimizer: torch.optim.Optimizer | None, make_scheduler: MakeScheduler | None) -> None:
        assert optimizer and make_scheduler
        groups = [
            {
                **{key: value for key, value in group.items() if key != "params"},
                "params": [torch.nn.Parameter(torch.zeros(1))],
            }
            for group in optimizer.param_groups
        ]
        for group in groups:
            group["lr"] = group.pop("initial_lr", group["lr"])
        self._first = [float(group["lr"]) for group in groups]
        self._optimizer = torch.optim.SGD(groups, lr=0.1)
        self._scheduler = make_scheduler(self._optimizer)
        if isinstance(self._scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            raise ConfigError(
                "scheduler=: ReduceLROnPlateau looks at results that are not there yet; expected one of steps"
            )
        self._known = [self._now()]

    def _now(self) -> list[float]:
        return [float(group["lr"]) for group in self._optimizer.param_groups]

    def planned(self, step: int) -> list[float]:
        """By group, if nobody changes them by hand."""
        while len(self._known) <= step:
            self._optimizer.step()
            self._scheduler.step()
            self._known.append(self._now())
        return self._known[step]

    def factor(self, step: int, index: int, rate: float) -> float:
        """By how much `rate`, of this group at this step, is larger than was planned. Where that was 0 (a warm-up's first step) it is
        compared with the rate that the scheduler was given."""
        planned = self.planned(step)[index] or self._first[index]
        return rate / planned if planned and planned != rate else 1.0

    def rates(self, step: int, count: int, groups: Iterable[dict[str, Any]]) -> list[list[float]]:
        """By group: those of `count` steps from `step` on. A rate that somebody has changed by hand changes the later ones alike."""
        found = []
        for index, group in enumerate(groups):
            planned = [self.planned(number)[index] for number in range(step, step + count)]
            actual = float(group["lr"])
            # Where 0 was planned, the rate now says nothing, but the one does that the scheduler computes later ones from.
            factor = self.factor(
                step, index, actual if planned[0] else float(group.get("initial_lr", self._first[index]))
            )
            found.append([actual, *(rate * factor if factor != 1.0 else rate for rate in planned[1:])])
        return found
