"""Which cell runs, whether all ranks run it, and how its fits meet. Each fit has a communicator of its own, named by the
cell: one that was interrupted in the middle leaves nothing behind that the next could stumble over."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import ddip
from ddip import communicators

everybody = False  # all ranks of the group run this cell
_cell = 0
_meetings = 0  # of this cell
_open: list[Any] = []  # fits that have not ended
_learners: weakref.WeakSet[Any] = weakref.WeakSet()
_made_group: Any = None  # torch's default process group, if it is ours


def begin(cell: int, all_ranks: bool) -> None:
    global everybody, _cell, _meetings
    everybody, _cell, _meetings = all_ranks, cell, 0


def end() -> None:
    """Of the cell. A fit that an error or a stop cut short has had no event to end it."""
    global everybody
    try:
        for fit in list(_open):
            fit.close()
    finally:
        everybody = False


def opened(fit: Any) -> None:
    _open.append(fit)


def closed(fit: Any) -> None:
    if fit in _open:
        _open.remove(fit)


def together() -> bool:
    return everybody and ddip.world_size() > 1


def know(learner: Any) -> None:
    _learners.add(learner)


def forget_learners() -> None:
    """Learners that live on are ordinary ones again."""
    from ddip.apps.fastai.callback import DdipCallback

    for learner in list(_learners):
        learner.remove_cb(DdipCallback)
    _learners.clear()


def make_process_group() -> None:
    """Before fastai can ask for nccl. Its barriers (load after save) go through it. All ranks call this."""
    global _made_group
    import torch.distributed as distributed

    if distributed.is_available() and not distributed.is_initialized():
        distributed.init_process_group("ddip")
        _made_group = distributed.distributed_c10d._get_default_group()


def destroy_process_group() -> None:
    global _made_group
    if _made_group is None:
        return
    import torch.distributed as distributed

    if distributed.is_initialized() and distributed.distributed_c10d._get_default_group() is _made_group:
        distributed.destroy_process_group()
    _made_group = None


def meet() -> tuple[Any, str]:
    """A new communicator of all ranks, and the name under which the control plane knows it."""
    global _meetings
    from torch.distributed import PrefixStore, rendezvous  # type: ignore[attr-defined]

    from ddip.worker import collectives

    _meetings += 1
    name = f"fastai {_cell}/{_meetings}"
    control = communicators.control()
    with collectives.being_made("fit"):
        store, _, _ = next(rendezvous("env://", ddip.rank(), ddip.world_size()))
        backend = communicators.engine().C10dBackend(
            PrefixStore(name, store), ddip.rank(), ddip.world_size(), communicators.PATIENCE
        )
    control.add_group(name, [backend.abort_socket])
    control.add_describer(name, backend.describer)
    return communicators.engine().Communicator(backend, "shm", "a fit of fastai's"), name


def part(name: str) -> None:
    communicators.control().remove_group(name)


@contextlib.contextmanager
def meeting() -> Iterator[Any]:
    """None where this rank is alone."""
    if not together():
        yield None
        return
    ranks, name = meet()
    try:
        yield ranks
    finally:
        part(name)
