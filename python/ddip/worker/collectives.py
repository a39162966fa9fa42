"""torch.distributed as seen by the control thread: which collective the main thread waits in, which sockets belong to
which process group (so that an interrupt can end a blocked Gloo operation), and how to make the groups anew."""

from __future__ import annotations

import contextlib
import datetime
import functools
import inspect
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from ddip import _worker, backend
from ddip.when_imported import when_imported

OPERATIONS = (
    "all_reduce", "all_gather", "all_gather_into_tensor", "all_gather_object", "all_to_all", "all_to_all_single", "barrier",
    "broadcast", "broadcast_object_list", "gather", "gather_object", "monitored_barrier", "recv", "recv_object_list", "reduce",
    "reduce_scatter", "reduce_scatter_tensor", "scatter", "scatter_object_list", "send", "send_object_list",
)  # fmt: skip

# The group that is not there yet: its connections to the store.
BEING_MADE = "being made"

# What --backend says, in torch's words.
TORCHS_NAME = {"auto": "gloo", "shm": "ddip"}

_control: Any = None
_patched = False
# How the default group was made, to make it again: (args, kwargs) of init_process_group.
_made: dict[str, Any] = {}
# How often the default group was made since the last rebuild: each time has store keys of its own.
_times_made = 0
_inside = threading.local()
_group_of_work: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def install(control: Any) -> None:
    global _control
    _control = control
    when_imported("torch.distributed", patch)


def patch() -> None:
    global _patched
    if _patched:
        return
    _patched = True
    import torch.distributed as distributed
    from torch.distributed import distributed_c10d as c10d

    if not distributed.is_available():
        return
    for name in OPERATIONS:
        if hasattr(c10d, name):
            replace(distributed, c10d, name, marked(name, getattr(c10d, name)))
    c10d.Work.wait = marked_wait(c10d.Work.wait)  # type: ignore[method-assign]
    meeting: Any = sys.modules["torch.distributed.rendezvous"]
    meeting._create_c10d_store = with_fresh_keys(meeting._create_c10d_store)
    replace(distributed, c10d, "init_process_group", remembering(c10d.init_process_group))
    replace(distributed, c10d, "new_group", watching_sockets(c10d.new_group))
    replace(distributed, c10d, "destroy_process_group", forgetting(c10d.destroy_process_group))


def replace(distributed: Any, c10d: Any, name: str, function: Callable[..., Any]) -> None:
    setattr(c10d, name, function)
    setattr(distributed, name, function)


def group_name(group: Any) -> str:
    if group is None:
        from torch.distributed import distributed_c10d as c10d

        group = c10d._get_default_group() if c10d.is_initialized() else None
    return str(getattr(group, "group_name", "") or "default")


def marked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    parameters = list(inspect.signature(function).parameters)
    place = parameters.index("group") if "group" in parameters else len(parameters)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        group = group_name(args[place] if len(args) > place else kwargs.get("group"))
        work = inside(name, group, function, args, kwargs)
        if kwargs.get("async_op") and work is not None:
            _group_of_work[work] = group
        return work

    return call


def marked_wait(function: Callable[..., Any]) -> Callable[..., Any]:
    """The wait for an operation that was begun with async_op=True."""

    @functools.wraps(function)
    def call(work: Any, *args: Any, **kwargs: Any) -> Any:
        return inside("wait", _group_of_work.get(work) or group_name(None), function, (work, *args), kwargs)

    return call


def inside(name: str, group: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The outermost call is the one that counts: all_reduce(group=g) waits by another call that does not know g."""
    if getattr(_inside, "one", False):
        return function(*args, **kwargs)
    _inside.one = True
    _control.enter_collective(name, group)
    try:
        return function(*args, **kwargs)
    finally:
        _control.leave_collective()
        _inside.one = False


def with_fresh_keys(function: Callable[..., Any]) -> Callable[..., Any]:
    """A process group made again must not find the addresses of the one before. (torch up to 2.12 put
    TORCHELASTIC_RESTART_COUNT into the keys by itself.)"""

    @functools.wraps(function)
    def call(hostname: str, port: int, *args: Any, **kwargs: Any) -> Any:
        if port != store_port():
            return function(hostname, port, *args, **kwargs)
        before = set(_worker.connections_to(port))
        store = function(hostname, port, *args, **kwargs)
        # Who waits there for a rank that never comes is ended by shutting these.
        _control.add_group(BEING_MADE, [number for number in _worker.connections_to(port) if number not in before])
        from torch.distributed import PrefixStore  # type: ignore[attr-defined]

        return PrefixStore(f"ddip/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{_times_made}", store)

    return call


def store_port() -> int:
    return int(os.environ.get("MASTER_PORT", "0") or 0)


@contextlib.contextmanager
def being_made(operation: str) -> Iterator[None]:
    _control.enter_collective(operation, BEING_MADE)
    try:
        yield
    finally:
        _control.leave_collective()
        _control.remove_group(BEING_MADE)


def watching_sockets(function: Callable[..., Any]) -> Callable[..., Any]:
    """Connections that appear while a group is made are that group's."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        before = set(_worker.connected_sockets(store_port()))
        with being_made("new_group"):
            group = function(*args, **kwargs)
        add_group(before, group)
        return group

    return call


def add_group(before: set[int], group: Any) -> None:
    _control.add_group(group_name(group), new_sockets(before, group))
    for found in backend.ours(group):
        _control.add_describer(group_name(group), found.describer)


def new_sockets(before: set[int], group: Any) -> list[int]:
    """Shutting these down ends what waits in the group."""
    new = [number for number in _worker.connected_sockets(store_port()) if number not in before]
    return new + [found.abort_socket for found in backend.ours(group)]


def remembering(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        from ddip.worker import store

        store.host_now()
        made = {"args": args, "kwargs": kwargs}
        before = set(_worker.connected_sockets(store_port()))
        with being_made("init_process_group"):
            function(*args, **kwargs)
        add_group(before, None)
        global _times_made
        _times_made += 1
        _made.clear()
        _made.update(made)

    return call


def forgetting(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(group: Any = None) -> Any:
        name = group_name(group)
        try:
            return function(group)
        finally:
            _control.remove_group(name)
            if group is None:
                _made.clear()

    return call


def how_made() -> dict[str, Any]:
    """What another rank needs to know to make the same default group; nothing if this one never did."""
    args, kwargs = _made.get("args", ()), _made.get("kwargs", {})
    backend_name = args[0] if args else kwargs.get("backend")
    timeout = kwargs.get("timeout")
    known = {"backend": str(backend_name)} if backend_name else {}
    return known | ({"seconds": timeout.total_seconds()} if known and timeout else {})


def rebuild(attempt: int, others: dict[str, Any] | None = None) -> None:
    """Makes the default group again under a new store prefix: as it was made here, or else as another rank made it
    (`others`: its how_made(); this one may have been restarted since)."""
    global _times_made
    os.environ["TORCHELASTIC_RESTART_COUNT"] = str(attempt)
    _times_made = 0
    if "torch.distributed" not in sys.modules:
        return
    import torch.distributed as distributed

    if not distributed.is_available():
        return
    made = dict(_made)
    if distributed.is_initialized():
        try:
            distributed.destroy_process_group()
        except RuntimeError:
            # A group whose connections are gone cannot say goodbye; torch has forgotten it all the same.
            pass
    # torch counts its groups, also one that was never finished, and the number is in the store's keys.
    distributed.distributed_c10d._world.group_count = 0
    args, kwargs = made.get("args", ()), made.get("kwargs", {})
    if not args and not kwargs:
        others = others or {}
        asked = os.environ.get("DDIP_BACKEND", "auto")
        args = (others.get("backend") or TORCHS_NAME.get(asked, asked),)
        if "seconds" in others:
            kwargs = {"timeout": datetime.timedelta(seconds=others["seconds"])}
    distributed.init_process_group(*args, **kwargs)
