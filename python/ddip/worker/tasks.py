"""What a worker can be asked to do. Each task returns (ending, descriptors); a raised error becomes a failure."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any

from ddip import apps, values
from ddip.errors import ConfigError
from ddip.worker import out_of_memory, shell

Ending = tuple[dict[str, Any], list[int]]

# A result larger than this stays on the worker; the client gets its repr and a handle.
LARGE_VALUE = 1 << 20
LARGE_VALUE_NAME = "_ddip_value_of_cell_"

_staged: dict[int, dict[str, Any]] = {}


def namespace() -> dict[str, Any]:
    return sys.modules["__main__"].__dict__


def failure(error: BaseException) -> dict[str, Any]:
    outcome = "interrupted" if isinstance(error, KeyboardInterrupt) else "error"
    return {
        "outcome": outcome,
        "type": type(error).__name__,
        "message": text_of(error),
        "traceback": traceback_of(error),
    }


def text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as inner:
        return f"<its str() failed: {type(inner).__name__}>"


def traceback_of(error: BaseException) -> str:
    """An error that cannot even be shown must not cost the worker."""
    try:
        text, more = shell.format_error(error), out_of_memory.explain(error)
        return f"{text.rstrip()}\n{more}" if more else text
    except Exception:
        frames = "".join(traceback.format_tb(error.__traceback__))
        return f"{frames}{type(error).__name__}: {text_of(error)}"


def run_cell(control: Any, cell: int, body: dict[str, Any], descriptors: list[int]) -> Ending:
    before = 0
    if body.get("memory"):
        forget_peak()
        before = resident()
    with apps.cell(cell, body):
        outcome = shell.run(body["code"], cell, body.get("colours", False))
    if outcome.error is not None:
        raise outcome.error
    ending: dict[str, Any] = {"outcome": "ok"}
    payload: list[int] = []
    if body.get("want_value") and outcome.has_value:
        ending["value"], payload = carry(outcome.value, cell)
    if body.get("memory"):
        ending["memory"] = memory_footer(before)
    return ending, payload


def carry(value: Any, cell: int) -> tuple[dict[str, Any], list[int]]:
    """The value itself if it can travel and is small, else a repr and a name to fetch it by, good until the next one."""
    text = shell.safe_repr(value)
    try:
        packed = values.pack(value)
    except Exception:
        return {"repr": text, "why": "it cannot be pickled"}, []
    if packed.size > LARGE_VALUE:
        packed.close()
        for old in [name for name in namespace() if name.startswith(LARGE_VALUE_NAME)]:
            del namespace()[old]
        handle = f"{LARGE_VALUE_NAME}{cell}"
        namespace()[handle] = value
        return {"repr": text, "why": f"it is large ({packed.size >> 20} MiB)", "handle": handle}, []
    return {"repr": text, "packed": True}, [packed.release()]


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def forget_peak() -> None:
    """The peak that is told is this cell's, not an earlier one's; where the kernel forbids it, the process's."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def peak_resident() -> int:
    with open("/proc/self/status") as file:
        return next((int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM:")), 0)


def memory_footer(before: int) -> dict[str, Any]:
    now = resident()
    footer = {"rss": now, "delta": now - before, "peak": max(now, peak_resident())}
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        footer["cuda"] = torch.cuda.memory_allocated()
        footer["cuda_peak"] = torch.cuda.max_memory_allocated()
    return footer


def call(control: Any, cell: int, body: dict[str, Any], descriptors: list[int]) -> Ending:
    function, args, kwargs = values.unpack(descriptors[0], namespace())
    with apps.cell(cell, body):
        result = function(*args, **kwargs)
    try:
        return {"outcome": "ok", "value": {"packed": True}}, [values.pack(result).release()]
    except Exception as error:
        return {
            "outcome": "ok",
            "value": {"repr": shell.safe_repr(result), "why": f"it cannot be pickled: {error}"},
        }, []


def stage(control: Any, cell: int, body: dict[str, Any], descriptors: list[int]) -> Ending:
    """First half of a push: nothing is visible yet."""
    _staged[body["push"]] = values.unpack(descriptors[0], namespace(), device=os.environ.get("DDIP_DEVICE", "cpu"))
    return {"outcome": "ok"}, []


def commit(control: Any, cell: int, body: dict[str, Any], descriptors: list[int]) -> Ending:
    staged = _staged.pop(body["push"], None)
    if body["keep"]:
        if staged is None:
            raise RuntimeError(f"rank {os.environ.get('RANK')} no longer has what was pushed; push it again")
        namespace().update(staged)
    return {"outcome": "ok"}, []


def pull(control: Any, cell: int, body: dict[str, Any], descriptors: list[int]) -> Ending:
    found = {}
    for name in body["names"]:
        if name not in namespace():
            raise NameError(f"name '{name}' is not defined on rank {os.environ.get('RANK')}")
        found[name] = namespace()[name]
    return {"outcome": "ok", "value": {"packed": True}}, [values.pack_named(found).release()]


def complete(control: Any, cell: int, body: dict[str, Any], descriptors: list[int]) -> Ending:
    return {"outcome": "ok", **shell.complete(body["code"], body["cursor"])}, []


def inspect(control: Any, cell: int, body: dict[str, Any], descriptors: list[int]) -> Ending:
    return {
        "outcome": "ok",
        **shell.inspect(body["code"], body["cursor"], body.get("detail", 0), body.get("colours", False)),
    }, []


def rebuild(control: Any, cell: int, body: dict[str, Any], descriptors: list[int]) -> Ending:
    from ddip.worker import collectives

    collectives.rebuild(body["attempt"], body.get("made"))
    return {"outcome": "ok"}, []


def how_made(control: Any, cell: int, body: dict[str, Any], descriptors: list[int]) -> Ending:
    from ddip.worker import collectives

    return {"outcome": "ok", "made": collectives.how_made()}, []


def fingerprint(control: Any, cell: int, body: dict[str, Any], descriptors: list[int]) -> Ending:
    from ddip.worker import fingerprints

    missing = [name for name in body["names"] if name not in namespace()]
    if missing:
        return {"outcome": "ok", "missing": missing}, []
    found, left_out = fingerprints.of_variables(body["names"], namespace())
    return {"outcome": "ok", "fingerprints": found, "left_out": left_out}, []


def app(control: Any, cell: int, body: dict[str, Any], descriptors: list[int]) -> Ending:
    """Enters an app, or leaves it ("none")."""
    try:
        apps.enter(body["app"])
    except ConfigError as error:
        return {
            "outcome": "error",
            "type": "ConfigError",
            "message": str(error),
            "traceback": "",
            "refused": str(error),
        }, []
    return {"outcome": "ok"}, []


TASKS = {
    "cell": run_cell,
    "call": call,
    "stage": stage,
    "commit": commit,
    "pull": pull,
    "complete": complete,
    "inspect": inspect,
    "rebuild": rebuild,
    "how_made": how_made,
    "fingerprint": fingerprint,
    "app": app,
}


def find(kind: str) -> Callable[..., Ending]:
    if kind not in TASKS:
        raise ValueError(f"a worker has no task '{kind}'")
    return TASKS[kind]
