"""%%dip: a cell runs here, on the workers, or both."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from IPython.core.error import UsageError

from ddip import _client, apps, comparison, display
from ddip import group as groups
from ddip.cell import Cell
from ddip.errors import ConfigError, PeerLost, ProtocolError, TimedOut
from ddip.held_interrupt import HeldInterrupt
from ddip.magics import cell_pieces
from ddip.magics.autodip import AutodipSwitch
from ddip.magics.background import ShowInBackground
from ddip.magics.failures import FailedHere
from ddip.magics.follower import Follower
from ddip.magics.late_output import LateOutput
from ddip.magics.notebook_group import NotebookGroup

SHOWN = 10  # of what differs


class CellRunner:
    def __init__(self, shell: Any, here: NotebookGroup, autodip: AutodipSwitch, own_magics: Set[str]) -> None:
        self._shell = shell
        self._here = here
        self._autodip = autodip
        self._own_magics = own_magics
        self._shown = display.Shown()
        self._late: LateOutput | None = None
        self.stuck: set[int] = set()  # cells that one press of stop did not end

    def run(self, source: str, options: dict[str, Any]) -> None:
        if options["place"] == "local":
            return self._run_here(source)
        own = cell_pieces.find_own(source, self._own_magics)
        if options["place"] == "everywhere":
            self._run_here(source, goes_on=True)
            return self._run_on_workers(cell_pieces.without(source, own), options)
        if own and (options["async"] or options["out"]):
            flag = "--async" if options["async"] else "--out"
            raise UsageError(f"%{own[0].name} in a cell with {flag}: it cuts the cell; put it in a cell of its own")
        for piece in cell_pieces.pieces(source, own) if own else [source]:
            if isinstance(piece, cell_pieces.OwnMagic):
                self._shell.run_line_magic(piece.name, piece.arguments)
            else:
                self._run_on_workers(piece, options)

    def _run_here(self, source: str, goes_on: bool = False) -> None:
        with self._autodip.paused():
            result = self._shell.run_cell(source, silent=False, store_history=False)
        if not result.success:
            raise FailedHere("the cell failed here" + (", so it was not sent to the workers" if goes_on else ""))

    def _run_on_workers(self, source: str, options: dict[str, Any]) -> None:
        group = self._here.need(wait=not options["async"])
        if options["app_command"]:
            apps.require_command(group.info()["app"], options["app_command"], "%%dip")
        ranks = _client.parse_rank_list(options["ranks"], group.world_size, "%%dip --ranks")
        see = [
            rank for rank in _client.parse_rank_list(options["see"], group.world_size, "%%dip --see") if rank in ranks
        ]
        screen = display.screen_for(self._shell)
        body = {
            "kind": "cell", "code": source, "first_line": groups.first_line(source), "memory": options["verbose"],
            "want_value": bool(options["out"] or options["async"]), "name": options["async_name"], "colours": screen.coloured,
            "app_command": options["app_command"],
        }  # fmt: skip
        late = self._late_output(group) if screen.rerenders and see and not options["quiet"] else None
        with HeldInterrupt() as held:
            cell = group.submit(body, ranks, keep_all=False) if late is None else late.submit(body, ranks, screen, see)
            renderer = display.renderer(screen, see, options["plain"], options["quiet"], self._shown)
            if options["async"]:
                ShowInBackground(cell, renderer, screen, late).start()
                return self._leave_running(cell, options["async_name"])
            if not options["out"]:
                cell.drop_output()  # it is on the screen, and in the journal
            try:
                Follower(self._shell, cell, renderer, self.stuck).follow(held)
            finally:
                if late is not None:
                    late.cell_ended(cell)
        if options["out"]:
            self._shell.user_ns[options["out"]] = cell.results()
        if options["verbose"]:
            print(footer(cell))
        if options["check"]:
            print(checked(group, options["check"], ranks))

    def _late_output(self, group: groups.Group) -> LateOutput | None:
        """None if it cannot be had: that is no reason not to run the cell."""
        if self._late is None or self._late.group is not group or self._late.closed:
            if self._late is not None:
                self._late.close()
            try:
                self._late = LateOutput(group, self._shown)
            except (ConfigError, OSError, PeerLost, ProtocolError, TimedOut):
                self._late = None
        return self._late

    def _leave_running(self, cell: Cell, name: str) -> None:
        if name:
            self._shell.user_ns[name] = cell
        print(
            f"cell {cell.number} runs on {cell.group.name}; "
            + (f"{name}.wait() waits for it" if name else "it shows its output here")
        )


def checked(group: groups.Group, names: list[str], ranks: list[int]) -> str:
    """--check: whether the replicas are replicas."""
    found = comparison.compare(group, names, ranks)
    lines = [f"{path} differs: " + " | ".join(map(ranks_of, alike)) for path, alike in found.differing.items()]
    if not lines and found.compared:
        same = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} the same on {ranks_of(ranks)}"
        lines = [same + (", as far as compared" if found.left_out else "")]
    lines[SHOWN:] = [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    if found.left_out:
        some = [f"{path} ({why})" for path, why in found.left_out.items()]
        some[SHOWN:] = [f"and {len(some) - SHOWN} more"] if len(some) > SHOWN else []
        lines.append(f"not compared: {', '.join(some)}")
    return "\n".join(f"check: {line}" for line in lines)


def ranks_of(ranks: list[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {_client.rank_list(ranks)}"


def footer(cell: Cell) -> str:
    """-v: time and memory of each rank."""
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
