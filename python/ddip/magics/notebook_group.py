"""The group that this notebook's cells go to, and the way back to it: after a restart of the kernel it is found by its
name, after a broken connection it is joined again."""

from __future__ import annotations

from collections.abc import Callable

from IPython.core.error import UsageError

from ddip import _client
from ddip import group as groups
from ddip.errors import PeerLost
from ddip.group import Group
from ddip.magics.failures import CellInterrupted


class NotebookGroup:
    def __init__(self, show_missed: Callable[[Group, bool], bool]) -> None:
        """`show_missed`: what was said while nobody here listened; with True until all of it has ended. Whether it did."""
        self.group: Group | None = None
        self._show_missed = show_missed
        self._unheard: Group | None = None  # found again by its name, and what it said meanwhile is not shown yet
        self.client_name = ""
        self._last_name = ""  # of the group that was here last

    def name(self) -> str:
        """Whose journal is read, also when nothing runs any more."""
        return self.group.name if self.group is not None else self._last_name or groups.default_name()

    def find(self) -> Group | None:
        if self.group is not None:
            self._last_name = self.group.name
            if not _client.is_running(self.group._folder):
                self.group = None
        if self.group is None and groups.default_name() in groups.groups():
            self.client_name = self.client_name or groups.default_name()
            self.group = self.attach(groups.default_name())
            self._unheard = self.group
        return self.group

    def join(self, name: str) -> None:
        """By request. The same group keeps its connection, and with it what %dipper bound."""
        group = self.group
        known = group is not None and (group.name, group._client_name) == (name, self.client_name)
        if group is None or not known or not _client.is_running(group._folder):
            group = self.attach(name)
        self.group, self._unheard = group, None
        self._show_missed(group, True)

    def need(self, wait: bool = True) -> Group:
        """`wait`: what is sent to it next has to wait for the cells that still run there, so they are shown to their end."""
        had = self.group
        found = self.find()
        if found is None:
            raise UsageError(
                (gone(had.name) if had is not None else "no group here; %makedip starts one") + running_groups()
            )
        if self._unheard is found:
            self._unheard = None
            if not self._show_missed(found, wait):
                raise CellInterrupted("stopped before anything was sent to the workers")
        return found

    def attach(self, name: str) -> Group:
        """Any group of this user, under this notebook's name as a client."""
        return groups.attach(name, self.client_name)

    def after_loss(self, error: PeerLost) -> str:
        """A connection broke: what to say, after making a new one if the group lives."""
        if self.group is None:
            return str(error)
        name = self.group.name
        if _client.is_running(self.group._folder):
            self.group = self.attach(name)
            return f"lost the connection to group {name} ({error}); it is there again"
        self.group = None
        return f"{gone(name)} ({error})"


def gone(name: str) -> str:
    return f"group {name} is gone; its output is kept (%diplog), %makedip starts a new one"


def running_groups() -> str:
    names = groups.groups()
    return f" (running: {', '.join(names)}; %makedip --attach NAME joins one)" if names else ""
