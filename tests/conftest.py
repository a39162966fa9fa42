"""Every test has its own runtime and state folder, and leaves no process behind: that is checked after each of them."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parent
if str(TESTS) not in sys.path:
    sys.path.insert(0, str(TESTS))
if importlib.util.find_spec("ddip") is None:
    sys.path.insert(0, str(TESTS.parent / "python"))

from lab.shell import TerminalShell, open_shell  # noqa: E402
from support import processes  # noqa: E402
from support.groups import SharedGroups  # noqa: E402

# Nothing of the group is alive this long after an orderly stop, and after SIGKILL of its coordinator or client.
AFTER_STOP = 2.0
AFTER_KILL = 5.0
DEADLINE = 180  # it is there to find hangs; the slowest tests without a mark of their own take 17 s on a quiet machine


def pytest_configure(config: Any) -> None:
    # A shell's job in the background ignores Ctrl-C, and so would everything that a test starts and stops by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    config.addinivalue_line(
        "markers", "kills: the test kills a client or a coordinator, so its processes have 5 s to go, not 2 s"
    )


def pytest_collection_modifyitems(items: list[Any]) -> None:
    for item in items:
        if item.get_closest_marker("timeout") is None and item.path.parent == TESTS:
            item.add_marker(pytest.mark.timeout(DEADLINE))


def short_folder(prefix: str) -> str:
    """A socket's path has room for 107 bytes, and pytest's own folders are long."""
    return tempfile.mkdtemp(prefix=prefix, dir="/tmp")


@pytest.fixture(autouse=True)
def home(request: Any, monkeypatch: Any) -> Iterator[Path]:
    """The runtime folder of this test's groups. Workers do not import torch unless the test asks for it."""
    runtime, state = short_folder("dr-"), short_folder("ds-")
    monkeypatch.setenv("DDIP_RUNTIME_DIR", runtime)
    monkeypatch.setenv("XDG_STATE_HOME", state)
    monkeypatch.setenv("DDIP_PRELOAD", "")
    for name in ("DDIP_TEST_DEVICES", "MASTER_PORT", "JPY_SESSION_NAME", "PYTHONUNBUFFERED", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    yield Path(runtime)
    patience = AFTER_KILL if request.node.get_closest_marker("kills") else AFTER_STOP
    try:
        processes.assert_gone(processes.of_runtime(runtime), patience, "of this test's groups")
    finally:
        for folder in (runtime, state):
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def start(home: Path) -> Iterator[Callable[..., Any]]:
    """Starts groups of this test's own; what the test did not stop is stopped in an orderly way afterwards."""
    import ddip

    started: list[Any] = []

    def start_group(workers: Any = 2, *, torch: bool = False, **options: Any) -> Any:
        before = os.environ.get("DDIP_PRELOAD")
        if torch:
            os.environ.pop("DDIP_PRELOAD", None)
        try:
            group = ddip.Group(workers, **options)
        finally:
            if torch and before is not None:
                os.environ["DDIP_PRELOAD"] = before
        started.append(group)
        return group

    yield start_group
    for group in reversed(started):
        group.stop()


@pytest.fixture(scope="session")
def shared_groups() -> Iterator[SharedGroups]:
    shared = SharedGroups(short_folder("dr-"), short_folder("ds-"))
    yield shared
    shared.close()


@pytest.fixture
def plain(shared_groups: SharedGroups) -> Iterator[Any]:
    """Two workers without torch that other tests use too. Nothing of theirs is left in it; a broken one is replaced."""
    yield from shared_groups.lend("plain", workers=2, settle=0.5)


@pytest.fixture
def torched(shared_groups: SharedGroups) -> Iterator[Any]:
    """The same with torch imported."""
    yield from shared_groups.lend("torched", workers=2, settle=0.5)


@pytest.fixture(params=["fork", "exec"])
def either(request: Any, shared_groups: SharedGroups) -> Iterator[Any]:
    """Two workers without torch, once forked from a warm parent and once exec'd: the same must hold for both."""
    name = "plain" if request.param == "fork" else "exec"
    yield from shared_groups.lend(name, workers=2, settle=0.5, **({"start": "exec"} if name == "exec" else {}))


@pytest.fixture(scope="module")
def terminal() -> Iterator[TerminalShell]:
    """An IPython without a kernel, the extension loaded."""
    yield from open_shell()


@pytest.fixture
def shell(terminal: TerminalShell, home: Path) -> Iterator[TerminalShell]:
    """The same; there is no group yet, and nothing stays of what the test leaves."""
    import ddip

    before = set(terminal.shell.user_ns)
    yield terminal
    terminal.run("%autodip off")
    magics = terminal.magics
    magics.here.group, magics.here.client_name = None, ""
    magics.runner.stuck.clear()
    for name in set(terminal.shell.user_ns) - before:
        del terminal.shell.user_ns[name]
    for name in ddip.groups():
        ddip.attach(name).stop()


@pytest.fixture
def dip(shell: TerminalShell, plain: Any) -> TerminalShell:
    """Two workers are there, and each knows its rank `r`."""
    shell.magics.here.group, shell.magics.here.client_name = plain, "tests"
    plain.run("import os, sys, time; r = int(os.environ['RANK'])")
    return shell
