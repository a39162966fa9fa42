"""An IPython shell for workers: no history, no terminal, no automagic; displays travel to the notebook."""

from __future__ import annotations

import ast
import base64
import json
import sys
from typing import Any

from IPython.core.completer import provisionalcompleter
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from ddip.colours import without_colours
from ddip.worker import shell as plain
from ddip.worker import streams
from ddip.worker.users_frames import users_frames

# Of its JSON text, escapes and all: the coordinator writes it so, and that must fit into a frame.
LARGEST_DISPLAY = 8 << 20
# Dictionaries and lists within each other; a message may have 32 levels in all.
DEEPEST_DISPLAY = 24


class RankDisplayPublisher(DisplayPublisher):
    """display() and friends, also from a thread that outlives its cell."""

    def publish(
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        source: Any = None,
        *,
        transient: Any = None,
        update: bool = False,
        **kwargs: Any,
    ) -> None:
        send("update" if update else "display", data, metadata, transient)

    def clear_output(self, wait: bool = False) -> None:
        from ddip.worker import born

        assert born.control is not None
        born.control.display(streams.current_cell(), {"kind": "clear", "wait": wait})


class RankDisplayHook(DisplayHook):
    """The value of a cell's last expression."""

    def write_output_prompt(self) -> None:
        pass

    def write_format_data(self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None) -> None:
        send("result", format_dict, md_dict, None)

    def quiet(self) -> bool:
        """IPython looks into its history, and workers have none."""
        source = getattr(self.shell, "source", "")
        return ";" in source and self.semicolon_at_end_of_expression(source)

    def finish_displayhook(self) -> None:
        self._is_active = False


def send(kind: str, data: dict[str, Any], metadata: dict[str, Any] | None, transient: dict[str, Any] | None) -> None:
    from ddip.worker import born

    assert born.control is not None
    if streams.is_child():
        return print(data.get("text/plain", ""))
    bundle = {"kind": kind, "data": data, "metadata": metadata or {}, "transient": transient or {}}
    text = json.dumps(bundle, default=encodable, ensure_ascii=False)
    size = len(text.encode("utf-8", "replace"))
    if size > LARGEST_DISPLAY:
        what = f"display of {size >> 20} MiB is too large to send (at most {LARGEST_DISPLAY >> 20} MiB)"
        return born.control.note(streams.current_cell(), what)
    found = json.loads(text, parse_int=sendable)
    if depth_of(found) > DEEPEST_DISPLAY:
        what = f"display of more than {DEEPEST_DISPLAY} levels is too deep to send"
        return born.control.note(streams.current_cell(), what)
    born.control.display(streams.current_cell(), found)


def depth_of(value: Any) -> int:
    """Of dictionaries and lists within each other."""
    level, depth = [value], 0
    while level := [part for one in level if isinstance(one, (dict, list)) for part in inside(one)]:
        depth += 1
    return depth


def inside(value: dict[str, Any] | list[Any]) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value


def sendable(digits: str) -> Any:
    """Integers beyond 64 bits travel as what a browser would make of them, or as text if that is infinite."""
    if len(digits) < 19:
        return int(digits)
    near = float(digits)
    if abs(near) == float("inf"):
        return digits
    whole = int(digits)
    return whole if -(1 << 63) <= whole < 1 << 64 else near


def encodable(value: Any) -> str:
    """What JSON has no word for: a picture's bytes, or somebody's own type."""
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else str(value)


class RankShell(InteractiveShell):
    def init_io(self) -> None:
        pass

    def enable_gui(self, gui: Any = None) -> None:
        pass

    source = ""  # of the cell that runs
    colours = False  # whether whoever reads its output sees them

    def run_source(self, source: str, cell: int, colours: bool) -> plain.Outcome:
        self.source, self.colours = source, colours
        tree = self.parse(source, cell)
        if isinstance(tree, BaseException):
            return plain.Outcome(error=tree)
        result = (
            self.run_cell(source, store_history=False, silent=False)
            if tree is None
            else self.run_tree(tree, source, cell)
        )
        return result if isinstance(result, plain.Outcome) else outcome_of(result)

    def parse(self, source: str, cell: int) -> Any:
        """The tree of a cell that is plain Python; None for one that needs IPython's own grammar (%, !, ?, await)."""
        if source.lstrip().startswith("%%"):
            return None
        if "await" in source or "async" in source:
            return None  # whether a loop is needed, IPython decides
        try:
            return ast.parse(source, f"<cell {cell}>")
        except SyntaxError as error:
            try:
                changed = self.transform_cell(source) != source.rstrip("\n") + "\n"
            except Exception:
                changed = True
            return None if changed else error

    def run_tree(self, tree: ast.Module, source: str, cell: int) -> plain.Outcome:
        """run_cell without history and its bookkeeping: 10 times faster for a small cell."""
        name = f"<cell {cell}>"
        compiled: Any = self.compile  # its types know source text only
        plain.remember_source(name, source)
        self.execution_count = cell
        self.events.trigger("pre_execute")
        try:
            value, has_value = None, False
            last = plain.take_last_expression(tree)
            if tree.body:
                exec(compiled(tree, name, "exec"), self.user_ns)
            if last is not None:
                value = eval(compiled(last, name, "eval"), self.user_ns)
                has_value = value is not None
                if has_value:
                    self.displayhook(value)
            return plain.Outcome(has_value=has_value, value=value)
        except BaseException as error:
            return plain.Outcome(error=error)
        finally:
            self.events.trigger("post_execute")

    def ask_exit(self) -> None:
        """exit() and quit()."""
        raise SystemExit("a cell cannot end its worker; group.stop() or %makedip -k ends the group")

    def showtraceback(self, *args: Any, **kwargs: Any) -> None:
        """The error travels as the cell's ending; it is not printed here."""

    showsyntaxerror = showtraceback

    def format_error(self, error: BaseException) -> str:
        frames = users_frames(error)
        kind = type(error)
        sys.last_type, sys.last_value, sys.last_traceback = kind, error, frames  # for %debug and %tb
        if isinstance(error, SyntaxError):
            return "\n".join(self.SyntaxTB.structured_traceback(kind, error, None))
        if frames is None:
            return f"{kind.__name__}: {error}"
        return "\n".join(self.InteractiveTB.structured_traceback(kind, error, frames))

    def complete_source(self, code: str, cursor: int) -> dict[str, Any]:
        with provisionalcompleter():
            found = list(self.Completer.completions(code, cursor))
        if not found:
            return {"matches": [], "start": cursor, "end": cursor}
        start, end = found[0].start, found[0].end
        return {"matches": [one.text for one in found if one.start == start], "start": start, "end": end}

    def inspect_source(self, code: str, cursor: int, detail: int, colours: bool) -> dict[str, Any]:
        from IPython.utils.tokenutil import token_at_cursor

        try:
            bundle = self.object_inspect_mime(token_at_cursor(code, cursor), detail_level=detail)
        except KeyError:
            return {"found": False}
        if not colours:
            bundle["text/plain"] = without_colours(bundle["text/plain"])
        return {"found": True, "data": json.loads(json.dumps(bundle, default=encodable))}

    def show_page(self, page: str | dict[str, str], start: int = 0, **sizes: Any) -> None:
        """What `x?` and its like have to say is printed: nobody could turn the pages here."""
        text = page["text/plain"] if isinstance(page, dict) else page
        text = "\n".join(text.splitlines()[start:])
        print(text if self.colours else without_colours(text))


def outcome_of(result: Any) -> plain.Outcome:
    error = result.error_before_exec or result.error_in_exec
    if error is not None:
        return plain.Outcome(error=error)
    return plain.Outcome(has_value=result.result is not None, value=result.result)


def create(main: Any) -> RankShell:
    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    config.InteractiveShell.automagic = False
    config.InteractiveShell.colors = "neutral"
    shell = RankShell.instance(
        config=config, user_module=main, displayhook_class=RankDisplayHook, display_pub_class=RankDisplayPublisher
    )
    shell.InteractiveTB.set_mode("Context")
    shell.Completer.use_jedi = False
    shell.set_hook("show_in_pager", RankShell.show_page, 0)
    return shell
