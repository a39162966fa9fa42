"""The order of one stage's actions, by the rule of its schedule: 'forward if …, else backward'."""

from __future__ import annotations

from dataclasses import dataclass, field

SYNCHRONOUS = ("seq", "gpipe", "1f1b")
SCHEDULES = (*SYNCHRONOUS, "async_1f1b", "virtual_async", "2bw", "paci")


@dataclass
class Action:
    kind: str  # forward, backward or step
    micro_batch: int = -1
    version: int = 0  # steps of this stage before it
    staleness: int = 0  # of a forward: steps of this stage until its own backward
    partial: list[int] = field(default_factory=list)  # of a forward: micro-batches in the running sum of gradients
    share: tuple[int, int] | None = None  # of a leftover step


def order_of(schedule: str, sizes: list[int], window: int, accumulate: int) -> list[Action]:
    """`sizes`: micro-batches of each batch. `accumulate`: micro-batches per step (synchronous: batches)."""
    batch_of = [batch for batch, size in enumerate(sizes) for _ in range(size)]
    synchronous = schedule in SYNCHRONOUS
    actions: list[Action] = []
    flying: list[int] = []
    pending: list[int] = []
    begun = done = version = since = 0
    while done < len(batch_of):
        same_batch = begun < len(batch_of) and (not flying or batch_of[begun] == batch_of[flying[0]])
        allowed = {"seq": not flying, "gpipe": same_batch, "1f1b": same_batch and len(flying) <= window}
        if begun < len(batch_of) and allowed.get(schedule, len(flying) <= window):
            actions.append(Action("forward", begun, version, partial=list(pending)))
            flying.append(begun)
            begun += 1
            continue
        k = flying.pop() if schedule == "gpipe" else flying.pop(0)
        actions.append(Action("backward", k, version))
        pending.append(k)
        done += 1
        batch_ends = done == len(batch_of) or batch_of[done] != batch_of[done - 1]
        since += batch_ends if synchronous else 1
        if since == accumulate or done == len(batch_of):
            share = None if since == accumulate else (since, accumulate)
            actions.append(Action("step", version=version, share=share))
            version, since, pending = version + 1, 0, []
    back = {action.micro_batch: action.version for action in actions if action.kind == "backward"}
    for action in actions:
        if action.kind == "forward":
            action.staleness = back[action.micro_batch] - action.version
    return actions


def without_empty(order: list[Action], empty: set[int], step_size: int | None) -> list[Action]:
    """What is left of it where some micro-batches have no samples: they are planned, and nothing is done. `step_size`: of an
    asynchronous schedule, whose smaller steps have a smaller rate; None: the order's own shares stay."""
    found = []
    together = 0
    for action in order:
        if action.micro_batch in empty:
            continue
        action.partial = [k for k in action.partial if k not in empty]
        together += action.kind == "backward"
        if action.kind == "step":
            if step_size is not None:
                action.share = (together, step_size) if 0 < together < step_size else None
            elif together == 0:
                action.share = None
            together = 0
        found.append(action)
    return found
