"""What variables hold, in few bytes: equal on two ranks if and (as good as) only if the values are."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping, Set
from typing import Any

DEEPEST = 4  # of lists and dicts in each other, which may go round in a ring


class NotCompared:
    """Stands for a value that has nothing to compare it by; `why` is what it is, a function for instance."""

    def __init__(self, why: str) -> None:
        self.why = why


def of_variables(names: list[str], variables: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Path → fingerprint: `model.layer.weight`, `optimizer.state[0].momentum`, `x`; and path → why, of what is not
    compared. KeyError: there is no such variable."""
    found: dict[str, str] = {}
    left_out: dict[str, str] = {}
    for name in names:
        for path, value in parts(name, variables[name], 0):
            if isinstance(value, NotCompared):
                left_out[path] = value.why
            else:
                found[path] = fingerprint(value)
    return found, left_out


def parts(path: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.nn.Module):
        for name, tensor in [*value.named_parameters(), *value.named_buffers()]:
            yield f"{path}.{name}", tensor
    elif torch is not None and isinstance(value, torch.optim.Optimizer):
        held = value.state_dict()
        for number, state in held["state"].items():
            yield from parts(f"{path}.state[{number}]", state, 1)
        for number, group in enumerate(held["param_groups"]):
            rates = {key: item for key, item in group.items() if key != "params"}  # those are numbers of parameters
            yield from parts(f"{path}.param_groups[{number}]", rates, 1)
    elif isinstance(value, Mapping | list | tuple) and value:
        if depth == DEEPEST:
            yield path, NotCompared(f"deeper than {DEEPEST} levels")
        elif isinstance(value, Mapping):
            for key, item in value.items():
                yield from parts(f"{path}[{key!r}]", item, depth + 1)
        else:
            for index, item in enumerate(value):
                yield from parts(f"{path}[{index}]", item, depth + 1)
    elif is_memory(value) or is_plain(value) or isinstance(value, Mapping | list):  # those two are empty
        yield path, value
    else:
        yield path, NotCompared(type(value).__name__)


def is_memory(value: Any) -> bool:
    """Tensors and arrays, but no array of references: an address says nothing."""
    bytes_of_it = hasattr(value, "tobytes") or hasattr(value, "data_ptr")
    return bytes_of_it and not getattr(getattr(value, "dtype", None), "hasobject", False)


def is_plain(value: Any) -> bool:
    """Equal values have the same text()."""
    if isinstance(value, Set | tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, int | float | complex | str | bytes)


def text(value: Any) -> str:
    if isinstance(value, Set):  # in no order of its own
        return f"{type(value).__name__}{sorted(map(text, value))}"
    if isinstance(value, tuple):
        return f"{type(value).__name__}{[*map(text, value)]}"
    return f"{type(value).__name__} {value!r}"


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
        about, data = type(value).__name__, text(value).encode("utf-8", "surrogatepass")
    made = hashlib.blake2b(about.encode(), digest_size=16)
    made.update(data)
    return made.hexdigest()
