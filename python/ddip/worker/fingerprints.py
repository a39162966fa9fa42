"""What variables hold, in few bytes: equal on two ranks if and (as good as) only if the values are."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any


def of_variables(names: list[str], variables: Mapping[str, Any]) -> dict[str, str]:
    """Path → fingerprint: `model.layer.weight`, `optimizer.state[0].momentum`, `x`. What has no value to compare, a
    function for instance, is left out. KeyError: there is no such variable."""
    found: dict[str, str] = {}
    for name in names:
        found.update((path, fingerprint(value)) for path, value in parts(name, variables[name], 0))
    return found


def parts(path: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.nn.Module):
        for name, tensor in [*value.named_parameters(), *value.named_buffers()]:
            yield f"{path}.{name}", tensor
    elif torch is not None and isinstance(value, torch.optim.Optimizer):
        for number, state in value.state_dict()["state"].items():
            yield from parts(f"{path}.state[{number}]", state, depth + 1)
    elif isinstance(value, Mapping) and depth < 4:
        for key, item in value.items():
            yield from parts(f"{path}[{key!r}]", item, depth + 1)
    elif isinstance(value, list | tuple) and depth < 4:
        for index, item in enumerate(value):
            yield from parts(f"{path}[{index}]", item, depth + 1)
    elif hasattr(value, "tobytes") or hasattr(value, "data_ptr") or isinstance(value, int | float | str | bytes | None):
        yield path, value


def fingerprint(value: Any) -> str:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            value = value.to_dense()
        flat = value.detach().cpu().contiguous()
        about = f"{flat.dtype} {tuple(flat.shape)}"
        data = flat.reshape(-1).view(torch.uint8).numpy().data if flat.numel() else b""
    elif hasattr(value, "tobytes"):
        about, data = f"{getattr(value, 'dtype', '')} {getattr(value, 'shape', '')}", value.tobytes()
    else:
        about, data = type(value).__name__, repr(value).encode()
    made = hashlib.blake2b(about.encode(), digest_size=16)
    made.update(data)
    return made.hexdigest()
