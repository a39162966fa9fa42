"""Where a saved pipeline was cut: measured again, a model may be cut elsewhere, and what was saved would not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddip.communicators import engine
from ddip.errors import ConfigError

if TYPE_CHECKING:
    from ddip.pipeline.front import Pipeline


def plan_of_save(folder: str) -> str:
    """The text of its plan."""
    manifest = engine().CheckpointStore(folder).last()
    about = json.loads(manifest.about) if manifest else None
    plan = about.get("plan") if isinstance(about, dict) else None
    if not isinstance(plan, str):
        raise ConfigError(f"{folder}: no pipeline with a plan is saved there; expected one that was made with example=")
    return plan


def refuse_other_cut(pipe: Pipeline, about: dict[str, Any], place: str) -> None:
    """Before anything is said of weights that are in another stage now."""
    plan = about.get("plan")
    if not isinstance(plan, str) or not pipe.cut or not pipe.cut.plan:
        return
    theirs = engine().PartitionPlan.read(plan, place).stages
    if len(theirs) == len(pipe.cut.plan.stages) and theirs != pipe.cut.plan.stages:
        raise ConfigError(
            f"{place}: it was cut elsewhere, into stages that begin with {beginnings(theirs)}, here with "
            f"{beginnings(pipe.cut.plan.stages)}; partition={str(Path(place).absolute())!r} makes a pipeline that is cut as that one"
        )


def beginnings(stages: list[list[str]]) -> str:
    return ", ".join(layers[0] for layers in stages)
