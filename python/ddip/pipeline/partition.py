"""From a model to a plan of stages, in memory or in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ddip._engine import PartitionCosts, PartitionPlan, Placement
from ddip.errors import ConfigError
from ddip.pipeline.faithful_cut import check_cut
from ddip.pipeline.profile import profile
from ddip.pipeline.saved_plan import plan_of_save
from ddip.pipeline.traced import Traced
from ddip.pipeline.untouched import untouched

PLACEMENTS = {"single": Placement.single, "mixed": Placement.mixed, "mirrored": Placement.mirrored}
LARGEST_FILE = 64 << 20


def plan_for(
    traced: Traced,
    inputs: tuple[Any, ...],
    devices: int,
    *,
    placement: str = "single",
    memory_cap: int = 0,
    recompute: bool = False,
    link_bytes_per_ms: float = 0.0,
    name: str = "",
    times: int = 3,
    seed: int = 0,
) -> PartitionPlan:
    """The model measured and cut. `inputs`: one micro-batch. `placement`: one stage per device (single), several that are
    not adjacent (mixed), or the way in and out through the devices, so that no skip crosses a link (mirrored).
    `memory_cap`: bytes of one device. `link_bytes_per_ms`: 0 means links cost nothing."""
    if placement not in PLACEMENTS:
        raise ConfigError(f"placement={placement!r} is unknown, one of {', '.join(PLACEMENTS)} was expected")
    if devices < 1:
        raise ConfigError(f"{devices} stages; expected at least one")
    costs = PartitionCosts(link_bytes_per_ms, recompute, memory_cap)
    with untouched(traced.model):
        graph = profile(traced, inputs, times=times)
        plan = PartitionPlan(name or type(traced.model).__name__, graph, devices, costs, PLACEMENTS[placement], seed)
        check_cut(traced, plan.stages, inputs)
    return plan


def refuse_for(plan: PartitionPlan, traced: Traced, inputs: tuple[Any, ...]) -> None:
    """If it is not a plan for this model: other layers, edges or shapes, or stages that are not the model."""
    with untouched(traced.model):
        plan.check_is_for(profile(traced, inputs, times=0))
        check_cut(traced, plan.stages, inputs)


def text_of(path: str | Path) -> str:
    if Path(path).exists() and not Path(path).is_file():  # a pipe would be waited for
        raise ConfigError(f"{path}: it is no file")
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(LARGEST_FILE + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {getattr(error, 'strerror', None) or 'it is no text'}") from None
    if len(text) > LARGEST_FILE:
        raise ConfigError(f"{path}: it is longer than any plan")
    return text


def read_plan(path: str | Path, traced: Traced | None = None, inputs: tuple[Any, ...] | None = None) -> PartitionPlan:
    """A plan that somebody may have edited, or that of a pipeline that was saved in a folder. With the traced model and a micro-batch it is also checked that the plan is
    for this model: layers, edges, shapes, and what its stages compute."""
    if not isinstance(path, (str, Path)):  # open() takes numbers, too: those of open files
        raise ConfigError(f"{path!r} is no plan; expected the name of its file")
    plan = PartitionPlan.read(plan_of_save(str(path)) if Path(path).is_dir() else text_of(path), str(path))
    if traced is not None and inputs is not None:
        try:
            refuse_for(plan, traced, inputs)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
    return plan
