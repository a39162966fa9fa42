"""A cell for the workers, cut at our own magics: they run in the notebook, and the code between them on the workers."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

from IPython.core import inputtransformer2 as transformer
from IPython.core.error import UsageError


@dataclass(frozen=True)
class OwnMagic:
    """A line of the cell, `%name arguments`; `last` differs from `first` where backslashes continue it."""

    name: str
    arguments: str
    first: int
    last: int


def magic_of(line: str) -> str:
    """The name of the magic that the line begins with, or nothing."""
    text = line.strip()
    names = text.lstrip("%").split() if text.startswith("%") else []
    return names[0].rstrip("?") if names else ""


def is_code(line: str) -> bool:
    text = line.strip()
    return bool(text) and not text.startswith("#")


def find_own(source: str, names: Set[str]) -> list[OwnMagic]:
    """Raises UsageError if one stands where the cell cannot be cut. A cell that is not Python has none: it goes to the
    workers whole, and they say what is wrong with it before any of it runs."""
    lines = source.splitlines(keepends=True)
    if source.lstrip().startswith("%%") or not any(magic_of(line) in names for line in lines):
        return []
    lines = transformer.leading_indent(lines)
    found = []
    # As IPython does it: what follows its own syntax may not be Python, so it is replaced one at a time.
    for _ in range(len(lines)):
        special = first_special(lines)
        if special is None:
            break
        at, column = special.start_line, special.start_col
        last = transformer.find_end_of_continued_line(lines, at)
        text = transformer.assemble_continued_line(lines, (at, column), last)
        if isinstance(special, transformer.EscapedCommand) and magic_of(text) in names and not text.endswith("?"):
            require_place(text, column)
            name, _, rest = text[1:].strip().partition(" ")
            found.append(OwnMagic(name, rest.strip(), at, last))
        lines[at : last + 1] = [lines[at][:column] + "None\n", *["\n"] * (last - at)]
    try:
        compile("".join(lines), "<cell>", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError:
        return []
    return found


def first_special(lines: list[str]) -> Any:
    """IPython's syntax that comes first: %, !, ?, or an assignment from one of them."""
    tokens = transformer.make_tokens_by_line(lines)
    kinds: list[Any] = transformer.TransformerManager().token_transformers
    found = [special for special in (kind.find(tokens) for kind in kinds) if special is not None]
    return min(found, key=lambda special: (special.start_line, special.start_col), default=None)


def require_place(text: str, column: int) -> None:
    if text.startswith("%%"):
        raise UsageError(f"{text}: expected on the first line of its cell")
    if column > 0:
        raise UsageError(
            f"{text}: runs in the notebook, and the block around it on the workers; move it out of the block"
        )


def pieces(source: str, found: Sequence[OwnMagic]) -> Iterator[str | OwnMagic]:
    """Code and magics in turn. Every piece of code keeps its line numbers, and only the cell's last line has a value."""
    lines = source.splitlines(keepends=True)
    begin = 0
    for magic in found:
        if any(is_code(line) for line in lines[begin : magic.first]):
            yield "\n" * begin + "".join(lines[begin : magic.first]) + "None\n"
        yield magic
        begin = magic.last + 1
    if any(is_code(line) for line in lines[begin:]):
        yield "\n" * begin + "".join(lines[begin:])


def without(source: str, found: Sequence[OwnMagic]) -> str:
    """The code alone."""
    lines = source.splitlines(keepends=True)
    for magic in found:
        lines[magic.first : magic.last + 1] = ["None\n", *["\n"] * (magic.last - magic.first)]
    return "".join(lines)
