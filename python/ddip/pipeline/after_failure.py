"""Replicas after a run that was stopped, or failed: some may have done a step that others have not, and would stay different for ever.
They all get the state of the one that came furthest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ddip.pipeline.saved_stage import restore_stage, stage_state
from ddip.pipeline.stepping import hash_of
from ddip.replicas import gather_objects

if TYPE_CHECKING:
    from ddip.pipeline.front import Pipeline


def make_replicas_equal(pipe: Pipeline) -> list[int]:
    """All ranks call it. The stages in which they were not."""
    make_heard_equal(pipe)
    mine = {index: (stepping.steps, hash_of(stepping.masters)) for index, stepping in pipe.steppings.items()}
    everybody = gather_objects((pipe.replica, mine), pipe.ranks)
    furthest = {
        index: source
        for index in range(len(pipe.modules))
        if (source := replica_that_came_furthest(index, everybody)) is not None
    }
    if not furthest:
        return []
    given = {index: stage_state(pipe, index) for index in pipe.mine if furthest.get(index) == pipe.replica}
    for part in gather_objects(given, pipe.ranks):
        for index, state in part.items():
            if index in pipe.mine and furthest[index] != pipe.replica:
                # Statistics are each replica's own.
                buffers = {name: tensor.detach().cpu() for name, tensor in pipe.modules[index].named_buffers()}
                restore_stage(pipe, index, {**state, "model": {**state["model"], **kept(buffers, state)}})
    return sorted(furthest)


def make_heard_equal(pipe: Pipeline) -> None:
    """One replica may know of a step that was too large, or of its norm, and others not yet."""
    states = [state for state in gather_objects(pipe.scale_state, pipe.ranks) if state]
    scale, finite, _ = min(states, default=(1.0, 0, []))
    pipe.heard = {}, (scale, finite, []) if states else None


def replica_that_came_furthest(index: int, everybody: list[tuple[int, dict[int, Any]]]) -> int | None:
    """None: they are equal."""
    found = {replica: stages[index] for replica, stages in everybody if index in stages}
    if len(set(found.values())) <= 1:
        return None
    return max(found, key=lambda replica: (found[replica][0], -replica))


def kept(buffers: dict[str, Any], state: dict[str, Any]) -> dict[str, Any]:
    return {name: tensor for name, tensor in buffers.items() if name in state["model"]}
