"""`ddip replay LEDGER`: was it computed as it says? Exit 0 identical, 1 it differs or the program failed, 2 the request was wrong."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import sys
import time
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from ddip.errors import ConfigError
from ddip.pipeline.ledger import Ledger, read

if TYPE_CHECKING:
    from ddip.pipeline.replay import Replay


class _Arguments(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; ddip replay --help explains")


class ProgramFailed(Exception):
    """The program that the ledger names raised."""


# A program that ends itself has compared nothing: its exit code must not become the answer.
FAILURES = (Exception, SystemExit)


def main(arguments: list[str]) -> int:
    try:
        return _run(arguments)
    except ConfigError as error:
        return _complain(str(error), 2)
    except ProgramFailed as error:
        return _complain(str(error), 1)


def _run(arguments: list[str]) -> int:
    parser = _Arguments(prog="ddip replay", description="compute a pipeline's run again from its ledger, and compare")
    parser.add_argument("ledger", metavar="LEDGER")
    parser.add_argument("--program", metavar="FILE.py:factory", help="in place of the one that the ledger names")
    parser.add_argument("--json", action="store_true", help="print the answer for programs")
    asked = parser.parse_args(arguments)
    ledger = read(asked.ledger)
    # What the program prints would stand before the answer that another program is to read.
    with contextlib.redirect_stdout(sys.stderr) if asked.json else contextlib.nullcontext():
        result, seconds = _replayed(ledger, asked.program)
    header = ledger.header
    if asked.json:
        answer = {
            "identical": result.identical,
            "difference": result.difference,
            "actions": result.actions,
            "steps": result.steps,
        }
        print(json.dumps({**answer, "notes": result.notes, "seconds": round(seconds, 3)}))
        return 0 if result.identical else 1
    print(
        f"{header['stages']} stages, {header['schedule']}, {header['staleness']}, {header['micro_batches']} micro-batches"
    )
    for note in result.notes:
        print(f"note: {note}")
    print(f"replayed {result.actions} of {len(ledger.records)} actions, {result.steps} steps, in {seconds:.1f} s")
    print("identical" if result.identical else f"first difference: {result.difference}")
    return 0 if result.identical else 1


def _replayed(ledger: Ledger, program: str | None) -> tuple[Replay, float]:
    """Its answer, and the seconds that it took."""
    stages, loss, batches = _built(_program_of(ledger, program))

    from ddip.pipeline.replay import replay  # torch: not before the ledger is known to be good

    began = time.monotonic()
    try:
        result = replay(ledger, stages, loss, batches)
    except ConfigError:
        raise
    except FAILURES as error:
        raise ProgramFailed(f"the program failed: {_last_line(error)}") from None
    return result, time.monotonic() - began


def _program_of(ledger: Ledger, asked: str | None) -> tuple[Path, str]:
    """A ledger is data from anywhere: it may name a program beside it or in the current folder, no other."""
    named = asked if asked is not None else ledger.header["program"]
    if named is None:
        raise ConfigError("the ledger names no program; expected --program FILE.py:factory")
    file, colon, factory = str(named).rpartition(":")
    if not colon or not file.endswith(".py") or not factory.isidentifier():
        raise ConfigError(f"program {named!r}; expected FILE.py:factory")
    places = [Path.cwd()] if asked is not None else [ledger.folder, Path.cwd()]
    for place in places:
        path = (place / file).resolve()
        if asked is None and not any(path.is_relative_to(allowed.resolve()) for allowed in places):
            continue
        if path.is_file():
            return path, factory
    if asked is not None:
        raise ConfigError(f"--program {file}: no such file")
    raise ConfigError(f"program {file}: not beside the ledger nor in this folder; expected --program FILE.py:factory")


def _built(program: tuple[Path, str]) -> tuple[list[Any], Any, Any]:
    path, factory = program
    module = _imported(path)
    make = getattr(module, factory, None)
    if not callable(make):
        raise ConfigError(f"{path.name} has no function {factory}")
    try:
        made = make()
    except FAILURES as error:
        raise ProgramFailed(f"{path.name}:{factory} failed: {_last_line(error)}") from None
    if not isinstance(made, tuple) or len(made) != 3 or not callable(made[1]):
        raise ConfigError(f"{path.name}:{factory} gave {type(made).__name__}; expected (stages, loss, batches)")
    return list(made[0]), made[1], made[2]


def _imported(path: Path) -> ModuleType:
    described = importlib.util.spec_from_file_location(path.stem, path)
    assert described is not None and described.loader is not None
    module = importlib.util.module_from_spec(described)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent))
    try:
        described.loader.exec_module(module)
    except FAILURES as error:
        raise ProgramFailed(f"{path.name} failed: {_last_line(error)}") from None
    return module


def _last_line(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name} line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{where}"


def _complain(text: str, code: int) -> int:
    sys.stdout.flush()
    print(f"ddip replay: {' '.join(text.split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
