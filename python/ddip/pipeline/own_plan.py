"""A plan that somebody has written or edited, to be run in place of the one that is made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddip.communicators import engine
from ddip.errors import ConfigError

if TYPE_CHECKING:
    from ddip.pipeline.front import Pipeline


def own_plan(pipe: Pipeline, given: Any, batches: int) -> Any:
    """Of so many batches. None: nobody has one."""
    if given is None:
        return None
    native = engine()
    if isinstance(given, (str, Path)):
        given = native.Plan.load(str(given))
    if not isinstance(given, native.Plan):
        raise ConfigError(
            f"plan= is of type {type(given).__name__}; expected a ddip.schedule.Plan, or the file of one, as pipe.plan_of(batches) gives it"
        )
    if batches == 0:
        raise ConfigError("plan= without batches: there is nothing to run")
    steps_meet = not pipe.asynchronous and (pipe.clipping == "global" or bool(pipe.loss_scaling))
    given.require_runnable(pipe.plan_of(batches), pipe.prepared_staleness, steps_meet)
    return given
