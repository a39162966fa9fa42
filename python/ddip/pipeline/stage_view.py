"""A stage, looked at from any rank between two runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ddip.errors import ConfigError
from ddip.pipeline.memory import readable
from ddip.replicas import gather_objects

if TYPE_CHECKING:
    from ddip.pipeline.front import Pipeline


@dataclass
class StageView:
    """As it was when it was asked for; `weights` are copies on the CPU, the newest true ones."""

    stage: int
    rank: int
    module: str
    version: int  # steps that it has done
    rates: list[float]  # of each parameter group, in the next step
    momenta: list[float]  # likewise: SGD's momentum, Adam's first beta, NAdam's μ, which grows for thousands of steps
    weights: dict[str, torch.Tensor]

    def __str__(self) -> str:
        numbers = sum(tensor.numel() for tensor in self.weights.values())
        size = sum(tensor.nbytes for tensor in self.weights.values())
        rates = ", ".join(f"{rate:g}" for rate in self.rates)
        momenta = ", ".join(f"{momentum:.3g}" for momentum in self.momenta)
        lines = [
            f"stage {self.stage} on rank {self.rank}: {numbers} numbers ({readable(size)}), {self.version} steps done"
            + (f", rate {rates}" if rates else "")
            + (f", momentum {momenta}" if any(self.momenta) else "")
        ]
        width = max((len(name) for name in self.weights), default=0)
        for name, tensor in self.weights.items():
            values = tensor.double()
            shape = "×".join(map(str, tensor.shape)) or "one number"
            spread = f"mean {values.mean():+.3g}, largest {values.abs().max():.3g}" if tensor.numel() else ""
            lines.append(f"  {name:<{width}}  {shape:<14} {spread}".rstrip())
        return "\n".join([*lines, self.module])

    __repr__ = __str__


def look_at(pipe: Pipeline, stage: int) -> StageView:
    """All ranks call it, and all get the answer."""
    if not 0 <= stage < len(pipe.modules):
        raise ConfigError(f"stage {stage}: expected one from 0 to {len(pipe.modules) - 1}")
    mine = None
    if stage in pipe.mine:
        stepping = pipe.steppings.get(stage)
        mine = StageView(
            stage, pipe.ranks.rank, str(pipe.modules[stage]), stepping.steps if stepping else 0,
            [float(group["lr"]) for group in stepping.groups] if stepping else [],
            [momentum_of(group, stepping.steps + 1) for group in stepping.groups] if stepping else [],
            {name: value for name, value in pipe.stage_state_dict(stage).items() if isinstance(value, torch.Tensor)},
        )  # fmt: skip
    views: list[StageView | None] = gather_objects(mine, pipe.ranks)
    return next(view for view in views if view is not None)


def momentum_of(group: dict[str, Any], step: int) -> float:
    """Of this step, from 1 on."""
    if "betas" not in group:
        return float(group.get("momentum", 0.0))
    beta = float(group["betas"][0])
    return beta * (1.0 - 0.5 * 0.96 ** (step * group["momentum_decay"])) if "momentum_decay" in group else beta


def set_rate(pipe: Pipeline, rate: float) -> None:
    """Of every parameter group of this rank's stages, from the next step on. A scheduler goes on from there."""
    if not (isinstance(rate, (int, float)) and 0 <= rate < float("inf")):
        raise ConfigError(f"rate {rate!r}: expected a number from 0 on")
    for stepping in pipe.steppings.values():
        stepping.set_rate(float(rate))
