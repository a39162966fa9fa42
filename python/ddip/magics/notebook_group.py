"""The group that this notebook's cells go to, and the way back to it: after a restart of the kernel it is found by its
name, after a broken connection it is joined again."""

from __future__ import annotations

from IPython.core.error import UsageError

from ddip import _client
from ddip import group as groups
from ddip.errors import PeerLost
from ddip.group import Group


class NotebookGroup:
    def __init__(self) -> None:
        self.group: Group | None = None
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
        return self.group

    def need(self) -> Group:
        had = self.group
        found = self.find()
        if found is None:
            raise UsageError(
                (gone(had.name) if had is not None else "no group here; %makedip starts one") + running_groups()
            )
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
