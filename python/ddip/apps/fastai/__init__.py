"""fastai v2: Learners made while the app is on train on all ranks by themselves.

A default callback does it (callback.py). Two names of fastai.torch_core are replaced besides, because no callback can: what
would gather each loss and prediction once more, and how many ranks there are for a cell that only some of them run.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import ddip
from ddip.apps.fastai import session
from ddip.when_imported import when_imported

# Of ddip.DataParallel: options.update(compress="fp16") before a fit.
options: dict[str, Any] = {}

_forget_import: Callable[[], None] | None = None
_originals: dict[str, Any] = {}


def enter() -> None:
    global _forget_import
    seed_alike(True)
    _forget_import = when_imported("fastai.learner", install)


def install() -> None:
    import fastai.torch_core as core
    import torch
    from fastcore.foundation import defaults

    from ddip.apps.fastai.callback import DdipCallback

    if ddip.device().type == "cuda":
        torch.cuda.set_device(ddip.device())  # where fastai puts what has no device
    if DdipCallback not in defaults.callbacks:
        defaults.callbacks.append(DdipCallback)
    if not _originals:
        _originals.update(maybe_gather=core.maybe_gather, num_distrib=core.num_distrib)
        core.maybe_gather = as_it_is
        core.num_distrib = ranks_of_cell


def as_it_is(x: Any, axis: int = 0) -> Any:
    """In place of maybe_gather: the callback has joined it already."""
    return x


def ranks_of_cell() -> int:
    """In place of num_distrib: a cell of some ranks must not wait for the others."""
    number: int = _originals["num_distrib"]()
    return number if session.together() else min(number, 1)


def leave() -> None:
    global _forget_import
    if _forget_import is not None:
        _forget_import()
        _forget_import = None
    if _originals:
        import fastai.torch_core as core
        from fastcore.foundation import defaults

        from ddip.apps.fastai.callback import DdipCallback

        core.maybe_gather, core.num_distrib = _originals["maybe_gather"], _originals["num_distrib"]
        _originals.clear()
        if DdipCallback in defaults.callbacks:
            defaults.callbacks.remove(DdipCallback)
        session.forget_learners()
    session.destroy_process_group()
    options.clear()
    seed_alike(False)


def seed_alike(alike: bool) -> None:
    """A random split, and a new model, must come out the same on every rank; inside a fit each has numbers of its own."""
    from ddip.worker import born

    born.seed(int(os.environ.get("DDIP_SEED", "0")) + (0 if alike else ddip.rank()))


@contextlib.contextmanager
def cell(number: int, everybody: bool) -> Iterator[None]:
    session.begin(number, everybody)
    try:
        yield
    finally:
        session.end()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """%%dip -a alone: Learners of this cell train on each rank by itself."""
    before, session.everybody = session.everybody, False
    try:
        yield
    finally:
        session.everybody = before


@contextlib.contextmanager
def rank0_first() -> Iterator[None]:
    """%%dip -a rank0_first: the others begin when rank 0 is through (it downloads, they find the files)."""
    with session.meeting() as ranks:
        if ranks is not None and ranks.rank > 0:
            ranks.barrier()
        try:
            yield
        finally:
            if ranks is not None and ranks.rank == 0:
                ranks.barrier()


COMMANDS = {"alone": alone, "rank0_first": rank0_first}

__all__ = ["COMMANDS", "cell", "enter", "leave", "options"]
