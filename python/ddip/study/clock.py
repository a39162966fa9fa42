"""When a pipeline would have done its steps: the simulated wall clock of its schedule, in units of the costs."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ddip.pipeline.simulate_order import SYNCHRONOUS
from ddip.study.settings import Settings

if TYPE_CHECKING:
    from ddip.schedule import Plan


def plan_of(settings: Settings, schedule: str, wide: bool = True) -> Plan:
    """`wide`: the window that hides the links; otherwise the textbook's."""
    from ddip.schedule import default_window, make_plan

    # A backward takes twice as long as a forward; steps and predictions take no time.
    costs = [(settings.cost / 3, settings.cost * 2 / 3, 0.0, 0.0, 0.0)] * settings.stages
    links = [settings.link] * (settings.stages - 1)
    per_batch = settings.per_batch(schedule)
    asked: dict[str, Any] = {"costs": costs, "links": links}
    if wide and schedule not in ("seq", "gpipe", "virtual_async"):
        asked["window"] = default_window(settings.stages, costs=costs, links=links)
    if schedule == "virtual_async" and settings.max_staleness >= 0:
        asked["max_staleness"] = settings.max_staleness
    if schedule not in SYNCHRONOUS:
        asked["accumulate"] = settings.accumulate
    batches = settings.length // per_batch
    return make_plan(schedule, stages=settings.stages, micro_batches=per_batch, batches=batches, **asked)


@lru_cache(maxsize=32)
def times_of(settings: Settings, schedule: str) -> list[float]:
    """For each evaluation: when the last stage to do so has done the step before it.

    A synchronous batch is trained in whichever of `gpipe`, `1f1b` and `1f1b` with a wide window is the fastest: they compute the same.
    """
    ways = [(schedule, True)]
    if schedule in SYNCHRONOUS and schedule != "seq":
        ways = [("gpipe", False), ("1f1b", False), ("1f1b", True)]
    versions = [point // settings.per_step(schedule) for point in settings.points]
    found = [_steps_end(plan_of(settings, name, wide), versions) for name, wide in ways]
    return min(found, key=lambda times: times[-1])


def _steps_end(plan: Plan, versions: list[int]) -> list[float]:
    timeline = plan.simulate().timeline
    ends = dict.fromkeys(versions, 0.0)
    for actions, times in zip(plan.ranks, timeline, strict=True):
        for action, (_, end) in zip(actions, times, strict=True):
            if action.kind == "step" and action.version in ends:
                ends[action.version] = max(ends[action.version], end)
    return [ends[version] for version in versions]
