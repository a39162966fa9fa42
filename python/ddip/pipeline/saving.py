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
    mine = {index: plain(stage_state(pipe, index)) for index in pipe.mine}
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
    """All ranks, each reads what its stages need. If one of them cannot take it, none of them is changed."""
    found, refused = None, ""
    try:
        found = read(pipe, path)
    except ConfigError as error:
        refused = str(error)
    for rank, why in enumerate(gather_objects(refused, pipe.ranks)):
        if why:
            raise ConfigError(why if refused else f"rank {rank}: {why}")
    assert found
    for index in pipe.mine:
        restore_stage(pipe, index, state_for(pipe, index, found))
    pipe.micro_batches_done = found["micro_batches"]
    pipe.squares = found["squares"]


def read(pipe: Pipeline, path: str | Path) -> dict[str, Any]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ConfigError(f"{path}: there is no such file") from None
    except Exception as error:  # noqa: BLE001 - whatever a broken file makes torch say
        raise ConfigError(f"{path}: it cannot be read ({str(error).splitlines()[0]})") from None
    if (
        not isinstance(found, dict)
        or found.get("format") != FORMAT
        or len(found.get("stages", ())) != len(pipe.modules)
    ):
        raise ConfigError(f"{path}: it is no pipeline of {len(pipe.modules)} stages")
    for index in pipe.mine:
        refuse_other_model(pipe, index, state_for(pipe, index, found), path)
        refuse_other_optimizer(pipe, index, found["stages"][index], path)
    return found


def state_for(pipe: Pipeline, index: int, found: dict[str, Any]) -> dict[str, Any]:
    state = found["stages"][index]
    own = found["buffers"].get((pipe.replica, index), {})  # none: there were fewer replicas
    return {**state, "model": {**state["model"], **own}}


def plain(value: Any) -> Any:
    """NumPy's numbers, which a scheduler may have made, are none that a file without code can have."""
    if hasattr(value, "item") and not isinstance(value, torch.Tensor):
        return value.item()
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return type(value)(map(plain, value)) if type(value) in (list, tuple) else value


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


def refuse_other_model(pipe: Pipeline, index: int, state: dict[str, Any], path: str | Path) -> None:
    mine, theirs = pipe.modules[index].state_dict(), state["model"]
    for name in [*mine, *theirs]:
        if name not in theirs or name not in mine:
            where = "the file has none" if name not in theirs else "only the file has it"
            raise ConfigError(f"{path}: stage {index} is another one ({name!r}: {where})")
        if isinstance(mine[name], torch.Tensor) and mine[name].shape != theirs[name].shape:
            raise ConfigError(
                f"{path}: stage {index} is another one ({name!r} has the shape {list(theirs[name].shape)} there "
                f"and {list(mine[name].shape)} here)"
            )


def restore_stage(pipe: Pipeline, index: int, state: dict[str, Any]) -> None:
    """REQUIRES: the state is one of this stage."""
    pipe.modules[index].load_state_dict(state["model"])
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
