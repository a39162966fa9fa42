"""`ddip partition FILE.py:FACTORY`: traces the model, measures it, cuts it, writes the plan. `ddip` has checked the flags."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from ddip.errors import ConfigError
from ddip.pipeline.writable import refuse_unwritable

UNITS = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
MOST_BYTES = 2**50  # what a plan's file can say
SLOWEST, FASTEST = 1e-6, 1e12  # MB/s; no link is beyond, and times stay numbers


class FactoryFailed(Exception):
    """The user's own code raised."""


class _Arguments(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"ddip partition: {message}; ddip partition --help explains")


def main(arguments: list[str]) -> int:
    try:
        return _run(arguments)
    except ConfigError as error:
        return _complain(str(error), 2)
    except (FactoryFailed, OSError) as error:
        return _complain(str(error), 1)


def _complain(text: str, code: int) -> int:
    line = " ".join(text.split())
    print(line if line.startswith("ddip") else f"ddip partition: {line}", file=sys.stderr)
    return code


def _run(arguments: list[str]) -> int:
    parser = _Arguments(prog="ddip partition", add_help=False)
    parser.add_argument("model")
    parser.add_argument("--stages", type=int, required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--svg")
    parser.add_argument("--input", action="append", default=[])
    parser.add_argument("--whole", action="append", default=[])
    parser.add_argument("--memory", default="")
    parser.add_argument("--link", default="")
    parser.add_argument("--micro-batches", type=int, default=8)
    for flag in ("--mixed", "--mirrored", "--recompute", "--json"):
        parser.add_argument(flag, action="store_true")
    asked = parser.parse_args(arguments)
    memory, link = memory_of(asked.memory), speed_of(asked.link)
    refuse_unwritable("ddip partition", [asked.out, asked.svg])
    model, inputs = load(asked.model, asked.input)

    from ddip.pipeline.partition import plan_for
    from ddip.pipeline.trace import classes_of, trace

    try:
        traced = trace(model, inputs, leaves=classes_of(model, asked.whole, "ddip partition --whole "))
        plan = plan_for(
            traced,
            inputs,
            asked.stages,
            placement="mirrored" if asked.mirrored else "mixed" if asked.mixed else "single",
            memory_cap=memory,
            recompute=asked.recompute,
            link_bytes_per_ms=link,
            name=asked.model,
        )
    except ConfigError:
        raise
    except Exception as error:  # the model's own code runs in there
        raise failed(asked.model, error) from error
    write(asked.out, str(plan))
    if asked.svg:
        write(asked.svg, plan.picture())
    if asked.json:
        print(json.dumps({"stages": plan.stages, "device_of": plan.device_of, **plan.predict()}))
        return 0
    print(plan.table(asked.micro_batches), end="")
    if not link:
        print("links were not counted: --link says how fast they are")
    print(f"the plan is in {asked.out}" + (f", a picture of it in {asked.svg}" if asked.svg else ""))
    return 0


def memory_of(text: str) -> int:
    """Bytes; no text: no cap."""
    if not text:
        return 0
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text)
    unit = UNITS.get(found[2].lower()) if found else None
    if not found or unit is None or not 1 <= float(found[1]) * unit <= MOST_BYTES:
        raise ConfigError(f"ddip partition --memory {text}: expected bytes of one device, as 512MiB or 8GiB")
    return int(float(found[1]) * unit)


def speed_of(text: str) -> float:
    """Bytes in a millisecond, of megabytes in a second."""
    if not text:
        return 0.0
    if not re.fullmatch(r"\d+(\.\d+)?", text) or not SLOWEST <= float(text) <= FASTEST:
        raise ConfigError(f"ddip partition --link {text}: expected megabytes per second, as 1000")
    return float(text) * 1000


def input_of(text: str) -> Any:
    import torch

    found = re.fullmatch(r"(\d+(?:x\d+)*)(?::(\w+))?", text)
    dtype = getattr(torch, found[2] or "float32", None) if found else None
    numbers = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)
    usual = isinstance(dtype, torch.dtype) and (dtype.is_floating_point or dtype.is_complex or dtype in numbers)
    if not found or not usual or dtype is None:
        raise ConfigError(f"ddip partition --input {text}: expected a shape, as 8x3x32x32 or 8x128:int64")
    shape = [int(size) for size in found[1].split("x")]
    if 0 in shape:
        raise ConfigError(f"ddip partition --input {text}: it has no element; expected sizes from 1 on")
    try:
        # Whole numbers are indices into something: 0 is in every table.
        return torch.randn(shape).to(dtype) if dtype.is_floating_point else torch.zeros(shape, dtype=dtype)
    except (RuntimeError, OverflowError, TypeError) as error:
        raise ConfigError(f"ddip partition --input {text}: {' '.join(str(error).split())[:200]}") from None


def load(name: str, shapes: list[str]) -> tuple[Any, tuple[Any, ...]]:
    """The model, or the list of stages, that FILE.py:FACTORY makes, and a micro-batch."""
    file, _, factory_name = name.rpartition(":")
    if not Path(file).is_file():
        raise ConfigError(f"ddip partition {name}: there is no file {file}")
    inputs = tuple(input_of(text) for text in shapes)
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # classes made in it can be found again
    sys.path.insert(0, str(Path(file).absolute().parent))
    try:
        spec.loader.exec_module(module)
        factory = getattr(module, factory_name, None)
        if not callable(factory):
            from ddip._client import did_you_mean

            here = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
            raise ConfigError(f"ddip partition {name}: {file} has no {factory_name}{did_you_mean(factory_name, here)}")
        made = factory()
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # whoever exits, even with 0, has made no model
        raise failed(name, error) from error
    return taken_apart(name, made, inputs)


def failed(name: str, error: BaseException) -> FactoryFailed:
    place = place_of(error, name.rpartition(":")[0])
    return FactoryFailed(f"ddip partition {name}: {type(error).__name__}: {error}{place}")


def place_of(error: BaseException, file: str) -> str:
    """(net.py:12), the innermost line of the user's file."""
    line, at = None, error.__traceback__
    while at is not None:
        if at.tb_frame.f_code.co_filename == file:
            line = at.tb_lineno
        at = at.tb_next
    return f" ({Path(file).name}:{line})" if line else ""


def taken_apart(name: str, made: Any, inputs: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    from torch import nn

    model = made
    if isinstance(made, tuple) and len(made) == 2 and not isinstance(made[1], nn.Module):
        model, example = made
        inputs = inputs or (tuple(example) if isinstance(example, (tuple, list)) else (example,))
    if not isinstance(model, (nn.Module, list, tuple)):
        raise ConfigError(f"ddip partition {name}: it returned a {type(model).__name__}; expected a torch module")
    if not inputs:
        raise ConfigError(
            f"ddip partition {name}: expected --input SHAPE, or a factory that returns (model, micro-batch)"
        )
    return model, inputs


def write(path: str, text: str) -> None:
    """All of it or nothing."""
    folder = Path(path).absolute().parent
    descriptor, unfinished = tempfile.mkstemp(dir=folder, prefix=f".{Path(path).name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(unfinished, 0o644)
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
