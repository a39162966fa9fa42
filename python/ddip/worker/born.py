"""A worker's life: environment, seeds, threads, the control thread, then cells until the group stops."""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
from typing import Any

from ddip import _worker, apps
from ddip.worker import collectives, figures, runner, shell, store, streams

# There is one per process; made in live().
control: _worker.Control | None = None


def live(
    rank: int, incarnation: int, environment: dict[str, str], descriptors: list[int], about: dict[str, Any]
) -> None:
    """Descriptors: the control socket, the file for last words, and on rank 0 the listener of the store. Never returns."""
    global control
    try:
        prepare(environment, descriptors)
    except BaseException:
        import traceback

        os.write(descriptors[1], traceback.format_exc().encode())
        raise
    control = _worker.Control(descriptors[0], rank, incarnation, {**about, "rank": rank})
    streams.install(control)
    store.host_when_torch_is_loaded(descriptors[2] if len(descriptors) > 2 else None)
    collectives.install(control)
    if environment.get("DDIP_APP"):
        apps.enter(environment["DDIP_APP"])
    code = runner.Runner(control).run_until_stopped()
    # Threads of the user's may never end; what atexit promises is done, the rest goes with the process.
    import atexit

    atexit._run_exitfuncs()
    os._exit(code)


def prepare(environment: dict[str, str], descriptors: list[int]) -> None:
    restore_environment(environment)
    reset_limits()
    set_threads(int(environment.get("OMP_NUM_THREADS", "1")))
    seed(int(environment.get("DDIP_SEED", "0")) + int(environment["RANK"]))
    keep_last_words(descriptors[1])
    shell.create()  # the cells' namespace must be there before the first push
    signal.signal(signal.SIGINT, on_sigint)


def keep_last_words(file: int) -> None:
    """A crash leaves its Python stack and its unread output in a memory file that the agent holds."""
    import faulthandler

    _worker.keep_last_words(file)
    faulthandler.enable(file=file, all_threads=False)


def on_sigint(number: int, frame: Any) -> None:
    """An interrupt reaches only the cell it was meant for: outside a cell it is nobody's."""
    if control is not None and control.armed() and frame.f_code.co_filename != runner.__file__:
        raise KeyboardInterrupt  # in the runner's own lines the cell is not there yet, or over


def restore_environment(environment: dict[str, str]) -> None:
    """The warm parent ran with one thread and NVML checks; the worker has the user's values."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.pop(name, None)
    os.environ.update(environment)
    # Our display understands a terminal's escapes; without these rich shows only its last frame.
    os.environ.update({"TTY_COMPATIBLE": "1", "TTY_INTERACTIVE": "1", "TERM": "xterm-256color"})
    os.environ.setdefault("COLUMNS", "100")
    sys.argv = [""]  # as at a prompt: a script's argparse must not read what we were started with
    figures.draw_inline()


def reset_limits() -> None:
    """The agent writes no core files; a worker may, if the user's shell could."""
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (int(os.environ.get("DDIP_CORE_LIMIT", "0")), hard))


def set_threads(count: int) -> None:
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(count)


def seed(value: int) -> None:
    """Forks of one parent would all draw the same numbers."""
    random.seed(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(value % 2**32)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(value)
