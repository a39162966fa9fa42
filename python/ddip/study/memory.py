"""Copies of a stage's weights that a policy keeps alive at its worst moment, as docs/pipeline_weights.md counts them."""

from __future__ import annotations

from ddip.pipeline.simulate_order import SYNCHRONOUS, order_of
from ddip.pipeline.textbook_policies import parts_of, predictor_in
from ddip.study.clock import plan_of
from ddip.study.settings import Settings

# Of the policy's own, besides what is stashed: docs/staleness.md.
OWN = {"pipemare": 2, "spike": 1, "gap_aware": 2}
STASHES = {"stash", "gap_aware", "nesterov"}


def copies_of(settings: Settings, schedule: str, policy: str) -> list[int]:
    """Per stage. The first one are the true weights."""
    window = list(plan_of(settings, schedule).window)
    sizes = [settings.per_batch(schedule)] * (settings.length // settings.per_batch(schedule))
    parts = parts_of(policy)
    own = sum(copies for part, copies in OWN.items() if part in parts)
    if schedule == "2bw":
        return [2 + own] * settings.stages  # the version before the newest, everywhere
    accumulate = 1 if schedule in SYNCHRONOUS else settings.accumulate
    kept = [0] * settings.stages
    if parts & STASHES:
        kept = [_stashed(schedule, sizes, w, accumulate, predictor_in(parts) is not None) for w in window]
    elif predictor_in(parts) or "pipemare" in parts:  # what they write: one, where something is stale
        everywhere = "spectrain" in parts
        kept = [int(everywhere or (w > 0 and schedule not in SYNCHRONOUS)) for w in window]
    return [1 + own + copies for copies in kept]


def _stashed(schedule: str, sizes: list[int], window: int, accumulate: int, predicted: bool) -> int:
    """The most at once: one for each version alive that is not the newest, or for each different prediction."""
    alive: dict[int, tuple[int, int]] = {}
    version = most = 0
    for action in order_of(schedule, sizes, window, accumulate):
        if action.kind == "forward":
            if action.staleness > 0:  # otherwise nobody steps before its backward
                alive[action.micro_batch] = (action.version, action.staleness if predicted else 0)
        elif action.kind == "backward":
            # Its stash is read now, so it counts once more.
            most = max(most, len({key for key in alive.values() if predicted or key[0] < version}))
            alive.pop(action.micro_batch, None)
        else:
            version = action.version + 1
    return most
