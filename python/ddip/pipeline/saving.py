"""A pipeline on disk: between two runs nothing is under way, so that weights, optimizers, policies and counters are all of it.
A run that goes on from here is a run that drains at this place."""

from __future__ import annotations

import io
import os
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ddip.errors import ConfigError
from ddip.pipeline.arguments import is_scale_state
from ddip.pipeline.borders import with_tensors
from ddip.replicas import broadcast_object, gather_objects, together

if TYPE_CHECKING:
    from ddip.pipeline.front import Heard, Pipeline
    from ddip.pipeline.stepping import Stepping

FORMAT = 2
FORGETFUL = {"none", "stash", "msnag", "aggmsnag", "spectrain", "lwp", "adam", "adamw", "nadam", "nesterov", "spike"}


def save(pipe: Pipeline, path: str | Path) -> None:
    """All ranks. Rank 0 writes; a crash leaves the old file or the new one."""
    mine = together(lambda: {index: writable(index, part_of_save(pipe, index)) for index in pipe.mine}, pipe.ranks)
    everybody = gather_objects((pipe.replica, mine, pipe.heard), pipe.ranks, root=0)
    failure = ""
    if pipe.ranks.rank == 0:
        try:
            write(whole_of(pipe, everybody), Path(path))
        except OSError as error:
            failure = f"{path}: {error.strerror}"
    failure = broadcast_object(failure, ranks=pipe.ranks)
    if failure:
        raise ConfigError(failure)


def part_of_save(pipe: Pipeline, index: int) -> dict[str, Any]:
    """Replicas have the same weights and each its own running statistics."""
    state = stage_state(pipe, index)
    return state if pipe.replica == 0 else {"model": statistics_of(pipe, index, state)}


def statistics_of(pipe: Pipeline, index: int, state: dict[str, Any]) -> dict[str, Any]:
    return {name: state["model"][name] for name in buffers_of(pipe, index) if name in state["model"]}


def whole_of(pipe: Pipeline, everybody: list[tuple[int, dict[int, Any], Heard]]) -> dict[str, Any]:
    buffers = {
        (replica, index): statistics_of(pipe, index, state)
        for replica, part, _ in everybody
        for index, state in part.items()
    }
    return {
        "format": FORMAT,
        "stages": {index: state for replica, part, _ in everybody if replica == 0 for index, state in part.items()},
        "buffers": buffers,
        "micro_batches": pipe.micro_batches_done,
        "squares": max((squares for _, _, (squares, _) in everybody), key=len),  # a rank without weights has none
        "loss_scale": next((scale for _, _, (_, scale) in everybody if scale), None),  # on the last stage's rank
        "policy": pipe.policy_name,
    }


def load(pipe: Pipeline, path: str | Path) -> None:
    """All ranks, each reads what its stages need. If one of them cannot take it, none of them is changed."""
    found = together(lambda: read(pipe, path), pipe.ranks)
    for index in pipe.mine:
        restore_stage(pipe, index, state_for(pipe, index, found))
    pipe.micro_batches_done = found["micro_batches"]
    pipe.heard = found["squares"], found.get("loss_scale")  # none: it was trained in another precision


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
    theirs = found.get("policy", pipe.policy_name)
    if theirs != pipe.policy_name and not (remembers_nothing(theirs) and remembers_nothing(pipe.policy_name)):
        raise ConfigError(f"{path}: it was trained with staleness={theirs!r}; here it is {pipe.policy_name!r}")
    if found.get("loss_scale") is not None and not is_scale_state(found["loss_scale"]):
        raise ConfigError(f"{path}: its loss scale is {found['loss_scale']!r}; expected powers of two")
    for index in pipe.mine:
        refuse_other_model(pipe, index, state_for(pipe, index, found), path)
        refuse_other_optimizer(pipe, index, found["stages"][index], path)
    return found


def remembers_nothing(policy: str) -> bool:
    """From step to step: then one may go on where another was. What the others have gathered says nothing to any but themselves."""
    return not set(policy.split("+")) - FORGETFUL


def state_for(pipe: Pipeline, index: int, found: dict[str, Any]) -> dict[str, Any]:
    state = found["stages"][index]
    own = found["buffers"].get((pipe.replica, index), {})  # none: there were fewer replicas
    return {**state, "model": {**state["model"], **own}}


def plain(value: Any) -> Any:
    """A copy that a file without code can have. A moment is a slice of its stage's flat memory, all of which would be written with
    each of them; NumPy's numbers, which a scheduler may have made, are of a class of their own."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if hasattr(value, "item") and not getattr(value, "ndim", 0):
        return value.item()
    if type(value) in (dict, OrderedDict):
        return {key: plain(part) for key, part in value.items()}
    return type(value)(map(plain, value)) if type(value) in (list, tuple) else value


def writable(index: int, state: dict[str, Any]) -> dict[str, Any]:
    """Itself, unless something in it would not come back: a file is read without running code, and a module's extra state may be of
    a class that somebody wrote."""
    for part, values in state.items():
        for name, value in values.items() if isinstance(values, dict) else ():
            if isinstance(value, torch.Tensor):
                continue
            file = io.BytesIO()
            try:
                torch.save(without_tensors(value), file)
                torch.load(io.BytesIO(file.getvalue()), weights_only=True)
            except Exception as error:  # noqa: BLE001 - whatever pickle says
                said = str(error).splitlines()[0]
                raise ConfigError(f"stage {index}: {name!r} of its {part} cannot be saved ({said})") from None
    return state


def without_tensors(value: Any) -> Any:
    """They can always be written, and may be large."""
    return with_tensors(value, lambda _: torch.empty(0))


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
    """On the CPU, in memory of its own."""
    state: dict[str, Any] = {"model": pipe.stage_state_dict(index)}
    stepping = pipe.steppings.get(index)
    if stepping and stepping.optimizer:
        state["optimizer"] = plain(stepping.optimizer.state_dict())
        state["optimizer_name"] = type(stepping.optimizer).__name__
        state["steps"] = stepping.steps
        state["policy"] = plain(dict(pipe.policies[index].state()))
        if stepping.scheduler:
            state["scheduler"] = plain(stepping.scheduler.state_dict())
            state["scheduler_name"] = type(stepping.scheduler).__name__
    return state


def refuse_other_optimizer(pipe: Pipeline, index: int, state: dict[str, Any], path: str | Path) -> None:
    stepping = pipe.steppings.get(index)
    if not stepping or not stepping.optimizer:
        return
    refuse_other_scheduler(index, stepping, state, path)
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


def refuse_other_scheduler(index: int, stepping: Stepping, state: dict[str, Any], path: str | Path) -> None:
    mine_is = type(stepping.scheduler).__name__
    theirs_is = state.get("scheduler_name", mine_is if "scheduler" in state else type(None).__name__)
    if mine_is != theirs_is:
        said = {"NoneType": "without a scheduler"}
        raise ConfigError(
            f"{path}: stage {index} was trained {said.get(theirs_is, f'with {theirs_is}')}; "
            f"it is {said.get(mine_is, f'with {mine_is}')} here"
        )


def refuse_other_model(pipe: Pipeline, index: int, state: dict[str, Any], path: str | Path) -> None:
    mine, theirs = pipe.modules[index].state_dict(), state["model"]
    for name in [*mine, *theirs]:
        if name not in theirs or name not in mine:
            where = "the file has none" if name not in theirs else "only the file has it"
            raise ConfigError(f"{path}: stage {index} is another one ({name!r}: {where})")
        if isinstance(mine[name], torch.Tensor) != isinstance(theirs[name], torch.Tensor):
            raise ConfigError(f"{path}: stage {index} is another one ({name!r} is a tensor here or there only)")
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
    pipe.policies[index].load_state({name: there(tensor, stepping) for name, tensor in state["policy"].items()})


def there(tensor: torch.Tensor, stepping: Stepping) -> torch.Tensor:
    """What a policy keeps of each weight is where the weights are."""
    truth = stepping.weights.truth
    return tensor.to(truth.device) if tensor.shape == truth.shape else tensor
