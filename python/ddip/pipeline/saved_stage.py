"""What a stage carries from one run to the next, and whether what a folder has is that of the stage that is here."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import torch

from ddip.errors import ConfigError
from ddip.pipeline.arguments import is_whole

if TYPE_CHECKING:
    from ddip.pipeline.front import Pipeline
    from ddip.pipeline.stepping import Stepping


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


def refuse_other_stage(pipe: Pipeline, index: int, state: dict[str, Any], place: str) -> None:
    """It comes from a file that anybody may have made: nothing in it is believed."""
    if not isinstance(state.get("model"), dict):
        raise ConfigError(f"{place}: stage {index} has no weights")
    refuse_other_model(pipe, index, state, place)
    stepping = pipe.steppings.get(index)
    if not stepping or not stepping.optimizer:
        return
    refuse_other_scheduler(index, stepping, state, place)
    refuse_other_optimizer(index, stepping, state, place)
    if not is_whole(state.get("steps")) or state["steps"] < 0:
        raise ConfigError(f"{place}: stage {index} has done {state.get('steps')!r} steps; expected a number")
    if not is_of_policy(pipe.make_policy(), stepping, state.get("policy")):
        raise ConfigError(f"{place}: stage {index} has not what {pipe.policy_name} keeps from step to step")


def refuse_other_optimizer(index: int, stepping: Stepping, state: dict[str, Any], place: str) -> None:
    assert stepping.optimizer
    mine = stepping.optimizer.state_dict()["param_groups"]
    name = type(stepping.optimizer).__name__
    said = state.get("optimizer_name")
    if said != name or not has_groups_like(mine, state.get("optimizer")):
        raise ConfigError(
            f"{place}: stage {index} was trained by {said or 'another optimizer'} with other options or parameters "
            f"than {name}'s here"
        )
    # What torch's own keep of a parameter is as large as it is, or a number; of others' nobody knows.
    numbers = [number for group in state["optimizer"]["param_groups"] for number in group["params"]]
    for number, master in zip(numbers, (one for group in stepping.groups for one in group["params"]), strict=True):
        for key, value in state["optimizer"]["state"].get(number, {}).items():
            if stepping.rule and isinstance(value, torch.Tensor) and value.ndim and value.shape != master.shape:
                raise ConfigError(
                    f"{place}: stage {index}'s {key} of a parameter has the shape {list(value.shape)}; "
                    f"the parameter has {list(master.shape)}"
                )


def has_groups_like(mine: list[dict[str, Any]], theirs: Any) -> bool:
    if not isinstance(theirs, dict) or not isinstance(groups := theirs.get("param_groups"), list):
        return False
    known = theirs.get("state")
    if not isinstance(known, dict) or not all(isinstance(of_one, dict) for of_one in known.values()):
        return False
    return len(groups) == len(mine) and all(
        isinstance(a, dict)
        and set(a) == set(b)
        and isinstance(a["params"], list)
        and len(a["params"]) == len(b["params"])
        for a, b in zip(groups, mine, strict=True)
    )


def is_of_policy(policy: Any, stepping: Stepping, saved: Any) -> bool:
    """Memory as the weights', or a number for each slice of it, under the policy's own names."""
    truth = stepping.weights.truth
    if not isinstance(saved, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in saved.values()):
        return False
    for tensor in saved.values():
        flat = tensor.shape == truth.shape and tensor.dtype == truth.dtype
        numbers = tensor.shape == (len(stepping.state().groups),) and tensor.dtype == torch.float64
        if not flat and not numbers:
            return False
    try:
        policy.load_state({name: there(tensor, stepping) for name, tensor in saved.items()})
        return set(policy.state()) == set(saved)
    except (RuntimeError, IndexError, TypeError, ValueError):  # it looked for something that is not there
        return False


def refuse_other_scheduler(index: int, stepping: Stepping, state: dict[str, Any], place: str) -> None:
    mine_is = type(stepping.scheduler).__name__
    theirs_is = state.get("scheduler_name", type(None).__name__)
    if mine_is != theirs_is or (stepping.scheduler and not isinstance(state.get("scheduler"), dict)):
        said = {"NoneType": "without a scheduler"}
        raise ConfigError(
            f"{place}: stage {index} was trained {said.get(theirs_is, f'with {theirs_is}')}; "
            f"it is {said.get(mine_is, f'with {mine_is}')} here"
        )


def refuse_other_model(pipe: Pipeline, index: int, state: dict[str, Any], place: str) -> None:
    mine, theirs = pipe.modules[index].state_dict(), state["model"]
    for name in [*mine, *theirs]:
        if name not in theirs or name not in mine:
            where = "the file has none" if name not in theirs else "only the file has it"
            raise ConfigError(f"{place}: stage {index} is another one ({name!r}: {where})")
        if isinstance(mine[name], torch.Tensor) != isinstance(theirs[name], torch.Tensor):
            raise ConfigError(f"{place}: stage {index} is another one ({name!r} is a tensor here or there only)")
        if isinstance(mine[name], torch.Tensor) and mine[name].shape != theirs[name].shape:
            raise ConfigError(
                f"{place}: stage {index} is another one ({name!r} has the shape {list(theirs[name].shape)} there "
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
