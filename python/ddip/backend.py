"""torch.distributed's backend `ddip`: known to torch as soon as both are imported, loaded when a group asks for it."""

from __future__ import annotations

from typing import Any

from ddip.when_imported import when_imported


def make(store: Any, rank: int, size: int, timeout: Any) -> Any:
    try:
        from ddip import _engine
    except ImportError as error:
        raise RuntimeError(f"backend ddip: the engine was not built for this torch ({error})") from None
    return _engine.C10dBackend(store, rank, size, timeout)


def register() -> None:
    import torch.distributed as distributed

    if distributed.is_available() and "ddip" not in distributed.Backend.backend_list:
        distributed.Backend.register_backend("ddip", make, devices=["cpu", "cuda"])


def register_when_torch_is_there() -> None:
    when_imported("torch.distributed", register)


def ours(group: Any) -> list[Any]:
    """This group's backends that are ours."""
    from torch.distributed import distributed_c10d as c10d

    if group is None:
        group = c10d._get_default_group()
    if not isinstance(group, c10d.ProcessGroup):
        return []  # this rank is not in it
    backends = [group._get_backend(device) for device in group._device_types]
    return [*{id(found): found for found in backends if hasattr(found, "abort_socket")}.values()]
