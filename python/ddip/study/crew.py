"""Runs that are computed side by side, each in one of a few processes."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import ddip
from ddip.study.settings import Run, Settings

Done = tuple[Run, dict[str, Any]]


class RunFailed(Exception):
    """A run raised, or its process died."""


class Crew:
    """`with Crew(2) as crew`: processes that live until the end of the block, however it ends."""

    def __init__(self, jobs: int) -> None:
        home = str(Path(ddip.__file__).parent.parent)
        path = os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        # A session of their own: Ctrl-C is the study's to answer, not theirs.
        self.workers = [
            subprocess.Popen([sys.executable, "-m", "ddip.study.worker"], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)
            for _ in range(jobs)
        ]  # fmt: skip

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()
        for worker in self.workers:
            worker.wait()

    def compute(self, runs: list[Run], settings: Settings, take: Callable[[Run, dict[str, Any]], None]) -> None:
        """`take` gets each run with its results, in the order in which they end."""
        waiting: queue.SimpleQueue[Run] = queue.SimpleQueue()
        for run in runs:
            waiting.put(run)
        ended: queue.Queue[Done | Exception] = queue.Queue()
        for worker in self.workers:
            # Daemons: when the block ends early their processes are killed, and with them what they wait for.
            threading.Thread(target=_feed, args=(worker, settings, waiting, ended), daemon=True).start()
        for _ in runs:
            found = ended.get()
            if isinstance(found, Exception):
                raise found
            take(*found)


def _feed(
    worker: subprocess.Popen[str],
    settings: Settings,
    waiting: queue.SimpleQueue[Run],
    ended: queue.Queue[Done | Exception],
) -> None:
    assert worker.stdin is not None and worker.stdout is not None
    while True:
        try:
            run = waiting.get_nowait()
        except queue.Empty:
            return
        try:
            print(json.dumps({"run": asdict(run), "settings": asdict(settings)}), file=worker.stdin, flush=True)
            answer = worker.stdout.readline()
        except (OSError, ValueError):
            answer = ""
        if not answer:
            code = worker.wait()
            ended.put(RunFailed(f"{run}: its process ended ({f'signal {-code}' if code < 0 else f'exit code {code}'})"))
            return
        told = json.loads(answer)
        ended.put(RunFailed(f"{run}: {told['error']}") if "error" in told else (run, told["results"]))
