"""Which frames of a traceback a user is shown: those of their own code and of the libraries it calls.

What we call them from is left out at both ends. Frames of ddip's other modules are left out where they say nothing: above
code of the user's (a stage's forward, a loss), and below a call that ddip refused, whose message says what to do. Any
other error below them may be our own mistake, and is shown whole.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from types import TracebackType
from typing import Any

from ddip.errors import ConfigError, PeerLost, StageFailed, TimedOut

REFUSALS = (ConfigError, PeerLost, StageFailed, TimedOut)
PACKAGE = str(Path(__file__).parents[1]) + "/"
LIBRARIES = tuple({sysconfig.get_path(name) + "/" for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def users_frames(error: BaseException) -> TracebackType | None:
    """Of this error; those that led to it (`__cause__`, `__context__`) are shortened in place."""
    seen = {id(error)}
    led_to_it = error.__cause__ or error.__context__
    while led_to_it is not None and id(led_to_it) not in seen:
        seen.add(id(led_to_it))
        led_to_it.__traceback__ = shown_of(led_to_it)
        led_to_it = led_to_it.__cause__ or led_to_it.__context__
    return shown_of(error)


def first_stop(error: BaseException) -> BaseException:
    """A stop is told softly and by a signal: the second may come while the first is on its way out, and says nothing more."""
    seen = {id(error)}
    while isinstance(error, KeyboardInterrupt) and isinstance(error.__context__, KeyboardInterrupt):
        if id(error.__context__) in seen:
            break
        error = error.__context__
        seen.add(id(error))
    return error


def shown_of(error: BaseException) -> TracebackType | None:
    frames: list[TracebackType] = []
    frame = error.__traceback__
    while frame is not None:
        frames.append(frame)
        frame = frame.tb_next
    frames = without_callers(frames)
    users = [index for index, one in enumerate(frames) if is_users(file_of(one))]
    last_of_user = users[-1] if users else -1
    refused = isinstance(error, REFUSALS) and bool(frames) and file_of(frames[-1]).startswith(PACKAGE)
    return chained(
        one
        for index, one in enumerate(frames)
        if not file_of(one).startswith(PACKAGE) or (index > last_of_user and not refused)
    )


def without_callers(frames: list[TracebackType]) -> list[TracebackType]:
    while frames and calls_users(file_of(frames[0])):
        frames = frames[1:]
    while frames and calls_users(file_of(frames[-1])):
        frames = frames[:-1]
    return frames


def chained(frames: Any) -> TracebackType | None:
    first: TracebackType | None = None
    for one in reversed(list(frames)):
        first = TracebackType(first, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return first


def file_of(frame: TracebackType) -> str:
    return frame.tb_frame.f_code.co_filename


def calls_users(file: str) -> bool:
    return file.startswith(PACKAGE + "worker/") or "/IPython/core/" in file


def is_users(file: str) -> bool:
    return not file.startswith((PACKAGE, "<frozen", *LIBRARIES))
