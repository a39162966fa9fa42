"""A pipeline on disk: between two runs nothing is under way, so that weights, optimizers, policies and counters are all of it.
A run that goes on from here is a run that drains at this place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ddip.errors import ConfigError
from ddip.replicas import broadcast_object, gather_objects

if TYPE_CHECKING:
    from ddip.pipeline.front import Pipeline

FORMAT = 2


def save(pipe: Pipeline, path: str | Path) -> None:
    """All ranks. Rank 0 writes; a crash leaves the old file or the new one."""
    mine = {index: stage_state(pipe, index) for index in pipe.mine}
    everybody = gather_objects((pipe.replica, mine, pipe.squares), pipe.ranks)
    whole = {index: state for replica, part, _ in everybody if replica == 0 for index, state in part.items()}
    # Replicas have the same weights and each its own running statistics.
    buffers = {
        (replica, index): {name: state["model"][name] for name in buffers_of(pipe, index) if name in state["model"]}
        for replica, part, _ in everybody
        for index, state in part.items()
    }
    squares = max((squares for _, _, squares in everybody), key=len)  # a rank without weights has none
    failure = ""
    if pipe.ranks.rank == 0:
        try:
            state = {"format": FORMAT, "stages": whole, "micro_batches": pipe.micro_batches_done, "squares": squares}
            write({**state, "buffers": buffers}, Path(path))
        except OSError as error:
            failure = f"{path}: {error.strerror}"
    failure = broadcast_object(failure, ranks=pipe.ranks)
    if failure:
        raise ConfigError(failure)


def load(pipe: Pipeline, path: str | Path) -> None:
    """All ranks, each reads what its stages need."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except Exception as error:  # noqa: BLE001 - whatever a broken file makes torch say
        raise ConfigError(f"{path}: it is no pipeline ({str(error).splitlines()[0]})") from None
    if (
        not isinstance(found, dict)
        or found.get("format") != FORMAT
        or len(found.get("stages", ())) != len(pipe.modules)
    ):
        raise ConfigError(f"{path}: it is no pipeline of {len(pipe.modules)} stages")
    for index in pipe.mine:
        refuse_other_optimizer(pipe, index, found["stages"][index], path)
    for index in pipe.mine:
        state = found["stages"][index]
        own = found["buffers"].get((pipe.replica, index), {})  # none: there were fewer replicas
        restore_stage(pipe, index, {**state, "model": {**state["model"], **own}}, path)
    pipe.micro_batches_done = found["micro_batches"]
    pipe.squares = found["squares"]


def write(state: dict[str, Any], path: Path) -> None:
    new = path.with_name(path.name + ".new")
    with open(new, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def buffers_of(pipe: Pipeline, index: int) -> list[str]:
    return [name for name, _ in pipe.modules[index].named_buffers()]


def stage_state(pipe: Pipeline, index: int) -> dict[str, Any]:
    state: dict[str, Any] = {"model": pipe.stage_state_dict(index)}
    stepping = pipe.steppings.get(index)
    if stepping and stepping.optimizer:
        state["optimizer"] = stepping.optimizer.state_dict()
        state["optimizer_name"] = type(stepping.optimizer).__name__
        state["steps"] = stepping.steps
        state["policy"] = dict(pipe.policies[index].state())
        if stepping.scheduler:
            state["scheduler"] = stepping.scheduler.state_dict()
    return state


def refuse_other_optimizer(pipe: Pipeline, index: int, state: dict[str, Any], path: str | Path) -> None:
    stepping = pipe.steppings.get(index)
    if not stepping or not stepping.optimizer:
        return
    theirs = state.get("optimizer", {}).get("param_groups", [])
    mine = stepping.optimizer.state_dict()["param_groups"]
    name = type(stepping.optimizer).__name__
    alike = len(theirs) == len(mine) and all(
        set(a) == set(b) and len(a["params"]) == len(b["params"]) for a, b in zip(theirs, mine, strict=True)
    )
    if state.get("optimizer_name", name) != name or not alike:
        said = state.get("optimizer_name", "another optimizer")
        raise ConfigError(
            f"{path}: stage {index} was trained by {said} with other options or parameters than {name}'s here"
        )


def restore_stage(pipe: Pipeline, index: int, state: dict[str, Any], path: str | Path) -> None:
    try:
        pipe.modules[index].load_state_dict(state["model"])
    except RuntimeError as error:
        raise ConfigError(f"{path}: stage {index} is another one ({str(error).splitlines()[-1].strip()})") from None
    stepping = pipe.steppings.get(index)
    if not stepping or not stepping.optimizer:
        return
    true = dict(zip(stepping.names, stepping.masters, strict=True))
    with torch.no_grad():
        for name, tensor in state["model"].items():
            if name in true:
                true[name].copy_(tensor)
    stepping.restore(state["optimizer"], state["steps"], state.get("scheduler"))
    pipe.policies[index].load_state(state["policy"])
