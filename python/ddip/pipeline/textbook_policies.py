"""Names of staleness policies, and what goes together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ddip.errors import ConfigError
from ddip.pipeline.ledger import did_you_mean
from ddip.pipeline.schedules import SYNCHRONOUS
from ddip.pipeline.textbook_optimizers import Group
from ddip.pipeline.textbook_predictions import PREDICTORS

OPTIONS = {
    "pipemare": ["annealing_steps", "pipemare_decay"],
    "gap_aware": ["gap_decay", "gap_eps"],
    "nesterov": ["nesterov_by_stage"],
    **dict.fromkeys(("adam", "adamw", "nadam"), ["second_decays"]),
}
LIMITS = {
    "annealing_steps": (0, 1e15), "pipemare_decay": (1e-9, 1), "gap_decay": (0, 0.999999999), "gap_eps": (1e-30, 1),
    "second_decays": (0, 1), "nesterov_by_stage": (0, 1),
}  # fmt: skip
WHOLE: dict[str, type] = {"annealing_steps": int, "second_decays": bool, "nesterov_by_stage": bool}
OTHER_POLICIES = ("none", "stash", "nesterov", "pipemare", "spike", "gap_aware")


def parts_of(policy: str) -> set[str]:
    parts = policy.split("+")
    for part in parts:
        if part not in PREDICTORS and part not in OTHER_POLICIES:
            known = [*PREDICTORS, *OTHER_POLICIES]
            raise ConfigError(f"staleness {part!r}; expected {', '.join(known)}{did_you_mean(part, known)}")
    if sum(part in PREDICTORS for part in parts) > 1:
        raise ConfigError(f"staleness {policy!r}; expected at most one prediction")
    return set(parts)


def check_schedule(schedule: str, parts: set[str]) -> None:
    """ConfigError for a policy that the schedule leaves no room for."""
    name = "+".join(sorted(parts))
    if schedule in SYNCHRONOUS and "spectrain" in parts:
        raise ConfigError(f"staleness {name!r} with schedule {schedule}, in which no weights are stale")
    own = {"2bw": [{"none"}, {"stash"}], "paci": [{"none"}]}
    if parts not in own.get(schedule, [parts]):
        raise ConfigError(
            f"schedule {schedule} with staleness {name!r}; expected none: the schedule decides the weights"
        )


def predictor_in(parts: set[str]) -> str | None:
    return next((part for part in parts if part in PREDICTORS), None)


def options_of(part: str, options: dict[str, Any]) -> dict[str, Any]:
    return {option: value for option, value in options.items() if option in OPTIONS[part]}


def check_options(parts: set[str], options: Mapping[str, Any]) -> None:
    known = {option for part in parts for option in OPTIONS.get(part, [])}
    for option, value in options.items():
        if option not in known:
            expected = ", ".join(sorted(known)) or "none, it has no options"
            name = "+".join(sorted(parts))
            raise ConfigError(f"option {option!r} of {name}; expected {expected}{did_you_mean(option, known)}")
        low, high = LIMITS[option]
        if not isinstance(value, (int, float)) or not low <= value <= high or (option in WHOLE and value != int(value)):
            what = "a whole number" if option in WHOLE else "a number"
            raise ConfigError(f"option {option} is {value!r}; expected {what} from {low:g} to {high:g}")


def checked_options(policy: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """As the engine and a ledger take them."""
    check_options(parts_of(policy), options)
    return {option: WHOLE.get(option, float)(value) for option, value in options.items()}


def check_policy(parts: set[str], options: dict[str, Any], groups: list[Group]) -> None:
    """ConfigError for an option that no part has, or an optimizer that a part does not know."""
    check_options(parts, options)
    predictor = predictor_in(parts)
    for group in groups:
        if predictor is not None and group.name not in PREDICTORS[predictor]:
            fitting = " or ".join(PREDICTORS[predictor])
            raise ConfigError(f"staleness {predictor!r} with optimizer {group.name}; expected {fitting}")
        if "nesterov" in parts and group.name != "nadam":
            raise ConfigError(f"staleness 'nesterov' with optimizer {group.name}; expected nadam")
        plain = group.name == "sgd" and group.form == "torch" and 0 < group.momentum < 1
        if "spike" in parts and (not plain or group.nesterov or group.dampening != 0):
            raise ConfigError("staleness 'spike'; expected SGD with momentum, without nesterov and dampening")
