"""Optimizers whose steps a replay could not take: said when the pipeline is made, not after a day of training."""

from __future__ import annotations

from typing import Any

from ddip.pipeline.stepping import Stepping

# Options that change bits, or where the numbers are kept.
OTHER_BITS = ("fused", "capturable", "differentiable")


def why_not(stepping: Stepping) -> str:
    """Nothing, if a replay can."""
    kind = type(stepping.optimizer).__name__
    if stepping.rule is None:
        return f"a replay knows SGD, Adam, AdamW and NAdam, not {kind}"
    for group in stepping.groups:
        if option := other_option(stepping.rule, group):
            return f"{kind} with {option}=True rounds otherwise than a replay; expected {option}=False"
    return ""


def other_option(rule: str, group: dict[str, Any]) -> str:
    found = [option for option in OTHER_BITS if group.get(option)]
    if rule == "nadam" and group.get("foreach"):
        found.append("foreach")
    if rule == "adam" and group.get("decoupled_weight_decay"):
        found.append("decoupled_weight_decay")  # it is AdamW then
    return found[0] if found else ""
