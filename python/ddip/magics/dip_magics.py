"""The magics themselves: what is typed, and which part of this folder does it. What can go wrong is one line (UsageError)."""

from __future__ import annotations

from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class

from ddip import _client, display
from ddip.magics import arguments, journal
from ddip.magics.autodip import AutodipSwitch
from ddip.magics.cell_runner import CellRunner
from ddip.magics.explained import HELP, explained
from ddip.magics.failures import one_line
from ddip.magics.group_commands import GroupCommands
from ddip.magics.joining import show_missed
from ddip.magics.notebook_group import NotebookGroup


@magics_class
class DipMagics(Magics):
    shell: Any  # there is always one

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self.here = NotebookGroup(lambda group, live: show_missed(group, display.screen_for(shell), live))
        self.autodip_switch = AutodipSwitch(OWN_MAGICS)
        self.runner = CellRunner(shell, self.here, self.autodip_switch, OWN_MAGICS)

    def _one_line(self, command: str = "") -> one_line:
        return one_line(command, self.here.after_loss)

    @line_magic
    def makedip(self, line: str) -> None:
        """Start, attach to, restart, stop or show a group of workers; %makedip -h lists the flags."""
        with self._one_line():
            GroupCommands(self.shell, self.here).run(arguments.words(line))

    @line_cell_magic
    def dip(self, line: str, cell: str | None = None) -> None:
        """Run the cell on the workers: %%dip [remote|local|everywhere] [flags]; %%dip -h lists the flags."""
        if cell is None:
            return self._line_dip(line)
        with self._one_line():
            options = _client.parse_cell_flags(arguments.words(line), "%%dip")
            if "help" in options:
                print(options["help"])
            else:
                self.runner.run(cell, options)

    def _line_dip(self, line: str) -> None:
        """Older spelling: %dip --push a b."""
        parts = arguments.words(line)
        if HELP & set(parts):
            print(_client.parse_cell_flags(["--help"], "%%dip")["help"])
        elif parts[:1] == ["--push"]:
            self._push(" ".join(parts[1:]))
        elif parts[:1] == ["--pull"]:
            self._pull(" ".join(parts[1:]))
        else:
            raise UsageError("%dip --push NAMES or --pull NAMES; to run code use %%dip at the top of a cell")

    @line_magic
    @explained
    def autodip(self, line: str) -> None:
        """Every following cell runs as if it began with %%dip.

        %autodip on
        %autodip on -a "--see 0"     as if it began with %%dip --see 0 (-a or --args)
        %autodip off
        %autodip                     on or off?
        """
        parts = arguments.words(line)
        if not parts:
            return print(f"autodip is {self.autodip_switch}")
        on, flags = arguments.of_autodip(parts)
        if on:
            with self._one_line():
                _client.parse_cell_flags(arguments.words(flags), "%%dip")
                self.here.need(wait=False)
        self.autodip_switch.flags = flags if on else None
        print("autodip is " + ("on" if on else "off"))

    @line_magic
    @explained
    def dipush(self, line: str) -> None:
        """Variables of the notebook become variables of every worker; all of them, or none if one cannot travel.

        %dipush x model
        """
        self._push(line)

    def _push(self, line: str) -> None:
        with self._one_line("%dipush"):
            found = {}
            for name in arguments.names_of(arguments.words(line), "%dipush"):
                if name not in self.shell.user_ns:
                    raise UsageError(
                        f"%dipush {name}: no such variable here" + _client.did_you_mean(name, list(self.shell.user_ns))
                    )
                found[name] = self.shell.user_ns[name]
            self.here.need().push(found)

    @line_magic
    @explained
    def dipull(self, line: str) -> None:
        """Variables of the workers become variables of the notebook.

        %dipull x model              from rank 0
        %dipull x -r 1               from rank 1 (-r or --rank)
        %dipull x -r all             a list, one value per rank
        """
        self._pull(line)

    def _pull(self, line: str) -> None:
        with self._one_line("%dipull"):
            names, wanted = arguments.of_dipull(arguments.words(line))
            group = self.here.need()
            if wanted == "all":
                pulled = group.pull_many(names, "all")
                self.shell.user_ns.update({name: [one[name] for one in pulled] for name in names})
                return
            ranks = _client.parse_rank_list(wanted, group.world_size, "%dipull -r")
            if len(ranks) != 1:
                raise UsageError(f"%dipull -r {wanted}: expected one rank or all")
            pulled = group.pull_many(names, ranks[0])
            self.shell.user_ns.update({name: pulled[0][name] for name in names})

    @line_magic
    @explained
    def dipper(self, line: str) -> None:
        """The live group as a variable: group.pids, group["x"], group.info(), …

        %dipper group
        """
        names = arguments.words(line)
        if len(names) != 1 or not names[0].isidentifier():
            raise UsageError(f"%dipper NAME: expected one variable name, found: {line.strip() or 'nothing'}")
        self.shell.user_ns[names[0]] = self.here.need(wait=False)

    @line_magic
    @explained
    def diplog(self, line: str) -> None:
        """What was printed, from the journal: every line with its rank, the newest if there are too many to show.

        %diplog                      all cells
        %diplog 4                    cell 4 only
        %diplog last                 the newest cell
        """
        wanted = arguments.of_diplog(arguments.words(line))
        with self._one_line():
            journal.show(self.here.name(), wanted, display.screen_for(self.shell))

    @line_magic
    @explained
    def dipwhy(self, line: str) -> None:
        """What every rank is doing now, and who is missing.

        %dipwhy
        """
        with self._one_line():
            print("\n".join(_client.explain(self.here.need(wait=False).why())))


OWN_MAGICS = frozenset(name for names in DipMagics.magics.values() for name in names)
