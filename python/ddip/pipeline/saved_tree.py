"""Whatever Python's state is made of (an optimizer's, a scheduler's, a module's extra state), as JSON beside tensors with names,
and back. Nothing in it can run: what is none of these kinds is refused when it is saved."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ddip.errors import ConfigError

Tensors = dict[str, Tensor]
# What a .safetensors file calls by its name; of others it has the bytes.
NAMED = {
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
}  # fmt: skip
LISTS: dict[str, Any] = {"tuple": tuple, "set": set, "size": torch.Size}
DICTS: dict[str, Any] = {"dict": dict, "ordered": OrderedDict, "counter": Counter}
TAGS = {kind: tag for tag, kind in {**LISTS, **DICTS}.items()}
DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
# Of which the file has the bytes; of what is no ordinary number (quantized, in bits) torch could not even show a tensor.
OTHERS = {
    name: dtype
    for name, dtype in DTYPES.items()
    if dtype not in NAMED and name.startswith(("torch.complex", "torch.float8_e", "torch.uint")) and dtype.itemsize * 8 >= 8
    and name not in {f"torch.uint{bits}" for bits in range(1, 8)}
}  # fmt: skip


def taken_apart(value: Any, name: str, where: str = "") -> tuple[str, Tensors]:
    """JSON, and the tensors in it, whose names are their ways there. Raises ConfigError, which begins with `where`."""
    tensors: Tensors = {}
    try:
        return json.dumps(_described(value, name, tensors), allow_nan=False), tensors
    except ConfigError as error:
        raise ConfigError(f"{where}{error}") from None
    except RecursionError:
        raise ConfigError(f"{where}{name} contains itself, or is too deep; it cannot be saved") from None


def put_together(text: str, tensors: Mapping[str, Tensor]) -> Any:
    """What was taken apart. Raises ConfigError if it is something else."""
    try:
        return _made(json.loads(text), tensors)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise ConfigError(f"it is damaged ({str(error).splitlines()[0]})") from None


def _described(value: Any, name: str, tensors: Tensors) -> Any:
    """An object with one key says what something is; numbers, texts and lists are themselves."""
    if isinstance(value, Tensor):
        return _described_tensor(value, name, tensors)
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if kind is list:
        return _described_items(value, name, tensors)
    tag = TAGS.get(kind)
    if tag in LISTS:
        return {tag: _described_items(value, name, tensors)}
    if tag in DICTS:
        return {tag: [_described_pair(key, part, name, tensors) for key, part in value.items()]}
    if kind is complex:
        return {"complex": [str(value.real), str(value.imag)]}
    if kind is bytes:
        return {
            "bytes": _noted(
                torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else torch.empty(0).byte(), name, tensors
            )
        }
    if kind is torch.dtype:
        return {"dtype": str(value)}
    if kind is torch.device:
        return {"device": str(value)}
    raise ConfigError(
        f"{name} is a {kind.__module__}.{kind.__qualname__}, which cannot be saved; expected numbers, texts, tensors, lists "
        f"and dictionaries"
    )


def _described_items(values: Any, name: str, tensors: Tensors) -> list[Any]:
    return [_described(part, f"{name}.{index}", tensors) for index, part in enumerate(values)]


def _described_pair(key: Any, part: Any, name: str, tensors: Tensors) -> list[Any]:
    return [_described(key, f"a key of {name}", tensors), _described(part, f"{name}.{key}", tensors)]


def _described_tensor(value: Tensor, name: str, tensors: Tensors) -> Any:
    if value.layout is not torch.strided or value.is_quantized:
        kind = "quantized" if value.is_quantized else str(value.layout)
        raise ConfigError(f"{name} is a tensor of the kind {kind}, which cannot be saved; expected an ordinary one")
    flat = value.detach()
    if value.dtype in NAMED:
        return {"tensor": _noted(flat, name, tensors)}
    if str(value.dtype) not in OTHERS:
        raise ConfigError(f"{name} is a tensor of {value.dtype}, which cannot be saved; expected an ordinary one")
    flat = flat.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    return {"bytes of": [_noted(flat, name, tensors), str(value.dtype), list(value.shape)]}


def _noted(tensor: Tensor, name: str, tensors: Tensors) -> str:
    while name in tensors:  # keys 1 and "1" have one name
        name += "'"
    tensors[name] = tensor
    return name


def _made(told: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(told, list):
        return [_made(part, tensors) for part in told]
    if not isinstance(told, dict):
        return told
    ((tag, what),) = told.items()
    if tag == "tensor":
        return tensors[what]
    if tag == "bytes of":
        name, dtype, shape = what
        return tensors[name].view(OTHERS[dtype]).reshape(shape)
    if tag in DICTS:
        made = DICTS[tag]()
        for key, part in what:
            made[_made(key, tensors)] = _made(part, tensors)
        return made
    if tag in LISTS:
        return LISTS[tag](_made(what, tensors))
    if tag == "float":
        return float(what)
    if tag == "complex":
        return complex(float(what[0]), float(what[1]))
    if tag == "bytes":
        return tensors[what].numpy().tobytes()
    if tag == "dtype":
        return DTYPES[what]
    if tag == "device":
        return torch.device(what)
    raise ValueError(f"nothing is called {tag!r}")
