"""Takes tasks from the control thread and runs them on the main thread, one ending each."""

from __future__ import annotations

import gc
import os
import time
from typing import Any, Optional

from ddip.worker import shell, store, streams, tasks


class Runner:
    def __init__(self, control: Any) -> None:
        self._control = control
        self._collect = os.environ.get("DDIP_GC", "1") == "1"
        self._open = 0  # the task whose ending is still owed

    def run_until_stopped(self) -> int:
        """Returns the process's exit code."""
        while True:
            try:
                task = self._control.next_task(1000)
                if task is None:
                    continue
                if task is False:
                    return 0
                self.run_one(*task)
            except KeyboardInterrupt:
                self._end_open_task()  # a stray SIGINT between cells is nobody's

    def run_one(self, cell: int, body: dict[str, Any], descriptors: list[int]) -> None:
        begun = time.perf_counter()
        ending: dict[str, Any] = {}
        payload: list[int] = []
        failed: Optional[BaseException] = None
        self._open = cell
        streams.set_current_cell(cell)
        self._control.enter(cell)
        try:
            store.host_now()
            ending, payload = tasks.find(body.get("kind", "cell"))(self._control, cell, body, descriptors)
        except BaseException as error:
            failed = error
        self._leave()
        if failed is not None:
            ending = tasks.failure(failed)  # may take a while, and nobody may interrupt it
        streams.set_current_cell(0)
        ending["seconds"] = time.perf_counter() - begun
        self._control.finish(cell, ending, payload)
        self._open = 0
        if self._collect and body.get("kind", "cell") == "cell" and ending["seconds"] > 0.05:
            gc.collect()

    def _end_open_task(self) -> None:
        """A SIGINT handler of the user's own raises anywhere, in our lines too; the task has an ending all the same."""
        while self._open:
            try:
                self._control.leave()
                streams.set_current_cell(0)
                self._control.finish(self._open, {"outcome": "interrupted", "seconds": 0.0})
                self._open = 0
            except KeyboardInterrupt:
                continue

    def _leave(self) -> None:
        """After leave() no interrupt raises any more; one that was on its way may raise before."""
        while True:
            try:
                self._control.leave()
                return
            except KeyboardInterrupt:
                continue


__all__ = ["Runner", "shell"]
