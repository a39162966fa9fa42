"""Takes tasks from the control thread and runs them on the main thread, one ending each."""

from __future__ import annotations

import gc
import os
import time
import traceback
from typing import Any, NoReturn

from ddip.worker import store, streams, tasks


def end_child(failed: BaseException | None) -> NoReturn:
    """A process that the cell has forked comes to the cell's end: its parent's answer is not its to give."""
    if failed is not None and not isinstance(failed, SystemExit):
        traceback.print_exception(failed)
    os._exit(1 if failed is not None and not (isinstance(failed, SystemExit) and not failed.code) else 0)


class Runner:
    def __init__(self, control: Any) -> None:
        self._control = control
        self._collect = os.environ.get("DDIP_GC", "1") == "1"
        self._inbox: list[Any] = []  # the task at hand, until its ending is written
        self._begun = False  # it must not begin twice

    def run_until_stopped(self) -> int:
        """Returns the process's exit code. A signal handler of the user's that raises does so anywhere in our lines; the
        jump back of a loop is outside of what is inside the loop, so the loop is in a function of its own."""
        while True:
            try:
                return self._run()
            except BaseException as error:
                self._end_broken_task(error)

    def _run(self) -> int:
        while True:
            if not self._inbox:
                # All of it in C: a signal handler of the user's that raises cannot lose the task between two lines.
                self._inbox.extend(map(self._control.next_task, (1000,)))
            if self._inbox[0] is False:
                return 0
            if self._inbox[0] is not None:
                self.run_one(*self._inbox[0])
            self._inbox.clear()

    def run_one(self, cell: int, body: dict[str, Any], descriptors: list[int]) -> None:
        begun = time.perf_counter()
        ending: dict[str, Any] = {}
        payload: list[int] = []
        failed: BaseException | None = None
        self._begun = True
        streams.set_current_cell(cell)
        self._control.enter(cell)
        try:
            store.host_now()
            ending, payload = tasks.find(body.get("kind", "cell"))(self._control, cell, body, descriptors)
        except BaseException as error:
            failed = error
        if streams.is_child():
            end_child(failed)
        self._leave()
        if failed is not None:
            ending = tasks.failure(failed)  # may take a while, and nobody may interrupt it
        streams.set_current_cell(0)
        ending["seconds"] = time.perf_counter() - begun
        self._control.finish(cell, ending, payload)
        self._inbox.clear()
        self._begun = False
        if self._collect and body.get("kind", "cell") == "cell" and ending["seconds"] > 0.05:
            gc.collect()

    def _end_broken_task(self, error: BaseException) -> None:
        """A signal handler of the user's own, an alarm say, raises anywhere, in our lines too. The task has an ending all
        the same; between cells the error is nobody's."""
        while self._begun:
            try:
                if self._inbox:
                    self._control.leave()
                    streams.set_current_cell(0)
                    self._control.finish(self._inbox[0][0], {**tasks.failure(error), "seconds": 0.0})
                    self._inbox.clear()
                self._begun = False
            except BaseException:
                continue

    def _leave(self) -> None:
        """After leave() no interrupt raises any more; one that was on its way may raise before."""
        while True:
            try:
                self._control.leave()
                return
            except BaseException:
                continue
