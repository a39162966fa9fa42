"""Stages that fail or die at a certain micro-batch; these run inside workers."""

from __future__ import annotations

import os
import signal

import pipelines as p
import torch

import ddip


class FailsAt(torch.nn.Module):
    """A layer that raises in its n-th forward."""

    def __init__(self, forward: int) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, 3).double()
        self.left = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.left -= 1
        if self.left == 0:
            raise ValueError("no more today")
        return self.inner(x)  # type: ignore[no-any-return]


class DiesAt(FailsAt):
    """A layer whose process is killed in its n-th forward."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.inner(x)  # type: ignore[no-any-return]


def failing(schedule: str) -> tuple[ddip.Pipeline, str]:
    """The last stage fails in the middle of a run. The pipeline, and what this rank was told."""
    pipe = p.pipe_of([p.mlp(2)[0], FailsAt(11)], schedule)
    try:
        pipe.run(p.data(5, 12))
    except Exception as error:  # noqa: BLE001
        return pipe, f"{type(error).__name__}: {error}"
    return pipe, "nothing"


def failing_at_once() -> str:
    """The last stage fails in its first forward while the first one has many large messages on their way."""
    wide = torch.nn.Sequential(torch.nn.Linear(6, 8192), torch.nn.Tanh()).double()
    last = FailsAt(1)
    last.inner = torch.nn.Linear(8192, 3).double()
    pipe = p.pipe_of([wide, last], "gpipe", micro_batches=12)
    try:
        pipe.run(p.data(3, 24))
    except Exception as error:  # noqa: BLE001
        return str(error)
    return "nothing"
