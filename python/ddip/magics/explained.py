"""-h on a magic whose flags are in no table of C++: its docstring, which is also what `%name?` shows."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from ddip.magics.arguments import words
from ddip.magics.cell_pieces import magic_of

HELP = {"-h", "--help"}


def explained(magic: Callable[[Any, str], None]) -> Callable[[Any, str], None]:
    @functools.wraps(magic)
    def run(self: Any, line: str) -> None:
        if HELP & set(words(line)):
            return print(f"%{magic.__name__}: {inspect.getdoc(magic)}")
        return magic(self, line)

    return run


def ask_without_a_body(lines: list[str]) -> list[str]:
    """An input transformer: a cell that is nothing but `%%dip -h` asks for help. IPython refuses a cell magic without a
    body before we are called, but %dip -h answers the same."""
    said = [line for line in lines if line.strip()]
    if len(said) != 1 or not said[0].startswith("%%") or magic_of(said[0]) != "dip" or not HELP & set(said[0].split()):
        return lines
    return [said[0][1:]]
