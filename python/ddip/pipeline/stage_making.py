"""A stage as the executor takes it: its module's calls, its weights, optimizer, policy and limits."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch

import ddip
from ddip.communicators import engine
from ddip.errors import ConfigError
from ddip.pipeline.auxiliary import taken
from ddip.pipeline.hidden_weights import hidden_weights
from ddip.pipeline.memory import Activations
from ddip.pipeline.policy_choice import refuse_other_rule, with_betas_by_stage
from ddip.pipeline.rates import MakeScheduler
from ddip.pipeline.stage_calls import StageCalls, weakly
from ddip.pipeline.stepping import MakeOptimizer, Stepping

if TYPE_CHECKING:
    from ddip.pipeline.front import Pipeline


def made_stage(
    pipe: Pipeline,
    index: int,
    optimizer: MakeOptimizer,
    scheduler: MakeScheduler | None,
    clip: float | None,
    recompute: bool | None,
) -> Any:
    """`_engine.Stage`; the pipeline gets what belongs to it in Python."""
    native = engine()
    module = pipe.modules[index]
    last = index == len(pipe.modules) - 1
    stage = native.Stage()
    stage.index = index
    stage.name = f"stage {index} ({pipe.kinds[index]})"
    stage.incoming = [number for number, (_, to) in enumerate(pipe.edges) if to == index]
    stage.outgoing = [number for number, (start, _) in enumerate(pipe.edges) if start == index]
    trained = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    if trained:
        refuse_half_weights(pipe.precision, stage.name, trained)
        policy = pipe.make_policy()
        pipe.policies[index] = policy
        apart = pipe.prepared_staleness[index] > 0 or "spectrain" in pipe.policy_name or pipe.smoothing.radius > 0
        if pipe.policy_options.get("nesterov_by_stage"):
            optimizer = with_betas_by_stage(optimizer, pipe.prepared_staleness[index], len(pipe.modules))
        weights = native.Weights(list(trained.values()), list(trained), apart)
        stepping = Stepping(weights, list(trained), optimizer, scheduler, stage.name)
        refuse_other_rule(stage.name, stepping, pipe.policy_name)
        pipe.steppings[index] = stepping
        stage.versions = native.Versions(
            weights,
            policy,
            weakly(stepping.state),
            weakly(stepping.rates),
            weakly(stepping.step),
            weakly(stepping.stepped),
            index,
            len(pipe.modules),
        )
        pipe.versions[index] = stage.versions
        stage.gaps = native.Gaps() if pipe.gaps else None
    stage.device = device_of(pipe, index)
    stage.recompute = bool(recompute) and not last
    stage.clip = clip or 0.0
    stage.clip_share = pipe.clip_share(index)
    if pipe.clipping == "proportional":
        stage.clip *= stage.clip_share

    activations = Activations(module, stage.recompute)
    hidden = hidden_weights(pipe.modules, index)
    calls = StageCalls(stage.name, pipe.parts[index], stage.device, pipe.precision, activations, hidden)
    pipe.calls[index] = calls
    stage.forward = weakly(calls.forward)
    stage.auxiliary_losses = taken
    stage.buffers = weakly(calls.buffers)
    if index == 0 or last:
        stage.input = weakly(calls.sample)
    if last:
        calls.is_last, calls.loss_of = True, pipe.loss
        stage.loss = weakly(calls.loss)
    return stage


def refuse_half_weights(precision: str, stage: str, trained: dict[str, torch.nn.Parameter]) -> None:
    for name, parameter in trained.items():
        if precision == "fp16" and parameter.dtype == torch.float16:
            raise ConfigError(
                f"precision='fp16': {name!r} of {stage} is of half precision itself, and its gradients could not be unscaled; "
                "expected float32"
            )


def device_of(pipe: Pipeline, index: int) -> torch.device:
    """Where its tensors are. A stage that has none computes where others of this rank do."""
    here = [other for other, rank in enumerate(pipe.placement) if rank == pipe.place]
    for asked in (index, *here):
        for tensor in itertools.chain(pipe.modules[asked].parameters(), pipe.modules[asked].buffers()):
            return tensor.device
    elsewhere = (tensor.device for module in pipe.modules for tensor in module.parameters())
    return ddip.device() if any(place.type == "cuda" for place in elsewhere) else torch.device("cpu")
