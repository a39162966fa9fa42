"""The random numbers that are to come: Python's, numpy's and torch's."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


class RandomState:
    """As it is now, on the CPU and on the GPUs that are in use."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy = _numpy().get_state() if _numpy() else None
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []

    def is_still(self) -> bool:
        """Nobody has drawn a number since."""
        now = RandomState()
        return (
            self._python == now._python
            and repr(self._numpy) == repr(now._numpy)
            and torch.equal(self._torch, now._torch)
            and all(torch.equal(*pair) for pair in zip(self._cuda, now._cuda, strict=False))
        )

    def restore(self) -> None:
        random.setstate(self._python)
        if self._numpy is not None:
            _numpy().set_state(self._numpy)
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)


def begin_with(seed: int) -> None:
    random.seed(seed)
    if _numpy():
        _numpy().seed(seed)
    torch.manual_seed(seed)


def _numpy() -> Any:
    """Whoever has not imported it draws nothing from it."""
    return getattr(sys.modules.get("numpy"), "random", None)
