"""What a stage carries from one run to the next, and whether what a folder has is that of the stage that is here."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING, Any

import torch

from ddip.errors import ConfigError
from ddip.pipeline.arguments import is_whole
from ddip.pipeline.stepping import MOMENTS

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
    if type(value) in (dict, OrderedDict, Counter):
        made: dict[Any, Any] = Counter() if type(value) is Counter else {}
        made.update({plain(key): plain(part) for key, part in value.items()})
        return made
    return type(value)(map(plain, value)) if type(value) in (list, tuple) else value


def buffers_of(pipe: Pipeline, index: int) -> list[str]:
    return [name for name, _ in pipe.modules[index].named_buffers()]


def stage_state(pipe: Pipeline, index: int) -> dict[str, Any]:
    """On the CPU, in memory of its own."""
    state: dict[str, Any] = {"model": pipe.stage_state_dict(index), "versions": versions_of(pipe.modules[index])}
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


def versions_of(module: torch.nn.Module) -> dict[str, int]:
    """Of its modules' state, for those that read older ones in another way."""
    return {name: part._version for name, part in module.named_modules() if part._version != 1}


def is_count(number: Any) -> bool:
    return is_whole(number) and 0 <= number < 2**62


def refuse_other_stage(pipe: Pipeline, index: int, state: dict[str, Any], place: str) -> None:
    """It comes from a file that anybody may have made: nothing in it is believed."""
    versions = state.get("versions", {})
    if (
        not isinstance(state.get("model"), dict)
        or not isinstance(versions, dict)
        or not all(map(is_count, versions.values()))
    ):
        raise ConfigError(f"{place}: stage {index} has no weights")
    refuse_other_model(pipe, index, state, place)
    stepping = pipe.steppings.get(index)
    if not stepping or not stepping.optimizer:
        return
    refuse_other_scheduler(index, stepping, state, place)
    refuse_other_optimizer(index, stepping, state, place)
    if not is_count(state.get("steps")):
        raise ConfigError(f"{place}: stage {index} has done {in_short(state.get('steps'))} steps; expected a number")
    if not is_of_policy(pipe.make_policy(), stepping, state.get("policy")):
        raise ConfigError(f"{place}: stage {index} has not what {pipe.policy_name} keeps from step to step")


def in_short(value: Any) -> str:
    return repr(value) if isinstance(value, (int, float, str, type(None))) else f"a {type(value).__name__}"


def refuse_other_optimizer(index: int, stepping: Stepping, state: dict[str, Any], place: str) -> None:
    assert stepping.optimizer
    mine = stepping.optimizer.state_dict()["param_groups"]
    name = type(stepping.optimizer).__name__
    said = state.get("optimizer_name")
    theirs: Any = state.get("optimizer")
    if not isinstance(said, str) or said != name:
        raise ConfigError(
            f"{place}: stage {index} was trained by {said if isinstance(said, str) else 'nobody'}; here it is {name}"
        )
    if not has_groups_like(mine, theirs) or not has_moments_like(stepping, theirs):
        raise ConfigError(f"{place}: stage {index} was trained by {name} with other options or parameters than here")


# How it is computed, not what.
HOW = ("foreach", "fused", "capturable", "differentiable")


def has_groups_like(mine: list[dict[str, Any]], theirs: Any) -> bool:
    if (
        not isinstance(theirs, dict)
        or not isinstance(groups := theirs.get("param_groups"), list)
        or len(groups) != len(mine)
    ):
        return False
    numbers: list[int] = []
    for a, b in zip(groups, mine, strict=True):
        if not isinstance(a, dict) or set(a) != set(b):
            return False
        if (
            not isinstance(a["params"], list)
            or len(a["params"]) != len(b["params"])
            or not all(map(is_count, a["params"]))
        ):
            return False
        numbers += a["params"]
        if not all(is_option_like(b[key], a[key]) for key in b if key not in ("params", *HOW)):
            return False
    return len(set(numbers)) == len(numbers)


def is_option_like(mine: Any, theirs: Any) -> bool:
    """Numbers may differ: a scheduler, or the user, changes them. What is on or off changes what the moments mean."""
    return type(theirs) is bool and mine == theirs if isinstance(mine, bool) else is_alike(mine, theirs)


def is_alike(mine: Any, theirs: Any) -> bool:
    """Of one form, with other numbers. What is not known yet here may be known there, and the other way round."""
    if mine is None or theirs is None:
        return mine is None and theirs is None or is_number(mine if theirs is None else theirs)
    if isinstance(mine, torch.Tensor) or isinstance(theirs, torch.Tensor):
        both = isinstance(mine, torch.Tensor) and isinstance(theirs, torch.Tensor)
        return both and mine.shape == theirs.shape and mine.dtype == theirs.dtype
    if is_number(mine):
        return is_number(theirs) and (math.isfinite(theirs) or not math.isfinite(mine))
    if type(mine) is Counter:
        return type(theirs) is Counter and all(map(is_count, [*theirs.keys(), *theirs.values()]))
    if isinstance(mine, dict):
        if not isinstance(theirs, dict) or not set(mine) ^ set(theirs) <= NOTES:
            return False
        return all(is_alike(mine[key], theirs[key]) for key in mine if key in theirs)
    if isinstance(mine, (list, tuple)):
        return type(mine) is type(theirs) and len(mine) == len(theirs) and all(map(is_alike, mine, theirs))
    return type(mine) is type(theirs)


# What torch's schedulers note for themselves in some of its versions and in others not.
NOTES = {"verbose", "_is_initial", "_get_lr_called_within_step"}


def known(mine: Any, theirs: Any) -> Any:
    """Theirs without what is not known here: torch would make attributes of a scheduler of it. REQUIRES: they are alike."""
    if isinstance(mine, dict) and type(mine) is not Counter:
        return {key: known(mine[key], theirs[key]) for key in theirs if key in mine}
    if isinstance(mine, list):
        return [known(a, b) for a, b in zip(mine, theirs, strict=True)]
    return theirs


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and (isinstance(value, float) or abs(value) < 2**62)


def has_moments_like(stepping: Stepping, theirs: dict[str, Any]) -> bool:
    """What torch's own keep of a parameter is as large as it is, or a number; of others' nobody knows."""
    known = theirs.get("state")
    if not isinstance(known, dict) or not all(isinstance(of_one, dict) for of_one in known.values()):
        return False
    if not stepping.rule:
        return True
    needed = {name for name in MOMENTS[stepping.rule] if name}
    if stepping.rule != "sgd":
        needed |= {"step"} | ({"mu_product"} if stepping.rule == "nadam" else set())
    numbers = [number for group in theirs["param_groups"] for number in group["params"]]
    masters = (one for group in stepping.groups for one in group["params"])
    for number, master in zip(numbers, masters, strict=True):
        of_one = known.get(number, {})
        if not of_one:
            continue  # it has not stepped yet
        if set(of_one) != needed:
            return False
        for key, value in of_one.items():
            alone = key in ("step", "mu_product")
            if not alone and key == "momentum_buffer" and value is None:
                continue
            if not isinstance(value, torch.Tensor) or (value.numel() != 1 if alone else value.shape != master.shape):
                return False
    return True


# Of which a policy keeps a number for each slice of the weights; all else is as large as these.
BY_SLICE = {"largest_rates"}


def is_of_policy(policy: Any, stepping: Stepping, saved: Any) -> bool:
    truth = stepping.weights.truth
    if not isinstance(saved, dict) or not all(isinstance(tensor, torch.Tensor) for tensor in saved.values()):
        return False
    for name, tensor in saved.items():
        flat = tensor.shape == truth.shape and tensor.dtype == truth.dtype
        numbers = tensor.shape == (len(stepping.state().groups),) and tensor.dtype == torch.float64
        if not (numbers if name in BY_SLICE else flat):
            return False
    try:
        policy.load_state({name: there(tensor, stepping) for name, tensor in saved.items()})
        return set(policy.state()) == set(saved)
    except (RuntimeError, IndexError, TypeError, ValueError):  # it looked for something that is not there
        return False


def refuse_other_scheduler(index: int, stepping: Stepping, state: dict[str, Any], place: str) -> None:
    mine_is = type(stepping.scheduler).__name__
    theirs_is = state.get("scheduler_name", type(None).__name__)
    if not isinstance(theirs_is, str) or mine_is != theirs_is:
        said = {"NoneType": "without a scheduler"}
        theirs = said.get(theirs_is, f"with {theirs_is}") if isinstance(theirs_is, str) else "with something else"
        raise ConfigError(
            f"{place}: stage {index} was trained {theirs}; it is {said.get(mine_is, f'with {mine_is}')} here"
        )
    if stepping.scheduler and not is_alike(stepping.scheduler.state_dict(), state.get("scheduler")):
        raise ConfigError(f"{place}: stage {index} was trained with a {mine_is} of another kind than here")


def refuse_other_model(pipe: Pipeline, index: int, state: dict[str, Any], place: str) -> None:
    mine, theirs = pipe.modules[index].state_dict(), state["model"]
    for name in [*mine, *theirs]:
        if name not in theirs or name not in mine:
            where = "the file has none" if name not in theirs else "only the file has it"
            raise ConfigError(f"{place}: stage {index} is another one ({name!r}: {where})")
        if isinstance(mine[name], torch.Tensor) != isinstance(theirs[name], torch.Tensor):
            raise ConfigError(f"{place}: stage {index} is another one ({name!r} is a tensor here or there only)")
        if isinstance(mine[name], torch.Tensor) and not is_alike(mine[name], theirs[name]):
            there, here = (
                f"{str(one.dtype).removeprefix('torch.')}{list(one.shape)}" for one in (theirs[name], mine[name])
            )
            raise ConfigError(f"{place}: stage {index} is another one ({name!r} is {there} there and {here} here)")


def restore_stage(pipe: Pipeline, index: int, state: dict[str, Any]) -> None:
    """REQUIRES: the state is one of this stage."""
    model = OrderedDict(state["model"])
    older = state.get("versions", {})
    # As state_dict() says it: which form a module's state is of.
    model._metadata = {  # type: ignore[attr-defined]
        name: {"version": older.get(name, 1)} for name, _ in pipe.modules[index].named_modules()
    }
    if index in pipe.versions:
        pipe.versions[index].settle()  # what is loaded into the module are the true weights
    pipe.modules[index].load_state_dict(model)
    stepping = pipe.steppings.get(index)
    if not stepping or not stepping.optimizer:
        return
    scheduler = state.get("scheduler")
    if stepping.scheduler and scheduler:
        scheduler = known(stepping.scheduler.state_dict(), scheduler)
    stepping.restore(as_here(stepping.optimizer, state["optimizer"]), state["steps"], scheduler)
    pipe.policies[index].load_state({name: there(tensor, stepping) for name, tensor in state["policy"].items()})


def as_here(optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> dict[str, Any]:
    """What it has done, computed as this one computes: it may be on another device."""
    groups = [
        {**theirs, **{key: mine[key] for key in HOW if key in mine}}
        for theirs, mine in zip(saved["param_groups"], optimizer.param_groups, strict=True)
    ]
    return {**saved, "param_groups": groups}


def there(tensor: torch.Tensor, stepping: Stepping) -> torch.Tensor:
    """What a policy keeps of each weight is where the weights are."""
    truth = stepping.weights.truth
    return tensor.to(truth.device) if tensor.shape == truth.shape else tensor
