"""Apps: what workers do so that a library's ordinary code trains on all ranks (`%makedip -a NAME`).

An app is a module or folder here, named as in src/ddip/launch/apps.cpp. It is loaded in the notebook too, where its library
need not be, so it imports that inside its functions. It has

    enter()                  in every worker, at its start or when a running group enters the app. Not a collective.
    leave()                  puts everything back as it was.
    cell(number, everybody)  a context manager around each cell and call; `everybody`: all ranks of the group run it.
    COMMANDS                 name → a context manager around one cell: %%dip -a NAME.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from ddip.errors import ConfigError

_current = ""


def names() -> list[str]:
    import pkgutil

    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def module_of(name: str) -> Any:
    if name not in names():
        raise ConfigError(f"app {name!r} is unknown; expected one of: {', '.join(names())}, or none")
    return importlib.import_module(f"{__name__}.{name}")


# ---- in a worker


def current() -> str:
    """The app this worker is in; empty: none."""
    return _current


def enter(name: str) -> None:
    """On every rank: from now on in this app, and no longer in the one before. "none" only leaves."""
    global _current
    if name == _current:
        return
    wanted = None if name in ("", "none") else module_of(name)
    if wanted is not None and not has_module(name):
        raise ConfigError(f"app {name}: this Python has no {name} ({sys.executable})")
    if _current:
        before, _current = _current, ""
        module_of(before).leave()
    if wanted is not None:
        wanted.enter()
        _current = name


def leave() -> None:
    enter("none")


@contextlib.contextmanager
def cell(number: int, body: Mapping[str, Any]) -> Iterator[None]:
    """Around each cell of this worker."""
    command = body.get("app_command", "")
    if not _current:
        if command:
            raise ConfigError(f"%%dip -a {command}: the workers are in no app (%makedip -a NAME)")
        yield
        return
    app = module_of(_current)
    everybody = len(body.get("ranks", ())) == int(os.environ.get("WORLD_SIZE", "1"))
    with app.cell(number, everybody):
        if not command:
            yield
            return
        require_command(_current, command, "%%dip")
        with app.COMMANDS[command]():
            yield


# ---- before anything is started or sent


def has_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def require(app: str, module: str, python: str, environment: Mapping[str, str], command: str) -> None:
    """One line if the workers' Python has not what the app is for."""
    if not module:
        return
    if python == sys.executable:
        there = has_module(module)
    else:
        import subprocess

        question = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
        try:
            there = subprocess.run([python, "-c", question], env=dict(environment), timeout=20).returncode == 0
        except OSError:
            return  # it is no program: who starts it says so
    if not there:
        raise ConfigError(
            f"{command} -a {app}: {python} has no {module}; expected a Python that has it (--python PATH)"
        )


def require_command(app: str, name: str, command: str) -> None:
    if not app:
        raise ConfigError(
            f"{command} -a {name}: the group is in no app; expected a cell without it, or %makedip -a NAME"
        )
    known = module_of(app).COMMANDS
    if name not in known:
        raise ConfigError(f"{command} -a {name}: app {app} has no such command; expected {'|'.join(sorted(known))}")


__all__ = ["current", "enter", "leave", "names"]
