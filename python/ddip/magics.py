"""The notebook's magics. Each does one thing to the current group; what can go wrong is one line (UsageError)."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_cell_magic, line_magic, magics_class

from ddip import _client, display, remote_completion
from ddip import group as groups
from ddip.cell import Cell
from ddip.errors import ConfigError, PeerLost, RankError, TimedOut

# After so many seconds without news a cell says by itself who is where.
SILENCE = 10.0
# After the interrupt that comes before it, Jupyter's request to shut down arrives within this time.
SHUTDOWN = 0.15
# So long the second press of stop waits for the new process of a rank that it killed.
REPLACED = 10.0

COLOURS = re.compile("\x1b\\[[0-9;]*m")

OWN_MAGICS = (
    "dip",
    "makedip",
    "autodip",
    "dipush",
    "dipull",
    "dipper",
    "diplog",
    "dipwhy",
    "load_ext",
    "unload_ext",
    "reload_ext",
)


def words(line: str) -> list[str]:
    try:
        return shlex.split(line)
    except ValueError as error:
        raise UsageError(f"cannot read the line: {error}") from None


class CellFailed(Exception):
    """Raised under a cell whose ranks failed. Its text is one line; the notebook shows the ranks' tracebacks, not ours."""

    def __init__(self, error: RankError) -> None:
        self.error = error
        super().__init__(one_sentence(error))

    def _render_traceback_(self) -> list[str]:
        return str(self.error).splitlines()


class CellInterrupted(KeyboardInterrupt):
    """The cell was stopped: one line, not our frames."""

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}"]


def one_sentence(error: RankError) -> str:
    """`rank 1: ValueError: boom`, of the first rank that failed."""
    if not error.ranks:
        return str(error)
    rank = error.ranks[0]
    if rank in error.lost:
        return f"rank {rank} is lost: {error.lost[rank].splitlines()[0]}"
    lines = [line for line in COLOURS.sub("", error.tracebacks.get(rank, "")).splitlines() if line.strip()]
    return f"rank {rank}: {lines[-1].strip() if lines else 'failed'}"


@magics_class
class DipMagics(Magics):
    shell: Any  # there is always one

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.group: groups.Group | None = None
        self.auto: str | None = None
        self.stuck: set[int] = set()  # cells that one press of stop did not end
        self.client_name = ""
        self.last_name = ""  # of the group that was here last

    # ---- groups

    @line_magic
    def makedip(self, line: str) -> None:
        """Start, attach to, restart, stop or show a group of workers; %makedip -h explains."""
        flags = words(line)
        if flags[-1:] == ["--attach"]:
            flags.append(groups.default_name())  # this notebook's own
        with self._one_line():
            checked = _client.check_group_flags(
                flags, "%makedip", groups.worker_environment(), os.environ.get("DDIP_TEST_DEVICES")
            )
            if "help" in checked:
                print(checked["help"])
                return
            self.client_name = checked["client"] or groups.default_name()
            action: Callable[..., None] = getattr(self, f"_{checked['action']}_group")
            action(flags, checked)

    def _info_group(self, flags: list[str], checked: dict[str, Any]) -> None:
        name = checked["name"]
        if name and (self.group is None or self.group.name != name):
            print(describe_info(groups.attach(name, self.client_name).info(), verbose=True))
        elif self._find() is None:
            print("no group here; %makedip starts one" + running_groups())
        else:
            print(describe_info(self._need().info(), verbose=True))

    def _kill_group(self, flags: list[str], checked: dict[str, Any]) -> None:
        target = groups.attach(checked["name"], self.client_name) if checked["name"] else self._find()
        if target is None:
            print("no group here; nothing to stop" + running_groups())
            return
        target.stop()
        if self.group is not None and self.group.name == target.name:
            self.group = None
        print(f"group {target.name} stopped")

    def _restart_group(self, flags: list[str], checked: dict[str, Any]) -> None:
        current = groups.attach(checked["name"], self.client_name) if checked["name"] else self._find()
        if current is None:
            return self._start_group([flag for flag in flags if flag not in ("-r", "--restart")], checked)
        if checked["has_shape"]:
            current.stop()
            return self._start_new([flag for flag in flags if flag not in ("-r", "--restart")], checked)
        begun = time.monotonic()
        current.restart()
        self.group = current
        print(f"group {current.name}: {current.world_size} workers restarted, empty ({time.monotonic() - begun:.2f} s)")

    def _attach_group(self, flags: list[str], checked: dict[str, Any]) -> None:
        self._attach(checked["name"])

    def _start_group(self, flags: list[str], checked: dict[str, Any]) -> None:
        name = checked["name"] or groups.default_name()
        if name not in groups.groups():
            return self._start_new(flags, checked)
        running = groups.attach(name, self.client_name)
        info = running.info()
        same = not checked["has_shape"] or (
            info["world_size"] == checked["world_size"] and info["gpus"] == checked["gpus"]
        )
        if same:
            return self._attach(name)
        if info["user_cells"] == 0:
            running.stop()
            return self._start_new(flags, checked)
        cells = ", ".join(f"cell {cell['cell']} ({cell['line']})" for cell in info["cells"]) or "none"
        raise UsageError(
            f"group {name} is running with {info['world_size']} workers (running cells: {cells}): "
            f"%makedip --attach {name} joins it, %makedip -r {' '.join(flags)} replaces it"
        )

    def _start_new(self, flags: list[str], checked: dict[str, Any]) -> None:
        begun = time.monotonic()
        warn_root()
        name = groups.start_group(flags, "%makedip", lambda line: None)
        self.group = groups.Group._attached(name, self.client_name)
        info = self.group.info()
        print(f"group {name}: {info['sentence']} ({time.monotonic() - begun:.1f} s)\n  it {life_of(info)}")
        if checked["verbose"]:
            print(describe_info(info, verbose=True))

    def _attach(self, name: str) -> None:
        """Joins a group and shows what this notebook has not seen: first the past, then live what is still running."""
        self.group = groups.attach(name, self.client_name)
        info = self.group.info()
        running = len(info["cells"])
        print(
            f"attached to group {name}: {info['sentence']}"
            + (f", {running} cell{'s' if running > 1 else ''} running" if running else "")
        )
        screen = display.screen_for(self.shell)
        Replay(self.group, screen).run()

    def _one_line(self, command: str = "") -> one_line:
        return one_line(command, self._lost)

    def _lost(self, error: PeerLost) -> str:
        """A connection broke: what to say, after making a new one if the group lives."""
        if self.group is None:
            return str(error)
        name = self.group.name
        if _client.is_running(self.group._folder):
            self.group = groups.attach(name, self.client_name)
            return f"lost the connection to group {name} ({error}); it is there again"
        self.group = None
        return f"{gone(name)} ({error})"

    def _find(self) -> groups.Group | None:
        """This notebook's group, also after its kernel was restarted."""
        if self.group is not None:
            self.last_name = self.group.name
            if not _client.is_running(self.group._folder):
                self.group = None
        if self.group is None and groups.default_name() in groups.groups():
            self.client_name = self.client_name or groups.default_name()
            self.group = groups.attach(groups.default_name(), self.client_name)
        return self.group

    def _need(self) -> groups.Group:
        had = self.group
        found = self._find()
        if found is None:
            raise UsageError(
                (gone(had.name) if had is not None else "no group here; %makedip starts one") + running_groups()
            )
        return found

    # ---- cells

    @line_cell_magic
    def dip(self, line: str, cell: str | None = None) -> None:
        """Run the cell on the workers: %%dip [remote|local|everywhere] [flags]; %%dip -h explains."""
        if cell is None:
            return self._line_dip(line)
        with self._one_line():
            options = _client.parse_cell_flags(words(line), "%%dip")
            if "help" in options:
                print(options["help"])
                return
            if options["place"] in ("local", "everywhere"):
                self._run_local(cell, goes_on=options["place"] == "everywhere")
            if options["place"] in ("remote", "everywhere"):
                self._run_remote(cell, options)

    def _run_local(self, source: str, goes_on: bool) -> None:
        auto, self.auto = self.auto, None  # or autodip would send it away again
        try:
            result = self.shell.run_cell(source, silent=False, store_history=False)
        finally:
            self.auto = auto
        if not result.success:
            raise CellStopped("the cell failed here" + (", so it was not sent to the workers" if goes_on else ""))

    def _line_dip(self, line: str) -> None:
        """Older spelling: %dip --push a b."""
        parts = words(line)
        if parts[:1] in (["-h"], ["--help"]):
            print(_client.parse_cell_flags(["--help"], "%%dip")["help"])
            return
        if parts[:1] == ["--push"]:
            return self._push(" ".join(parts[1:]))
        if parts[:1] == ["--pull"]:
            return self._pull(" ".join(parts[1:]))
        raise UsageError("%dip --push NAMES or --pull NAMES; to run code use %%dip at the top of a cell")

    def _run_remote(self, source: str, options: dict[str, Any]) -> None:
        group = self._need()
        ranks = _client.parse_rank_list(options["ranks"], group.world_size, "%%dip --ranks")
        see = [
            rank for rank in _client.parse_rank_list(options["see"], group.world_size, "%%dip --see") if rank in ranks
        ]
        body = {
            "kind": "cell", "code": source, "first_line": groups.first_line(source), "memory": options["verbose"],
            "want_value": bool(options["out"] or options["async"]), "name": options["async_name"],
        }  # fmt: skip
        screen = display.screen_for(self.shell)
        cell = group.submit(body, ranks, keep_all=False)
        renderer = display.renderer(screen, see, options["plain"], options["quiet"])
        if options["async"]:
            AsyncShow(cell, renderer, screen).start()
            self._bind(options["async_name"], cell)
            print(
                f"cell {cell.number} runs on {group.name}; "
                + (
                    f"{options['async_name']}.wait() waits for it"
                    if options["async_name"]
                    else "it shows its output here"
                )
            )
            return
        if cell.behind:
            self._say_behind(cell)
        self._follow(cell, renderer)
        if options["out"]:
            self._bind(options["out"], cell.results())
        if options["verbose"]:
            print(footer(cell))

    def _say_behind(self, cell: Cell) -> None:
        """Never queue silently: who is still in what, and what stop would do here."""
        waiting: dict[tuple[int, str], set[int]] = {}
        for one in cell.behind:
            waiting.setdefault((one["cell"], one["line"]), set()).add(one["rank"])
        for (number, text), ranks in sorted(waiting.items()):
            where = f"rank{'s' if len(ranks) > 1 else ''} {_client.rank_list(sorted(ranks))}"
            stop = f"stop replaces {where} by empty ones" if number in self.stuck else "stop takes this cell back"
            print(f"ddip: waits behind cell {number} ({text}), still running on {where}; {stop}")

    def _bind(self, name: str, value: Any) -> None:
        if name:
            self.shell.user_ns[name] = value

    def _follow(self, cell: Cell, renderer: Any) -> None:
        """Shows the cell until it is over. Stop interrupts it on every rank; the prompt is back within a second."""
        group = cell.group
        heard = time.monotonic()
        explained = False
        last_sequence = 0
        try:
            while not cell.finished:
                event = cell.pump(renderer.tick())
                if event is None:
                    if not explained and time.monotonic() - heard > SILENCE:
                        explained = True
                        renderer.show(
                            (
                                "note",
                                cell.number,
                                -1,
                                "no news for 10 s: " + " | ".join(_client.explain(group.why())),
                                0,
                                0,
                                [],
                            )
                        )
                    continue
                heard, explained = time.monotonic(), False
                last_sequence = max(last_sequence, event[4])
                if event[0] == "input_request":
                    renderer.pause()
                    answer_input(group, event)
                else:
                    renderer.show(event)
        except KeyboardInterrupt:
            if kernel_ends(self.shell):
                last_sequence = 0  # the next kernel shows this cell from its beginning
                raise CellInterrupted(f"the kernel ends; cell {cell.number} goes on") from None
            self._stop(cell, renderer)
        finally:
            renderer.finish()
            if last_sequence:
                group.client.send("acknowledge", {"sequence": last_sequence})
        try:
            cell.raise_if_failed()
        except RankError as error:
            raise CellFailed(error) from None
        except KeyboardInterrupt as error:
            raise CellInterrupted(str(error)) from None

    def _stop(self, cell: Cell, renderer: Any) -> None:
        group = cell.group
        # A second press: the cell before this one did not end by the first, and this one waits behind it.
        again = self.stuck & {one["cell"] for one in cell.behind}
        if again:
            lost = sorted({one["rank"] for one in cell.behind if one["cell"] in again})
            print(f"ddip: second press: replacing stuck rank(s) {_client.rank_list(lost)}; their variables are lost")
            before = group.pids
            for number in again:
                group.interrupt(cell=number, kill=True)
            self.stuck -= again
            await_replaced(group, lost, before)
        group.interrupt(cell=cell.number)
        deadline = time.monotonic() + groups.PROMPT - SHUTDOWN
        while not cell.finished and time.monotonic() < deadline:
            try:
                event = cell.pump(max(0.0, min(renderer.tick(), deadline - time.monotonic())))
                if event is not None and event[0] != "input_request":
                    renderer.show(event)
            except KeyboardInterrupt:
                continue  # impatience; the press that replaces ranks comes after they were named
        if cell.finished:
            return
        self.stuck.add(cell.number)
        lines = _client.explain(group.why())
        cell.follow()
        renderer.finish()
        raise StillRunning(cell, lines)

    @line_magic
    def autodip(self, line: str) -> None:
        """%autodip on|off [-a "ARGS"]: every following cell as if it began with %%dip ARGS."""
        parts = words(line)
        if not parts:
            print(
                "autodip is " + ("off" if self.auto is None else f"on: every cell runs as %%dip {self.auto}".rstrip())
            )
            return
        if parts[0] not in ("on", "off"):
            raise UsageError(f"%autodip {parts[0]}: expected on or off")
        if parts[0] == "off":
            if len(parts) > 1:
                raise UsageError(f"%autodip off takes nothing more, found: {' '.join(parts[1:])}")
            self.auto = None
        else:
            arguments = ""
            if len(parts) > 1:
                if parts[1] not in ("-a", "--args") or len(parts) != 3:
                    raise UsageError(
                        '%autodip on [-a "ARGS"]: expected -a and one quoted string, found: ' + " ".join(parts[1:])
                    )
                arguments = parts[2]
            with self._one_line():
                _client.parse_cell_flags(words(arguments), "%%dip")
                self._need()
            self.auto = arguments
        print("autodip is " + ("off" if self.auto is None else "on"))

    def send_to_workers(self, lines: list[str]) -> list[str]:
        """The input transformer behind %autodip. Cells that begin with one of our own magics stay as they are."""
        if self.auto is None:
            return lines
        for line in lines:
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            if text.startswith("%") and text.lstrip("%").split()[:1] and text.lstrip("%").split()[0] in OWN_MAGICS:
                return lines
            break
        else:
            return lines
        return [f"%%dip {self.auto}\n", *lines]

    # Else IPython asks the transformed cell whether it is complete, and a terminal wants an empty line after each line.
    send_to_workers.has_side_effects = True  # type: ignore[attr-defined]

    # ---- values

    @line_magic
    def dipush(self, line: str) -> None:
        """%dipush a b …: these variables to every worker."""
        self._push(line)

    def _push(self, line: str) -> None:
        with self._one_line("%dipush"):
            names = words(line)
            if not names:
                raise UsageError("%dipush NAMES: which variables?")
            found = {}
            for name in names:
                if name not in self.shell.user_ns:
                    raise UsageError(
                        f"%dipush {name}: no such variable here" + _client.did_you_mean(name, list(self.shell.user_ns))
                    )
                found[name] = self.shell.user_ns[name]
            self._need().push(found)

    @line_magic
    def dipull(self, line: str) -> None:
        """%dipull a b … [-r RANK|all]: these variables from a worker (rank 0), or a list of all ranks' values."""
        self._pull(line)

    def _pull(self, line: str) -> None:
        with self._one_line("%dipull"):
            parts = words(line)
            rank: Any = 0
            names = []
            index = 0
            while index < len(parts):
                if parts[index] in ("-r", "--rank"):
                    if index + 1 >= len(parts):
                        raise UsageError("%dipull -r: expected a rank or all")
                    rank = parts[index + 1]
                    index += 1
                elif parts[index].startswith("-"):
                    raise UsageError(f"%dipull {parts[index]}: unknown flag; expected -r RANK|all")
                else:
                    names.append(parts[index])
                index += 1
            if not names:
                raise UsageError("%dipull NAMES: which variables?")
            group = self._need()
            if rank != "all":
                chosen = _client.parse_rank_list(str(rank), group.world_size, "%dipull -r")
                if len(chosen) != 1:
                    raise UsageError(f"%dipull -r {rank}: expected one rank or all")
                rank = chosen[0]
            pulled = group.pull_many(names, rank)
            for name in names:
                self.shell.user_ns[name] = [one[name] for one in pulled] if rank == "all" else pulled[0][name]

    @line_magic
    def dipper(self, line: str) -> None:
        """%dipper NAME: the live Group as a variable."""
        names = words(line)
        if len(names) != 1 or not names[0].isidentifier():
            raise UsageError(f"%dipper NAME: expected one variable name, found: {line.strip() or 'nothing'}")
        self.shell.user_ns[names[0]] = self._need()

    # ---- looking

    @line_magic
    def diplog(self, line: str) -> None:
        """%diplog [CELL]: everything that was printed, from the journal; a line each with its rank."""
        parts = words(line)
        if len(parts) > 1 or (parts and not parts[0].isdigit()):
            raise UsageError(f"%diplog [CELL]: expected a cell's number, found: {line.strip()}")
        wanted = int(parts[0]) if parts else 0
        with self._one_line():
            name = self.group.name if self.group is not None else self.last_name or groups.default_name()
            folder = _client.newest_journal(groups.state_folder(), name)
            if not folder:
                raise UsageError(f"no journal of a group named {name}")
            if not print_journal(folder, wanted) and wanted:
                print(f"no cell {wanted} in the journal of group {name}")

    @line_magic
    def dipwhy(self, line: str) -> None:
        """%dipwhy: what every rank is doing now, and who is missing."""
        with self._one_line():
            print("\n".join(_client.explain(self._need().why())))


class CellStopped(Exception):
    """The local half failed; its traceback is on the screen."""

    def _render_traceback_(self) -> list[str]:
        return [f"ddip: {self}"]


class StillRunning(KeyboardInterrupt):
    def __init__(self, cell: Cell, lines: list[str]) -> None:
        self.lines = [f"cell {cell.number} was asked to stop and goes on:", *("  " + line for line in lines),
                      "nothing is lost: it ends by itself, or press stop again in the next %%dip (or `ddip interrupt --kill`) to replace the stuck ranks"]  # fmt: skip
        super().__init__("\n".join(self.lines))

    def _render_traceback_(self) -> list[str]:
        return self.lines


class one_line:
    """Turns our errors into the notebook's UsageError: one line, never a library's traceback. `command`: what the
    failure of a rank is to be called; without it the rank's own traceback is shown."""

    def __init__(self, command: str, lost: Callable[[PeerLost], str]) -> None:
        self._command = command
        self._lost = lost

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, PeerLost):
            raise UsageError(self._lost(error)) from None
        if isinstance(error, (ConfigError, TimedOut)) or (
            isinstance(error, TypeError) and str(error).startswith("cannot send")
        ):
            raise UsageError(str(error)) from None
        if isinstance(error, RankError) and self._command:
            raise UsageError(f"{self._command}: {one_sentence(error)}") from None
        if isinstance(error, RankError):
            raise CellFailed(error) from None


class AsyncShow:
    """Shows an async cell from a thread of its own, under the cell that started it."""

    def __init__(self, cell: Cell, renderer: Any, screen: display.Screen) -> None:
        self._cell = cell
        self._renderer = renderer
        self._screen = screen

    def start(self) -> None:
        import threading

        self._cell._thread = threading.Thread(target=self._run, name=f"ddip cell {self._cell.number}", daemon=True)
        self._cell._thread.start()

    def _run(self) -> None:
        cell, sequence = self._cell, 0
        try:
            while not cell.finished:
                event = cell.pump(self._renderer.tick())
                if event is None:
                    continue
                sequence = max(sequence, event[4])
                if event[0] == "input_request":
                    cell.group.client.send(
                        "input_reply", {"error": "input() cannot be answered in an async cell"}, event[2], cell.number
                    )
                else:
                    self._renderer.show(event)
        except Exception as error:
            cell.lost = error
            cell._finished.set()
        self._renderer.finish()
        if cell.lost is not None:
            self._screen.append(2, f"ddip: {cell.lost}\n")
            return
        cell.group.client.send("acknowledge", {"sequence": sequence})
        try:
            cell.raise_if_failed()
        except (RankError, KeyboardInterrupt) as error:
            self._screen.append(2, f"{error}\n")


class Replay:
    """What a client has not seen yet, cell by cell, then what is still running, live, until it ends or stop is pressed."""

    def __init__(self, group: groups.Group, screen: display.Screen) -> None:
        self._group = group
        self._screen = screen
        self._renderers: dict[int, Any] = {}
        self._sequence = 0

    def run(self) -> None:
        client = self._group.client
        unfinished = {cell["cell"] for cell in client.request("watch", {}, 30.0)["cells"]}
        try:
            while True:
                event = client.next(0, 0.1 if unfinished else 0.0)
                if event is not None:
                    self._show(event, unfinished)
                elif not unfinished:
                    break
                for renderer in self._renderers.values():
                    renderer.tick()
        except KeyboardInterrupt:
            print("ddip: stopped watching; the cells go on (%dipwhy, %diplog)")
        finally:
            for renderer in self._renderers.values():
                renderer.finish()
            if self._sequence:
                client.send("acknowledge", {"sequence": self._sequence})

    def _show(self, event: Any, unfinished: set[int]) -> None:
        kind, cell, _, body, sequence, _, _ = event
        self._sequence = max(self._sequence, sequence)
        if cell == 0:
            self._screen.append(2, f"ddip: {body}\n")
            return
        if cell not in self._renderers:
            self._renderers[cell] = display.renderer(self._screen, list(range(self._group.world_size)))
        if kind == "cell_started":
            self._screen.append(1, f"--- cell {cell}: {groups.first_line(body.get('source', ''))}\n")
        elif kind == "rank_done" and body.get("outcome") not in ("ok", None):
            self._renderers[cell].show(event)
            self._screen.append(2, f"[{event[2]}] {body.get('traceback') or body.get('why', '')}\n")
        elif kind == "cell_done":
            self._renderers.pop(cell).finish()
            unfinished.discard(cell)
        else:
            self._renderers[cell].show(event)


def kernel_ends(shell: Any) -> bool:
    """Jupyter interrupts a kernel before it restarts or stops it, and that is no press of stop: the cell must go on."""
    if not hasattr(shell, "kernel"):
        return False
    deadline = time.monotonic() + SHUTDOWN
    while time.monotonic() < deadline:
        if shell.exit_now:
            return True
        time.sleep(0.005)
    return False


def await_replaced(group: groups.Group, ranks: list[int], before: list[int]) -> None:
    """Until these ranks are new processes that take cells."""
    deadline = time.monotonic() + REPLACED
    while time.monotonic() < deadline:
        now = group.info()["ranks"]
        if all(now[rank]["pid"] != before[rank] and now[rank]["status"] == "ready" for rank in ranks):
            return
        time.sleep(0.02)


def answer_input(group: groups.Group, event: Any) -> None:
    """A worker's input(): asked here, answered there."""
    _, cell, rank, body, _, _, _ = event
    try:
        prompt = f"[{rank}] {body.get('prompt', '')}"
        if body.get("secret"):
            import getpass

            text = getpass.getpass(prompt)
        else:
            text = input(prompt)
    except KeyboardInterrupt:
        raise
    except Exception as error:
        group.client.send("input_reply", {"error": f"input() needs a front end that can ask: {error}"}, rank, cell)
        return
    group.client.send("input_reply", {"text": text}, rank, cell)


def print_journal(folder: str, wanted: int) -> bool:
    """Whether there was anything."""
    open_lines: dict[tuple[int, int], display.RankLines] = {}
    found = False

    def show(pieces: list[tuple[int, str]]) -> None:
        for _, text in pieces:
            print(text, end="")

    def visit(kind: str, cell: int, rank: int, body: Any, sequence: int, stream: int, when: float) -> bool:
        nonlocal found
        if wanted and cell != wanted:
            return True
        found = True
        if kind == "cell_started":
            print(
                f"--- cell {cell} ({time.strftime('%H:%M:%S', time.localtime(when))}): {groups.first_line(body.get('source', ''))}"
            )
        elif kind == "output":
            if (cell, rank) not in open_lines:
                open_lines[cell, rank] = display.RankLines(rank)
            show(open_lines[cell, rank].write(stream, body))
        elif kind == "rank_done":
            if (cell, rank) in open_lines:
                show(open_lines.pop((cell, rank)).close())
            if body.get("outcome") != "ok":
                print(f"[{rank}] {body.get('traceback') or body.get('why', body.get('outcome'))}")
        elif kind in ("note", "gap"):
            print(f"ddip: {body}")
        elif kind == "display" and body.get("data"):
            print(display.prefixed(body["data"].get("text/plain", "<display>"), [rank]))
        return True

    _client.read_journal(folder, 0, visit)
    for lines in open_lines.values():
        show(lines.close())
    return found


def gone(name: str) -> str:
    return f"group {name} is gone; its output is kept (%diplog), %makedip starts a new one"


def running_groups() -> str:
    names = groups.groups()
    return f" (running: {', '.join(names)}; %makedip --attach NAME joins one)" if names else ""


def duration(seconds: float) -> str:
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"


def life_of(info: dict[str, Any]) -> str:
    if info["on_exit"] == "stop":
        return "ends with this kernel"
    idle = f", and ends after {duration(info['idle'])} without use (--idle)" if info["idle"] else ""
    return "outlives this kernel" + idle


_warned = False


def warn_root() -> None:
    global _warned
    if os.geteuid() == 0 and not _warned:
        _warned = True
        print("ddip: you are root; so are your workers")


def describe_info(info: dict[str, Any], verbose: bool = False) -> str:
    lines = [f"group {info['name']}: {info['sentence']}; {info['phase']}, {life_of(info)}"]
    for rank in info["ranks"]:
        why = f" ({rank['why']})" if rank["why"] else ""
        lines.append(f"  rank {rank['rank']}: pid {rank['pid']}, {rank['device']}, {rank['status']}{why}")
    for cell in info["cells"]:
        lines.append(
            f"  cell {cell['cell']} runs for {cell['seconds']:.1f} s on ranks {_client.rank_list(cell['open'])}: {cell['line']}"
        )
    if verbose:
        warm = info["agent"].get("warm", {})
        lines.append(
            f"  coordinator pid {info['pid']}, warm parent pid {info['agent']['warm_parent']} ({warm.get('seconds', 0):.1f} s to warm), start by {info['agent']['start']}"
        )
        lines.append(f"  store on 127.0.0.1:{info['port']}, seed {info['seed']} + rank, backend {info['backend']}")
        lines.append(f"  journal {info['journal']}")
    return "\n".join(lines)


def footer(cell: Cell) -> str:
    lines = []
    for rank in cell.ranks:
        ending = cell.endings.get(rank, {})
        memory = ending.get("memory", {})
        text = f"rank {rank}: {ending.get('seconds', 0):.3f} s"
        if memory:
            text += f", memory {memory['rss'] / 2**20:.0f} MiB ({memory['delta'] / 2**20:+.1f}), peak {memory['peak'] / 2**20:.0f} MiB"
            if "cuda" in memory:
                text += f", GPU {memory['cuda'] / 2**20:.0f} MiB, peak {memory['cuda_peak'] / 2**20:.0f} MiB"
        lines.append(text)
    return "\n".join(lines)


def load(shell: Any) -> None:
    if getattr(shell, "_ddip_magics", None) is not None:
        return
    magics = DipMagics(shell)
    shell.register_magics(magics)
    shell.input_transformers_cleanup.append(magics.send_to_workers)
    remote_completion.install(shell, magics)
    shell._ddip_magics = magics


def unload(shell: Any) -> None:
    magics = getattr(shell, "_ddip_magics", None)
    if magics is None:
        return
    shell.input_transformers_cleanup.remove(magics.send_to_workers)
    remote_completion.uninstall(shell)
    for name in ("makedip", "dip", "autodip", "dipush", "dipull", "dipper", "diplog", "dipwhy"):
        for kind in ("line", "cell"):
            shell.magics_manager.magics[kind].pop(name, None)
    shell._ddip_magics = None


__all__ = ["DipMagics", "cell_magic", "load", "unload"]
