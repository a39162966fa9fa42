"""Which staleness policy a pipeline has, and whether it goes together with its schedule and its optimizer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ddip.communicators import engine
from ddip.errors import ConfigError
from ddip.pipeline.stepping import MakeOptimizer, Stepping, group_of, rule_of


def chosen_policy(
    staleness: str, schedule: str, optimizer: MakeOptimizer, modules: Sequence[torch.nn.Module], is_stale: bool,
    options: Mapping[str, Any],
) -> tuple[str, list[str]]:  # fmt: skip
    """Its name, and what people should know of it. `is_stale`: some forward reads weights that are old at its backward."""
    native = engine()
    trained = ([p for p in module.parameters() if p.requires_grad] for module in modules)
    example = optimizer(next(filter(None, trained), [torch.nn.Parameter(torch.zeros(1))]))
    rule = rule_of(example)
    any_complex = any(p.is_complex() for module in modules for p in module.parameters() if p.requires_grad)
    name = automatic(rule, schedule, is_stale, any_complex) if staleness == "auto" else staleness
    described = native.StageOptimizer(
        rule=native.rule_of(rule) if rule else native.Rule.other,
        groups=[group_of(group) for group in example.param_groups],
    )
    notes = []
    for fit, why in (native.schedule_takes(schedule, name), native.optimizer_takes(described, name)):
        if fit == native.Fit.refused:
            raise ConfigError(f"staleness={name!r}: {why}")
        if why:
            notes.append(f"staleness={name!r}: {why}")
    notes += about_nesterov(name, bool(options.get("nesterov_by_stage")), example.param_groups)
    return "stash" if schedule == "2bw" else name, notes  # its backwards read what their forwards did


def refuse_other_rule(stage: str, stepping: Stepping, policy: str) -> None:
    """The policy was chosen by the first stage's optimizer; `optimizer=` may make another kind for each."""
    fit, why = engine().optimizer_takes(stepping.state(), policy)
    if fit == engine().Fit.refused:
        raise ConfigError(f"staleness={policy!r}: {stage} is trained by {type(stepping.optimizer).__name__}, and {why}")


# Of the preset, and below what it is another one.
NESTEROVS_BETA, SMALL_BETA = 0.99, 0.95


def about_nesterov(name: str, by_stage: bool, groups: Sequence[dict[str, Any]]) -> list[str]:
    """The optimizer is the user's; how large its momentum is meant to be is the policy's."""
    if "nesterov" not in name.split("+") or by_stage:
        return []
    betas = [group["betas"][0] for group in groups if group["betas"][0] < SMALL_BETA]
    return [
        f"staleness={name!r}: NAdam has beta1 {beta:g}; the policy is meant with {NESTEROVS_BETA:g} (betas=({NESTEROVS_BETA:g}, 0.999)), "
        'or with staleness_options={"nesterov_by_stage": True}'
        for beta in betas[:1]
    ]


def with_betas_by_stage(make: MakeOptimizer, staleness: int, stages: int) -> MakeOptimizer:
    """NAdams whose first beta grows with the versions of its stage: with the steps that its weights are old at the most."""

    def made(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        optimizer = make(parameters)
        for group in optimizer.param_groups if isinstance(optimizer, torch.optim.NAdam) else []:
            beta1, beta2 = group["betas"]
            group["betas"] = engine().nesterov_beta1(beta1, staleness + 1, stages), beta2
        return optimizer

    return made


def automatic(rule: str | None, schedule: str, is_stale: bool, any_complex: bool) -> str:
    native = engine()
    if not is_stale:
        return "none"
    # Adam's squares of complex weights are of another kind than its predictions know.
    known = rule is not None and (rule == "sgd" or not any_complex)
    name = str(native.auto_policy(native.rule_of(rule))) if known else "stash"
    refused = native.schedule_takes(schedule, name)[0] == native.Fit.refused
    return "none" if refused else name  # 2bw and paci say by themselves which weights are read
