"""Groups that tests share: lent, cleaned and, if a test broke one, replaced."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

from support import processes

CLEAN = """
for _name in [name for name in list(globals()) if not name.startswith("_") and name not in ("In", "Out", "get_ipython", "exit", "quit", "open")]:
    del globals()[_name]
"""


class SharedGroups:
    def __init__(self, runtime: str, state: str) -> None:
        self._runtime, self._state = runtime, state
        self._groups: dict[str, Any] = {}

    def lend(self, name: str, **options: Any) -> Iterator[Any]:
        group = self._groups.get(name)
        if group is None:
            group = self._groups[name] = self._start(name, options)
        pids = group.pids
        yield group
        if not self._clean(group, pids):
            del self._groups[name]
            group.stop()
            # A group that does not stop would disturb every later test.
            processes.kill(processes.with_marker(group.marker))

    def _start(self, name: str, options: dict[str, Any]) -> Any:
        import ddip

        ours = {
            "DDIP_RUNTIME_DIR": self._runtime,
            "XDG_STATE_HOME": self._state,
            "DDIP_PRELOAD": "torch" if name == "torched" else "",
        }
        before = {key: os.environ.get(key) for key in ours}
        os.environ.update(ours)
        try:
            group = ddip.Group(name=name, client="tests", **options)
        finally:
            for key, value in before.items():
                os.environ.pop(key) if value is None else os.environ.update({key: value})
        group.marker = processes.environment_of(group.pids[0])[processes.MARKER]
        return group

    def _clean(self, group: Any, pids: list[int]) -> bool:
        """Whether the next test may have it: same processes, nothing running, no variables."""
        try:
            info = group.info()
            if info["cells"] or group.pids != pids:
                return False
            cell = group.run(CLEAN, wait=False)
            return bool(cell.wait(10)) and cell.status == "done"
        except Exception:
            return False

    def close(self) -> None:
        for group in self._groups.values():
            group.stop()
        try:
            processes.assert_gone(processes.of_runtime(self._runtime), 2.0, "of the groups that tests share")
        finally:
            for folder in (self._runtime, self._state):
                shutil.rmtree(folder, ignore_errors=True)
