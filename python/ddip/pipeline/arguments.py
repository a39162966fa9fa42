"""What a Pipeline is told, looked at before anything is made of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any, NamedTuple

from ddip.errors import ConfigError
from ddip.pipeline.ledger import did_you_mean

# Schedules whose order is fixed, however much room there is.
WITHOUT_WINDOW = ("seq", "gpipe", "interleaved", "zbv")


def refuse_other_counts(micro_batches: Any, accumulate: Any) -> None:
    if any(not is_whole(number) or number < 1 for number in (micro_batches, accumulate)):
        raise ConfigError(
            f"micro_batches={micro_batches!r}, accumulate={accumulate!r}: expected whole numbers from 1 on"
        )


class Smoothing(NamedTuple):
    """Each micro-batch goes through the pipe `passes` times, on weights with noise of its own; a radius of 0: it is off."""

    passes: int = 1
    radius: float = 0.0


def smoothing_of(asked: Any, schedule: str, synchronous: bool, staleness: str) -> Smoothing:
    if asked is None:
        return Smoothing()
    if not isinstance(asked, Mapping) or set(asked) != {"passes", "radius"}:
        raise ConfigError(f'smoothing={asked!r}: expected None, or {{"passes": 4, "radius": 0.01}}')
    passes, radius = asked["passes"], asked["radius"]
    if not is_whole(passes) or not 1 <= passes <= 1024 or not isinstance(radius, Real) or not 0 < float(radius) <= 1e3:
        raise ConfigError(f"smoothing={asked!r}: expected from 1 to 1024 passes and a radius above 0, at most 1000")
    if not synchronous:
        raise ConfigError(
            f"smoothing= fills the bubbles of synchronous schedules, and {schedule} has none; expected gpipe, 1f1b, …"
        )
    if staleness not in ("auto", "none"):
        raise ConfigError(f"smoothing= with staleness={staleness!r}: where nothing is stale, expected none")
    return Smoothing(int(passes), float(radius))


def is_whole(number: Any) -> bool:
    return isinstance(number, Integral) and not isinstance(number, bool)


def refuse_other_kinds(replicas: Any, counts: Mapping[str, Any], switches: Mapping[str, Any]) -> None:
    """`counts`: numbers of batches; `switches`: what is on or off."""
    if not is_whole(replicas):
        raise ConfigError(f"replicas={replicas!r}: expected a whole number from 1 on")
    for name, asked in counts.items():
        if asked is not None and not is_whole(asked):
            raise ConfigError(f"{name}={asked!r}: expected a whole number")
    for name, asked in switches.items():
        if asked is not None and not isinstance(asked, bool):
            raise ConfigError(f"{name}={asked!r}: expected True or False")


def without_effect(schedule: str, window: Any, clip: Any, clipping: str, ledger: Any, program: Any) -> list[str]:
    """What was asked for and changes nothing, for people."""
    found = []
    if window_of(window) and schedule in WITHOUT_WINDOW:
        found.append(f"window= changes nothing: the order of {schedule} is fixed")
    if clip is None and clipping != "auto":
        found.append(f"clipping={clipping!r} changes nothing without clip=, the largest norm")
    if program is not None and not ledger:
        found.append(f"program={program!r} changes nothing without ledger=")
    return found


def window_of(asked: Any) -> list[int]:
    """By stage; empty: the textbook's."""
    if asked is None or (isinstance(asked, str) and asked == "depth"):
        return []
    if not isinstance(asked, Sequence) or any(not isinstance(ahead, Integral) for ahead in asked):
        raise ConfigError(f"window={asked!r}: expected a whole number for each stage, 'depth', or None")
    return [int(ahead) for ahead in asked]


def refuse_other_numbers(clip: Any, seed: Any) -> None:
    if clip is not None and not (isinstance(clip, Real) and float(clip) > 0):
        raise ConfigError(f"clip={clip}: expected a number above 0")
    if not isinstance(seed, Integral) or not 0 <= int(seed) < 2**62:
        raise ConfigError(f"seed={seed!r}: expected a whole number from 0 on, below 2**62")


def refuse_other_stages(stages: Any) -> None:
    if stages is not None and (not is_whole(stages) or stages < 1):
        raise ConfigError(f"stages={stages!r}: expected a whole number from 1 on, or None: one for each rank")


def refuse_what_cannot_be_called(optimizer: Any, scheduler: Any, loss: Any) -> None:
    if not callable(optimizer):
        raise ConfigError(
            f"optimizer= is a {type(optimizer).__name__}; expected a function that makes one for each stage: "
            "lambda parameters: torch.optim.SGD(parameters, 0.1)"
        )
    if scheduler is not None and not callable(scheduler):
        raise ConfigError(
            f"scheduler= is a {type(scheduler).__name__}; expected a function that makes one for each stage: "
            "lambda optimizer: StepLR(optimizer, 100)"
        )
    if not callable(loss):
        raise ConfigError(f"loss={loss!r}: expected a function of (output, target)")


# Of the sum over a micro-batch: 1024 on 64 samples is what 65536, with which torch.amp.GradScaler begins, is on their mean.
LOSS_SCALE = {"initial": 1024.0, "interval": 2000.0}


def loss_scaling_of(asked: Any, precision: str) -> dict[str, float] | None:
    """None: the loss is not scaled. interval 0: the scale stays."""
    if precision != "fp16":
        if asked != "auto":
            raise ConfigError(f"loss_scale={asked!r} is of precision='fp16'; it is {precision!r} here")
        return None
    if isinstance(asked, str) and asked == "auto":
        return dict(LOSS_SCALE)
    if isinstance(asked, Real) and not isinstance(asked, bool):
        asked = {"initial": asked, "interval": 0}
    if not isinstance(asked, Mapping):
        raise ConfigError(
            f"loss_scale={asked!r}: expected 'auto', a power of two, or a dict of {' and '.join(LOSS_SCALE)}"
        )
    for name, number in asked.items():
        if name not in LOSS_SCALE:
            raise ConfigError(
                f"loss_scale has {name!r}; expected {' or '.join(LOSS_SCALE)}{did_you_mean(name, LOSS_SCALE)}"
            )
        if not isinstance(number, Real) or isinstance(number, bool):
            raise ConfigError(f"loss_scale: {name} is {number!r}; expected a number")
    found = {**LOSS_SCALE, **{name: float(number) for name, number in asked.items()}}
    if not is_scale(found["initial"]):
        raise ConfigError(f"loss_scale={found['initial']:.12g}: expected a power of two from 2**-24 to 2**24")
    if not 0 <= found["interval"] <= 2**31 or found["interval"] % 1:
        raise ConfigError(
            f"loss_scale: interval {found['interval']:.12g}: expected a whole number of steps up to 2**31, 0: it stays"
        )
    return found


def is_scale(number: Any) -> bool:
    return isinstance(number, float) and 2**-24 <= number <= 2**24 and math.frexp(number)[0] == 0.5


def is_scale_state(state: Any) -> bool:
    """As a file has it that somebody may have changed: (now, finite steps in a row, scales under way)."""
    if not isinstance(state, (tuple, list)) or len(state) != 3 or not isinstance(state[2], list):
        return False
    return is_whole(state[1]) and state[1] >= 0 and all(is_scale(scale) for scale in (state[0], *state[2]))


def clipping_of(asked: str, clip: float | None, asynchronous: bool, precision: str) -> str:
    if asked not in ("auto", "local", "proportional", "global"):
        raise ConfigError(f"clipping={asked!r}: expected auto, local, proportional or global")
    if clip is None:
        return "local"
    if asked == "global" and asynchronous and precision == "fp16":
        raise ConfigError(
            "precision='fp16': the norm of all stages some steps ago may be of a step that was left out; "
            "expected clipping='local' or 'proportional'"
        )
    return ("local" if asynchronous else "global") if asked == "auto" else asked


def refuse_other_order(order: str, policy: str, clipping: str, precision: str) -> None:
    """What only a pipeline knows of it; the rest the plan refuses."""
    if order != "ready":
        return
    for means in ("pipemare", "spike"):
        if means in policy:
            raise ConfigError(
                f"order='ready': {means} reckons with the plan's mean staleness; expected another policy, or order='plan'"
            )
    if clipping == "global":
        raise ConfigError("order='ready': stages do not wait for each other's norms; expected clipping='local'")
    if precision == "fp16":
        raise ConfigError(
            "order='ready': stages do not tell each other of gradients that are too large; expected precision='bf16'"
        )
