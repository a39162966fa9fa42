"""Groups of workers, from Python: start or attach, run code, move values, interrupt, restart."""

from __future__ import annotations

import keyword
import os
import re
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ddip import _client, apps, comparison, module_path, values
from ddip.cell import Cell, Remote, Result
from ddip.control_connection import ControlConnection
from ddip.errors import ConfigError, PeerLost, RankError, TimedOut
from ddip.held_interrupt import HeldInterrupt, more_presses_ignored
from ddip.keywords import known_keywords_only

Ranks = int | Sequence[int] | str | None

# How long a caller waits for a plain answer of the coordinator, which never waits for a cell.
ANSWER = 10.0
# After an interrupt the prompt is back after this many seconds, whatever the ranks do.
PROMPT = 0.9
NAME = re.compile(r"[A-Za-z0-9_-]{1,32}")  # of a group or a client: flag_values.h
# So long a group that was asked to stop may take for it.
STOPPED = 10.0


def program() -> str:
    return os.path.join(os.path.dirname(os.path.abspath(__file__)), "_bin", "ddip")


def runtime_folder() -> str:
    return str(_client.runtime_folder(os.environ.get("DDIP_RUNTIME_DIR", "")))


def state_folder() -> str:
    return str(_client.state_folder(os.environ.get("XDG_STATE_HOME", ""), os.path.expanduser("~")))


def default_name() -> str:
    """A notebook's group is named after its path, so that a restarted kernel finds it again."""
    notebook = os.environ.get("JPY_SESSION_NAME", "")
    if notebook:
        return str(_client.notebook_group_name(os.path.abspath(notebook)))
    script = sys.argv[0] if sys.argv else ""
    if os.path.basename(script) == "ipykernel_launcher.py":
        script = "notebook"  # a kernel whose front end does not say which notebook it is
    return str(_client.script_group_name(script, os.getpid()))


def worker_environment() -> dict[str, str]:
    """Ours, with our module path: what can be imported here can be imported there."""
    environment = dict(os.environ)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MPLBACKEND", "JPY_PARENT_PID"):
        environment.pop(name, None)
    environment["PYTHONPATH"] = os.pathsep.join(module_path.to_tell())
    return environment


def flags_of(options: Mapping[str, Any]) -> list[str]:
    """Group(...)'s arguments in %makedip's words: there is one parser."""
    flags: list[str] = []
    for key, value in options.items():
        if value is None or value is False:
            continue
        flag = "--" + key.replace("_", "-")
        if key == "env":
            for name, text in dict(value).items():
                flags += [flag, f"{name}={text}"]
        elif value is True:
            flags.append(flag)
        elif key == "gpus" and not isinstance(value, str):
            flags += [flag, ",".join(str(gpu) for gpu in (value if isinstance(value, Iterable) else [value]))]
        else:
            flags.append(f"{flag}={value}")
    return flags


class Group:
    """Workers that train together. A context manager; by default they end with this process."""

    @known_keywords_only
    def __init__(
        self,
        workers: int | None = None,
        gpus: None | str | Sequence[int] = None,
        *,
        name: str | None = None,
        hosts: Any = None,
        app: str | None = None,
        backend: str = "auto",
        timeout: float = 60,
        on_exit: str = "stop",
        threads: int | None = None,
        start: str | None = None,
        grace: float | None = None,
        settle: float | None = None,
        idle: float | None = None,
        env: Mapping[str, str] | None = None,
        python: str | None = None,
        seed: int | None = None,
        client: str | None = None,
        master_port: int | None = None,
        gc: str | None = None,
    ) -> None:
        options = dict(
            workers=workers, gpus=gpus, name=name, hosts=hosts, app=app, backend=backend, timeout=timeout, on_exit=on_exit, threads=threads,
            start=start, grace=grace, settle=settle, idle=idle, env=env, python=python, seed=seed, client=client, master_port=master_port, gc=gc,
        )  # fmt: skip
        started = start_group(flags_of(options), "ddip.Group", lambda line: None)
        self._connect(started, client or started, owned=on_exit == "stop")

    @classmethod
    def _attached(cls, name: str, client: str) -> Group:
        group = cls.__new__(cls)
        group._connect(name, client, owned=False)
        return group

    def _connect(self, name: str, client: str, owned: bool) -> None:
        self.name = name
        self._folder = _client.require_group(runtime_folder(), name)
        self._client_name = client
        self._owned = owned
        self.client = _client.Client(self._folder, client)
        welcome = self.client.welcome
        self.world_size: int = welcome["world_size"]
        self._control = ControlConnection(self._folder, client, welcome["pid"])
        self._process = os.getpid()
        self._sees_its_end = not self.client.wait_for_end(0)  # not where its processes cannot be seen from here

    @property
    def control(self) -> ControlConnection:
        self.require_own_process()
        return self._control

    def require_own_process(self) -> None:
        """A forked child has the same sockets, but each answer comes only once: it would take its parent's, or wait for ever."""
        if os.getpid() != self._process:
            raise ConfigError(
                f"group {self.name} is connected to process {self._process}, and this is a child of it; "
                f"ddip.attach({self.name!r}) connects this one"
            )

    # ---- running

    def run(self, code: str, ranks: Ranks = None, wait: bool = True) -> Any:
        """Results, one per rank (raises RankError); with wait=False a Cell at once."""
        body = {"kind": "cell", "code": code, "want_value": True, "first_line": first_line(code)}
        if wait:
            return self.complete(body, ranks)
        cell = self.submit(body, ranks)
        cell.follow()
        return cell

    def complete(self, body: dict[str, Any], ranks: Ranks = None, descriptors: Sequence[int] = ()) -> list[Result]:
        """submit() and finish(), with no moment between them in which a KeyboardInterrupt would leave the cell running."""
        with HeldInterrupt() as held:
            return self.finish(self.submit(body, ranks, descriptors), held)

    def submit(
        self, body: dict[str, Any], ranks: Ranks = None, descriptors: Sequence[int] = (), keep_all: bool = True
    ) -> Cell:
        self.require_own_process()
        chosen = self._ranks(ranks)
        body["ranks"] = chosen
        number, behind = self.client.execute(body, list(descriptors), keep_all)
        return Cell(self, number, chosen, behind)

    def finish(self, cell: Cell, held: HeldInterrupt | None = None) -> list[Result]:
        """Waits; a KeyboardInterrupt here interrupts the cell everywhere first."""
        try:
            if held:
                held.release()
            cell.wait()
        except KeyboardInterrupt:
            with more_presses_ignored():
                try:
                    self.stop_cell(cell)
                finally:
                    cell.let_go()
            raise
        return cell.results()

    def stop_cell(self, cell: Cell) -> bool:
        """Interrupts the cell and waits a moment. Whether it is over."""
        self.interrupt(cell=cell.number)
        return cell.wait(PROMPT)

    def call(self, function: Callable[..., Any], *args: Any, ranks: Ranks = None, **kwargs: Any) -> list[Any]:
        """function(*args, **kwargs) on every rank; one result per rank, in rank order. Its globals are the worker's."""
        name = getattr(function, "__name__", "call")
        try:
            packed = values.pack((function, args, kwargs))
        except Exception as error:
            raise TypeError(f"cannot send {name} and its arguments: {error}") from None
        with HeldInterrupt() as held:
            cell = self.submit({"kind": "call", "first_line": f"{name}(…)"}, ranks, [packed.fd])
            packed.close()
            return [result.value for result in self.finish(cell, held)]

    # ---- values

    def push(self, names: Mapping[str, Any], ranks: Ranks = None) -> None:
        """All or nothing: a rank that cannot take a value leaves every rank as it was."""
        if not names:
            return
        for name in names:
            if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
                raise ConfigError(f"push: {name!r} is not a variable name")
        packed = values.pack_named(dict(names))
        push = secrets.randbits(62)  # nobody else's, of all who are attached
        staged = self.submit({"kind": "stage", "push": push, "silent": True}, ranks, [packed.fd])
        packed.close()
        try:
            self.finish(staged)
            keep = True
        except BaseException:
            keep = False
            raise
        finally:
            alive = [rank for rank in staged.ranks if staged.endings.get(rank, {}).get("outcome") == "ok"]
            if alive:
                self.finish(self.submit({"kind": "commit", "push": push, "keep": keep, "silent": True}, alive))

    def pull(self, name: str, rank: int | str = 0) -> Any:
        """The variable's value on that rank; rank="all": a list, one per rank."""
        found = self.pull_many([name], rank)
        return [one[name] for one in found] if rank == "all" else found[0][name]

    def pull_many(self, names: Sequence[str], rank: int | str = 0) -> list[dict[str, Any]]:
        ranks: Ranks = None if rank == "all" else [int(rank)]
        return [result.value for result in self.complete({"kind": "pull", "names": list(names), "silent": True}, ranks)]

    def __getitem__(self, name: str) -> Any:
        return self.pull(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self.push({name: value})

    def scatter(self, name: str, sequence: Sequence[Any]) -> None:
        """Contiguous pieces of `sequence`, one per rank, as variable `name`; the first ranks get one more if it does not divide."""
        length, parts = len(sequence), self.world_size
        begin = 0
        for rank in range(parts):
            end = begin + length // parts + (rank < length % parts)
            self.push({name: sequence[begin:end]}, ranks=[rank])
            begin = end

    def gather(self, name: str) -> list[Any]:
        """The pieces, joined in rank order."""
        joined: list[Any] = []
        for piece in self.pull(name, rank="all"):
            joined.extend(piece)
        return joined

    def map(self, function: Callable[[Any], Any], sequence: Sequence[Any]) -> list[Any]:
        """[function(x) for x in sequence], spread over the ranks, in order."""
        items = list(sequence)
        share: Callable[..., Any] = run_share
        pieces = self.call(share, function, items)
        result: list[Any] = [None] * len(items)
        for piece in pieces:
            if isinstance(piece, Remote):
                raise TypeError(f"map: the results of rank {piece.rank} stayed there: {piece.why}")
            for index, value in piece:
                result[index] = value
        return result

    # ---- control

    def interrupt(self, cell: int = 0, kill: bool = False) -> dict[str, Any]:
        """One press of stop: all running cells (or one), on all ranks. kill=True is the second press: ranks that are
        still stuck are replaced by empty ones. Returns what was running where."""
        if type(cell) is not int or type(kill) is not bool:
            raise ConfigError(f"interrupt(cell={cell!r}, kill={kill!r}): expected a cell's number, and True or False")
        return self.control.request("interrupt", {"cell": cell, "kill": kill}, ANSWER)

    def why(self) -> dict[str, Any]:
        return self.control.request("why", {}, ANSWER)

    def differing(self, names: Sequence[str], ranks: Ranks = None) -> dict[str, list[list[int]]]:
        """Where variables that should be equal on all ranks are not: path → the ranks that agree with each other.
        Modules, optimizers, tensors, arrays, numbers, texts, sets, and lists and dicts of them; other objects are not
        compared."""
        return comparison.compare(self, names, ranks).differing

    def rebuild(self) -> None:
        """Process groups are made again on all ranks; variables stay."""
        attempt = int(time.time() * 1000)
        # A rank that was restarted does not know how the others made theirs.
        asked = self.submit({"kind": "how_made", "first_line": "rebuild"})
        self.finish(asked)
        made: dict[str, Any] = next(
            (ending["made"] for _, ending in sorted(asked.endings.items()) if ending.get("made")), {}
        )
        self.complete({"kind": "rebuild", "attempt": attempt, "made": made, "first_line": "rebuild"})

    def use_app(self, app: str) -> None:
        """The running workers enter this app, as if the group had been started with it; "none" leaves the one they are in.
        What they do next waits for it; so it comes after the cells that run now."""
        cell = self._submit_app(app)
        cell.wait()
        refused = [ending["refused"] for ending in cell.endings.values() if ending.get("refused")]
        if refused:
            raise ConfigError(refused[0])
        cell.results()

    def _submit_app(self, app: str) -> Cell:
        if app not in _client.app_names():
            raise ConfigError(f"app={app!r} is unknown; expected {'|'.join(_client.app_names())}")
        # The environment is for workers that are started later.
        later = {"DDIP_APP": "" if app == "none" else app}
        return self.submit(
            {"kind": "app", "app": app, "environment": later, "first_line": f"app {app}", "silent": True}
        )

    def restart(self, ranks: Ranks = None, timeout: float = 120) -> None:
        """New processes for these ranks (default: all); they come back empty."""
        self.control.request("restart", {"ranks": self._ranks(ranks)}, timeout)

    def stop(self) -> None:
        """Ends every process of the group. Returns when they are gone, whoever asked them to go; TimedOut if they stay."""
        if self._has_ended():
            return
        try:
            self.control.send("stop", {})
        except PeerLost:
            pass  # it is ending already
        # The folder goes last. One that has a lock nobody holds belongs to a coordinator that was killed.
        lock = os.path.join(self._folder, "lock")
        deadline = time.monotonic() + STOPPED
        while os.path.exists(self._folder) and not self._has_ended() and time.monotonic() < deadline:
            if os.path.exists(lock) and not _client.is_running(self._folder) and os.path.exists(lock):
                return
            time.sleep(0.005)
        while not self.client.wait_for_end(0.1):
            if time.monotonic() > deadline:
                raise TimedOut(
                    f"group {self.name} still runs {STOPPED:.0f} s after it was asked to stop (ddip why {self.name})"
                )

    def _has_ended(self) -> bool:
        return self._sees_its_end and bool(self.client.wait_for_end(0))

    def info(self) -> dict[str, Any]:
        return self.control.request("info", {}, ANSWER)

    @property
    def pids(self) -> list[int]:
        return [rank["pid"] for rank in self.info()["ranks"]]

    def _ranks(self, ranks: Ranks) -> list[int]:
        if ranks is None:
            return list(range(self.world_size))
        if isinstance(ranks, str):
            return list(_client.parse_rank_list(ranks, self.world_size, "ranks"))
        if isinstance(ranks, int):
            ranks = [ranks]
        return list(_client.parse_rank_list(",".join(str(rank) for rank in ranks), self.world_size, "ranks"))

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if not self._owned or os.getpid() != self._process:
            return
        try:
            self.stop()
        except (PeerLost, TimedOut) as failed:
            if error is None:
                raise
            print(f"ddip: {failed}", file=sys.stderr)  # the user's own error comes first

    def __repr__(self) -> str:
        return f"<ddip group {self.name}: {self.world_size} workers>"


def run_share(function: Callable[[Any], Any], items: Sequence[Any]) -> list[tuple[int, Any]]:
    """Runs on a worker: every world_size-th item."""
    import ddip

    return [(index, function(items[index])) for index in range(ddip.rank(), len(items), ddip.world_size())]


def first_line(code: str) -> str:
    for line in code.splitlines():
        if line.strip():
            return line.strip()[:80]
    return ""


def start_group(flags: list[str], command: str, progress: Callable[[str], None]) -> str:
    """Starts a group and returns its name. Everything that can be refused is, before a process starts."""
    checked = _client.check_group_flags(flags, command, worker_environment(), os.environ.get("DDIP_TEST_DEVICES"))
    if "help" in checked:
        raise ConfigError(checked["help"])
    name = checked["name"] or default_name()
    python = checked["python"] or sys.executable
    apps.require(checked["app"], checked["app_module"], python, worker_environment(), command)
    config = {
        "name": name,
        "flags": flags,
        "command": command,
        "environment": worker_environment(),
        "folder": os.getcwd(),
        "python": python,
        "owner": os.getpid(),
        "runtime": runtime_folder(),
        "state": state_folder(),
        "seed": secrets.randbelow(2**31),
    }
    if "DDIP_TEST_DEVICES" in os.environ:
        config["test_devices"] = os.environ["DDIP_TEST_DEVICES"]
    _client.start_group(program(), config, checked["timeout"], progress)
    return name


def attach(name: str, client: str | None = None) -> Group:
    """A running group of this user. `client`: the name to join it under; what was not shown to it yet is kept."""
    for given in (name, client or default_name()):
        if not isinstance(given, str) or not NAME.fullmatch(given):
            raise ConfigError(f"ddip.attach: {given!r} is no name: expected 1 to 32 letters, digits, _ or -")
    if name not in groups():
        lost = describe_lost(name)
        if lost:
            raise ConfigError(lost)
    return Group._attached(name, client or default_name())


def describe_lost(name: str) -> str:
    """When a group that no longer runs ended, and how much of its output is kept; empty if there never was one."""
    folder = _client.newest_journal(state_folder(), name)
    if not folder:
        return ""
    lines, last = 0, 0.0

    def visit(kind: str, cell: int, rank: int, body: Any, sequence: int, stream: int, when: float) -> bool:
        nonlocal lines, last
        lines += body.count(b"\n") if kind == "output" else 0
        last = max(last, when)
        return True

    _client.read_journal(folder, 0, visit)
    at = time.strftime("%H:%M:%S", time.localtime(last))
    return f"group {name} was lost at {at}, {lines} lines kept (%diplog, ddip log {name})"


def groups() -> list[str]:
    """Names of this user's running groups."""
    return [name for name, running in _client.all_groups(runtime_folder()) if running]


__all__ = ["Cell", "Group", "RankError", "Result", "attach", "groups"]
