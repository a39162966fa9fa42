"""A buffer that several stages have. One that is only read is the same everywhere; one that a forward writes, as a batch norm
does its running mean, would be another one in each stage."""

from __future__ import annotations

from collections.abc import Collection

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from ddip.errors import ConfigError


def refuse_shared_statistics(modules: list[nn.Module], written: Collection[str] = ()) -> None:
    """`modules`: one for each stage. `written`: names of buffers that forwards write, where they are known."""
    first: dict[int, tuple[int, str]] = {}
    for stage, module in enumerate(modules):
        for name, buffer in module.named_buffers(remove_duplicate=False):
            at, other = first.setdefault(id(buffer), (stage, name))
            if at != stage and ({name, other} & set(written) or _counts(module, name)):
                same = "" if name == other else f", there {other}"
                raise ConfigError(
                    f"buffer {name} of stage {stage} is in stage {at} too{same}, and each forward writes it; expected all its "
                    "uses in one stage"
                )


def _counts(module: nn.Module, name: str) -> bool:
    owner = module.get_submodule(name.rpartition(".")[0])
    return isinstance(owner, _NormBase) and owner.track_running_stats
