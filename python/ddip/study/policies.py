"""Which policies are compared, with which optimizer, and with whom each is compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ddip.errors import ConfigError
from ddip.pipeline.ledger import did_you_mean
from ddip.pipeline.textbook_optimizers import Group
from ddip.pipeline.textbook_policies import OTHER_POLICIES, check_policy, parts_of
from ddip.pipeline.textbook_predictions import PREDICTORS

POLICIES = [
    "none", "stash", "msnag", "aggmsnag", "lwp", "spectrain", "pipemare", "spike", "gap_aware",
    "adam", "adamw", "nadam", "nesterov",
]  # fmt: skip
OPTIMIZERS = ["sgd", "adam", "adamw", "nadam"]
MOMENTUM = 0.9
Choice = tuple[str, str]  # policy, optimizer


def choice_of(text: str) -> Choice:
    """`stash`, `spike+lwp`, `stash@adamw`: without an optimizer, the one that the policy is for."""
    policy, at, optimizer = text.partition("@")
    try:
        parts = parts_of(policy)
    except ConfigError:
        known = [*PREDICTORS, *OTHER_POLICIES]
        wrong = next((part for part in policy.split("+") if part not in known), policy)
        expected = "at most one prediction" if wrong in known or wrong == policy and "+" in policy else ", ".join(known)
        raise ConfigError(f"--policies {text}: expected {expected}{did_you_mean(wrong, known)}") from None
    if at and optimizer not in OPTIMIZERS:
        expected = ", ".join(OPTIMIZERS)
        raise ConfigError(
            f"--policies {text}: expected an optimizer of {expected}{did_you_mean(optimizer, OPTIMIZERS)}"
        )
    own = "nadam" if "nesterov" in parts else next((name for name in OPTIMIZERS[1:] if name in parts), "sgd")
    choice = (policy, optimizer or own)
    if "nesterov" in parts and choice[1] != "nadam":
        raise ConfigError(f"--policies {text}: nesterov is a preset of nadam")
    try:
        check_policy(parts, {}, [Group(choice[1], ["w"], momentum=MOMENTUM)])
    except ConfigError as error:
        raise ConfigError(f"--policies {text}: {error}") from None
    return choice


def refusal(schedule: str, policy: str) -> str:
    """Why this schedule does not take the policy; empty: it does."""
    import torch.distributed  # noqa: F401  # the engine is torch's guest

    from ddip._engine import Fit, schedule_takes

    fit, why = schedule_takes(schedule, policy)
    return why if fit == Fit.refused else ""


def with_references(choices: list[Choice]) -> list[Choice]:
    """`none` with each optimizer that occurs comes first: the others are compared with it."""
    optimizers = [name for name in OPTIMIZERS if any(name == optimizer for _, optimizer in choices)]
    found = []
    for optimizer in optimizers:
        found += [("none", optimizer)]
        found += [choice for choice in choices if choice[1] == optimizer and choice not in found]
    return found


def options_of(policy: str, steps: int) -> dict[str, Any]:
    return {"annealing_steps": steps // 4} if "pipemare" in policy.split("+") else {}


def optimizer_of(policy: str, optimizer: str, rate: float) -> Callable[[list[nn.Parameter]], torch.optim.Optimizer]:
    if optimizer == "sgd":
        return lambda parameters: torch.optim.SGD(parameters, rate, momentum=MOMENTUM)
    if optimizer == "adam":
        return lambda parameters: torch.optim.Adam(parameters, rate)
    if optimizer == "adamw":
        return lambda parameters: torch.optim.AdamW(parameters, rate, weight_decay=0.01)
    if "nesterov" in policy.split("+"):
        # The preset: torch's slow ramp of the momentum would keep it near 0.5 for a run as short as these.
        return lambda parameters: torch.optim.NAdam(parameters, rate, betas=(0.99, 0.999), momentum_decay=1.0)
    return lambda parameters: torch.optim.NAdam(parameters, rate)
