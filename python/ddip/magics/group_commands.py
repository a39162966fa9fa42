"""%makedip: start, attach to, restart, stop or show a group."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from IPython.core.error import UsageError

from ddip import _client, apps
from ddip import group as groups
from ddip.group import Group
from ddip.magics.group_info import describe, life_of
from ddip.magics.notebook_group import NotebookGroup, running_groups

_warned_root = False


class GroupCommands:
    """Every command takes the flags as typed, and what the C++ flag table made of them."""

    def __init__(self, shell: Any, here: NotebookGroup) -> None:
        self._shell = shell
        self._here = here

    def run(self, flags: list[str]) -> None:
        if flags[-1:] == ["--attach"]:
            flags.append(groups.default_name())  # this notebook's own
        checked = _client.check_group_flags(
            flags, "%makedip", groups.worker_environment(), os.environ.get("DDIP_TEST_DEVICES")
        )
        if "help" in checked:
            return print(checked["help"])
        self._here.client_name = checked["client"] or groups.default_name()
        commands: dict[str, Callable[[list[str], dict[str, Any]], None]] = {
            "info": self._info,
            "kill": self._kill,
            "restart": self._restart,
            "rebuild": self._rebuild,
            "attach": self._attach,
            "start": self._start,
        }
        commands[checked["action"]](flags, checked)

    def _meant(self, checked: dict[str, Any]) -> Group | None:
        """The group of that name, else this notebook's."""
        return self._here.attach(checked["name"]) if checked["name"] else self._here.find()

    def _info(self, flags: list[str], checked: dict[str, Any]) -> None:
        group = self._meant(checked)
        print("no group here; %makedip starts one" + running_groups() if group is None else describe(group.info()))

    def _kill(self, flags: list[str], checked: dict[str, Any]) -> None:
        target = self._meant(checked)
        if target is None:
            return print("no group here; nothing to stop" + running_groups())
        target.stop()
        if self._here.group is not None and self._here.group.name == target.name:
            self._here.group = None
        print(f"group {target.name} stopped")

    def _restart(self, flags: list[str], checked: dict[str, Any]) -> None:
        current = self._meant(checked)
        if checked["ranks"]:
            return self._restart_some(checked["ranks"], current)
        if current is None:
            return self._start(without_restart(flags), checked)
        if checked["has_shape"]:
            require_app(checked)  # refused before the old one is gone
            current.stop()
            return self._start_new(without_restart(flags), checked)
        begun = time.monotonic()
        current.restart()
        self._here.group = current
        self._use_app(checked)
        print(f"group {current.name}: {current.world_size} workers restarted, empty ({time.monotonic() - begun:.2f} s)")

    def _restart_some(self, text: str, current: Group | None) -> None:
        if current is None:
            raise UsageError(f"%makedip -r --ranks {text}: no group here; %makedip starts one" + running_groups())
        ranks = _client.parse_rank_list(text, current.world_size, "%makedip -r --ranks")
        begun = time.monotonic()
        current.restart(ranks)
        workers = f"rank{'s' if len(ranks) > 1 else ''} {_client.rank_list(ranks)}"
        print(f"group {current.name}: {workers} restarted, empty ({time.monotonic() - begun:.2f} s)")

    def _rebuild(self, flags: list[str], checked: dict[str, Any]) -> None:
        current = self._meant(checked)
        if current is None:
            raise UsageError("%makedip --rebuild: no group here; %makedip starts one" + running_groups())
        current.rebuild()
        print(f"group {current.name}: process groups made again on all ranks; variables stay")

    def _attach(self, flags: list[str], checked: dict[str, Any]) -> None:
        self._here.join(checked["name"])

    def _start(self, flags: list[str], checked: dict[str, Any]) -> None:
        name = checked["name"] or groups.default_name()
        if name not in groups.groups():
            return self._start_new(flags, checked)
        running = self._here.attach(name)
        info = running.info()
        same = not checked["has_shape"] or (
            info["world_size"] == checked["world_size"] and info["gpus"] == checked["gpus"]
        )
        if same:
            here = self._here.group
            if not checked["app"] or here is None or here.name != name:
                self._here.join(name)
            return self._use_app(checked)
        if info["user_cells"] == 0:
            running.stop()
            return self._start_new(flags, checked)
        cells = ", ".join(f"cell {cell['cell']} ({cell['line']})" for cell in info["cells"]) or "none"
        raise UsageError(
            f"group {name} is running with {info['world_size']} workers (running cells: {cells}): "
            f"%makedip --attach {name} joins it, %makedip -r {' '.join(flags)} replaces it"
        )

    def _use_app(self, checked: dict[str, Any]) -> None:
        """-a for a group that runs."""
        group, app = self._here.group, checked["app"]
        if group is None or not app:
            return
        group.use_app(app)
        print(f"group {group.name}: " + ("the app is left" if app == "none" else f"the workers are in app {app}"))

    def _start_new(self, flags: list[str], checked: dict[str, Any]) -> None:
        begun = time.monotonic()
        warn_root()
        name = groups.start_group(flags, "%makedip", lambda line: None)
        self._here.group = Group._attached(name, self._here.client_name)
        info = self._here.group.info()
        print(f"group {name}: {info['sentence']} ({time.monotonic() - begun:.1f} s)\n  it {life_of(info)}")
        if checked["verbose"]:
            print(describe(info))


def require_app(checked: dict[str, Any]) -> None:
    python = checked["python"] or sys.executable
    apps.require(checked["app"], checked["app_module"], python, groups.worker_environment(), "%makedip")


def without_restart(flags: list[str]) -> list[str]:
    return [flag for flag in flags if flag not in ("-r", "--restart")]


def warn_root() -> None:
    """Once is enough."""
    global _warned_root
    if os.geteuid() == 0 and not _warned_root:
        _warned_root = True
        print("ddip: you are root; so are your workers")
