"""Runs on the ranks of a group: steps that end in the middle, and what the ranks that are left have kept of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import ddip
from ddip import communicators

torch.set_num_threads(1)
# Two matrices that compression shrinks, each in a bucket of its own, and something small with each.
EARLY = ((40, 30), (7,))
LATE = ((36, 40), (5,))
BUCKET_MB = 0.004


class Interrupted(Exception):
    pass


class Middle(torch.autograd.Function):
    """Calls a function between the backward of what comes after it and of what comes before it."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, call: Callable[[], None]) -> torch.Tensor:
        context.call = call
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        context.call()
        return gradient, None


class Halves(nn.Module):
    """Its gradients are what the caller says; those of `early` are there, and travel, before those of `late` begin."""

    def __init__(self) -> None:
        super().__init__()
        self.late = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in LATE)
        self.early = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in EARLY)
        self.register_buffer("nothing", torch.zeros(1))

    def forward(
        self, gradients: list[torch.Tensor], early: bool = True, middle: Callable[[], None] = lambda: None
    ) -> Any:
        late = sum((p * g).sum() for p, g in zip(self.late, gradients, strict=False))
        late = Middle.apply(late, middle)
        return (
            late + sum((p * g).sum() for p, g in zip(self.early, gradients[len(LATE) :], strict=True))
            if early
            else late
        )


def given(step: int, of: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + of)
    return [torch.randn(shape, generator=generator) for shape in (*LATE, *EARLY)]


def communicator(rank: int, world: int) -> Any:
    """One more, of some ranks of the group; they call it together."""
    engine = communicators.engine()
    backend = engine.C10dBackend(communicators.store(), rank, world, communicators.PATIENCE)
    return engine.Communicator(backend, "shm", "a test's")


class Session:
    """One rank of a training whose communicator changes."""

    def __init__(self, compress: str) -> None:
        self.name = ddip.rank()  # stays, whatever its number in the communicator is
        self.ranks = communicator(self.name, ddip.world_size())
        self.dp = ddip.DataParallel(Halves(), compress=compress, bucket_mb=BUCKET_MB, ranks=lambda: self.ranks)
        shapes = (*LATE, *EARLY)
        self.asked = [torch.zeros(shape) for shape in shapes]  # by this rank
        self.arrived = [torch.zeros(shape) for shape in shapes]  # as a sum over the ranks: mean × how many
        self.next = 0

    def step(self, *, early: bool = True, middle: Callable[[], None] = lambda: None) -> None:
        """Raises what backward raises; then nothing of it counts."""
        self.dp.zero_grad()
        mine = given(self.next, self.name)
        self.next += 1
        self.dp(mine, early, middle).backward()
        for index, parameter in enumerate(self.dp.parameters()):
            if parameter.grad is not None:
                self.asked[index] += mine[index]
                self.arrived[index] += parameter.grad * self.ranks.world_size

    def through(self) -> None:
        """Inside `middle`: returns when what has left has arrived, on all ranks."""
        self.dp._dp.sync_buffers(0)

    def rests(self) -> list[torch.Tensor]:
        kept = [self.dp._dp.compressor.residual(index) for index in range(len(LATE) + len(EARLY))]
        return [
            torch.zeros(shape) if rest is None else rest.reshape(shape).clone()
            for rest, shape in zip(kept, (*LATE, *EARLY), strict=True)
        ]

    def resize(self, rank: int, world: int) -> None:
        self.ranks = communicator(rank, world)


def aborted(compress: str, how: str) -> dict[str, Any]:
    """A step that ends after its first bucket has arrived; then one that does not use what was in that bucket."""
    session = Session(compress)
    for _ in range(3):
        session.step()
    before = session.rests()

    def abort() -> None:
        session.through()
        if how != "abort":
            raise Interrupted
        if session.name == 0:
            session.ranks.abort()

    try:
        session.step(middle=abort)
    except (ddip.PeerLost, Interrupted) as error:
        said = type(error).__name__
    else:
        said = "nothing"
    gradients = [parameter.grad is None for parameter in session.dp.parameters()]
    # What is frozen is not expected by the next plan, and has no part in the step.
    for parameter in session.dp.early:
        parameter.requires_grad_(False)
    if how == "abort":
        session.resize(ddip.rank(), ddip.world_size())
    else:
        session.dp._dp.plan()
    session.step(early=False)
    after = session.rests()
    same = [torch.equal(a, b) for a, b in zip(before, after, strict=True)]
    return {
        "said": said,
        "dropped": gradients,
        "late is as it was": same[0],
        "early is as it was": same[len(LATE)],
        "early has a rest": bool(before[len(LATE)].any()),
    }


def switched(compress: str) -> tuple[float, float]:
    """Half of the model is used, or not, for some steps running. Each time it stops, it is expected once more: nothing of
    what is left over may go where nobody takes it. Returns what is missing of what all asked for, and the largest rest."""
    session = Session(compress)
    for early in (True, True, False, False, True, True, True, False, True):
        session.step(early=early)
    gap, largest = 0.0, 0.0
    for asked, arrived, rest in zip(session.asked, session.arrived, session.rests(), strict=True):
        largest = max(largest, rest.abs().max().item())
        for tensor in (asked, rest):
            session.ranks.all_reduce(tensor)
        gap = max(gap, (arrived + rest - asked).abs().max().item())
    return gap, largest


def die_in_the_middle(session: Session, rank: int) -> str:
    def kill() -> None:
        session.through()
        if session.name == rank:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        session.step(middle=kill)
    except ddip.PeerLost as error:
        return str(error)
    return "nothing"
