"""Runs a cell's source in `__main__`: with IPython if it is installed (magics, rich display, Out[]), else plain Python."""

from __future__ import annotations

import ast
import builtins
import sys
import traceback
import types
from dataclasses import dataclass
from typing import Any

from ddip.worker.users_frames import first_stop, users_frames

_shell: Any = None  # IPython's; None where it is not installed
_created = False


@dataclass
class Outcome:
    error: BaseException | None = None
    has_value: bool = False
    value: Any = None


def create() -> None:
    """Called in the warm parent: an IPython shell takes 0.4 s to make, a fork of one nothing."""
    global _shell, _created
    if _created:
        return
    _created = True
    fresh_main()
    try:
        from ddip.worker import ipython_shell
    except ImportError:
        return
    _shell = ipython_shell.create(sys.modules["__main__"])


def fresh_main() -> None:
    """Cells live in a `__main__` of their own, not in the module that started us."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main


def run(source: str, cell: int, colours: bool) -> Outcome:
    """`colours`: whether `x?` may use them. Tracebacks always do; whoever shows one takes them away if need be."""
    create()
    if _shell is not None:
        outcome: Outcome = _shell.run_source(source, cell, colours)
        return outcome
    return run_plain(source, cell)


def run_plain(source: str, cell: int) -> Outcome:
    """Plain Python: the last expression's value is the cell's, and its repr is printed."""
    namespace = sys.modules["__main__"].__dict__
    name = f"<cell {cell}>"
    remember_source(name, source)
    try:
        tree = ast.parse(source, name)
        last = take_last_expression(tree)
        exec(compile(tree, name, "exec"), namespace)
        if last is None:
            return Outcome()
        value = eval(compile(last, name, "eval"), namespace)
        if value is not None:
            print(safe_repr(value))
        return Outcome(has_value=value is not None, value=value)
    except BaseException as error:
        return Outcome(error=error)


def take_last_expression(tree: ast.Module) -> ast.Expression | None:
    """Off the tree, if it ends in one: its value is the cell's."""
    if not tree.body or not isinstance(tree.body[-1], ast.Expr):
        return None
    expression = ast.Expression(tree.body[-1].value)
    del tree.body[-1]
    return expression


def remember_source(name: str, source: str) -> None:
    """Tracebacks and inspect show the cell's lines."""
    import linecache

    linecache.cache[name] = (len(source), None, source.splitlines(True), name)


def safe_repr(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:
        return f"<{type(value).__name__}: its repr failed: {error}>"
    return text if len(text) <= 10_000 else text[:10_000] + " …"


def format_error(error: BaseException) -> str:
    # An interrupt's traceback is wanted at once, and nobody studies it.
    if _shell is not None and not isinstance(error, KeyboardInterrupt):
        return str(_shell.format_error(error))
    error = first_stop(error)
    return "".join(traceback.format_exception(type(error), error, users_frames(error) or error.__traceback__))


def complete(code: str, cursor: int) -> dict[str, Any]:
    create()
    if _shell is not None:
        return dict(_shell.complete_source(code, cursor))
    import rlcompleter

    start = cursor
    while start > 0 and (code[start - 1].isalnum() or code[start - 1] in "._"):
        start -= 1
    completer = rlcompleter.Completer(sys.modules["__main__"].__dict__)
    matches, index = [], 0
    while (match := completer.complete(code[start:cursor], index)) is not None:
        matches.append(match.rstrip("("))
        index += 1
    return {"matches": matches, "start": start, "end": cursor}


def inspect(code: str, cursor: int, detail: int, colours: bool) -> dict[str, Any]:
    create()
    if _shell is not None:
        return dict(_shell.inspect_source(code, cursor, detail, colours))
    end = cursor
    while end < len(code) and (code[end].isalnum() or code[end] in "._"):
        end += 1
    start = cursor
    while start > 0 and (code[start - 1].isalnum() or code[start - 1] in "._"):
        start -= 1
    import pydoc

    try:
        found = eval(code[start:end], sys.modules["__main__"].__dict__)
    except Exception:
        return {"found": False}
    return {"found": True, "data": {"text/plain": pydoc.render_doc(found, renderer=pydoc.plaintext)}}  # type: ignore[attr-defined]
