"""Runs on the ranks of a group: a training that faults are put into."""

from __future__ import annotations

import hashlib
import resource
import time
from pathlib import Path
from typing import Any

import replicas as r
import torch
import torch.nn.functional as F
from survivors import Halves, Middle, given
from torch import nn

import ddip

DEADLINE = 20.0


def digest(state: list[torch.Tensor]) -> str:
    return hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in state)).hexdigest()


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(torch.equal(one, other) for one, other in zip(a, b, strict=True))


class Training:
    """A model with momentum, each rank with its own data; `done` counts the steps that were taken."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.dp = ddip.DataParallel(r.mlp(), bucket_mb=0.001)
        self.optimizer = r.sgd(self.dp)
        self.done = 0

    def step(self, loss_of: Any = r.squares) -> None:
        self.optimizer.zero_grad()
        loss_of(self.dp, *r.batch(self.done, r.rank), r.rank, self.done).backward()
        self.optimizer.step()
        self.done += 1

    def state(self) -> list[torch.Tensor]:
        """Parameters and momentum, as they are now."""
        momentum = [self.optimizer.state[p].get("momentum_buffer") for p in self.dp.parameters()]
        return [tensor.detach().clone() for tensor in (*self.dp.parameters(), *momentum) if tensor is not None]

    def gradients(self) -> list[Any]:
        return [parameter.grad for parameter in self.dp.parameters()]

    def apart_from_one_process(self) -> float:
        """The largest difference to as many steps in one process on everybody's data."""
        torch.manual_seed(0)
        single = r.mlp()
        optimizer = r.sgd(single)
        for step in range(self.done):
            optimizer.zero_grad()
            (sum(r.squares(single, *r.batch(step, of), of, step) for of in range(r.world)) / r.world).backward()
            optimizer.step()
        return max((a - b).abs().max().item() for a, b in zip(single.parameters(), self.dp.parameters(), strict=True))

    def interrupted_step(self, held: str, killed: str) -> tuple[str, float]:
        """Rank 0 waits in the middle of its backward until the test has killed somebody."""

        def wait() -> None:
            if r.rank != 0:
                return
            Path(held).touch()
            deadline = time.monotonic() + DEADLINE
            while not Path(killed).exists() and time.monotonic() < deadline:
                time.sleep(0.001)

        def held_back(model: Any, x: Any, y: Any, of: int, step: int) -> torch.Tensor:
            return Middle.apply(F.mse_loss(model(x), y), wait)

        try:
            self.step(held_back)
        except ddip.PeerLost as error:
            return str(error), time.monotonic()
        return "nothing", time.monotonic()

    def steps_until_lost(self) -> str:
        self.step()
        print("trains", flush=True)
        try:
            while True:
                self.step()
        except ddip.PeerLost as error:
            return str(error)

    def too_large_step(self, rank: int, rows: int) -> None:
        """One rank's batch is of so many rows."""

        def loss(model: Any, x: Any, y: Any, of: int, step: int) -> torch.Tensor:
            return F.mse_loss(model(x.repeat(rows, 1) if of == rank else x), y)

        self.step(loss)


def limit_address_space(limit: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))


def with_a_bad_gradient(compress: str, nonfinite: Any, bad: str) -> dict[str, Any]:
    """Four steps; in the third, one value on the last rank is not finite."""
    dp = ddip.DataParallel(Halves(), compress=compress, nonfinite=nonfinite, bucket_mb=0.004)
    optimizer = torch.optim.SGD(dp.parameters(), 0.1, momentum=0.9)
    found: dict[str, Any] = {"nonfinite": [], "skipped": [], "states": []}
    for step in range(4):
        optimizer.zero_grad()
        mine = given(step, r.rank)
        if step == 2 and r.rank == r.world - 1:
            mine[0][3, 4] = float(bad)
        before = [parameter.detach().clone() for parameter in dp.parameters()]
        dp(mine).backward()
        stats = dp.stats()
        found["nonfinite"].append(stats["nonfinite"])
        found["skipped"].append(stats["skipped"])
        if step == 2:
            gradients = [parameter.grad for parameter in dp.parameters()]
            found["gradients are there"] = all(gradient is not None for gradient in gradients)
            found["flagged"] = any(g is not None and not g.isfinite().all() for g in gradients)
        optimizer.step()
        if step == 2:
            found["moved by the bad step"] = not same(before, [parameter.detach() for parameter in dp.parameters()])
        found["states"].append(digest([parameter.detach() for parameter in dp.parameters()]))
    found["finite at the end"] = all(bool(parameter.isfinite().all()) for parameter in dp.parameters())
    return found


def bad_place(where: str) -> int:
    """How many of the steps are said to be not finite."""
    if where == "sparse":
        dp = ddip.DataParallel(r.sparse_model())
        loss = r.always_sparse(dp, *r.batch(0, r.rank), r.rank, 0)
        (loss * (float("inf") if r.rank else 1.0)).backward()
        return dp.stats()["nonfinite"]
    if where == "large":
        dp = ddip.DataParallel(nn.Linear(64, 64, bias=False))
        (dp.module.weight.sum() * 1e38).backward()
        return dp.stats()["nonfinite"]
    dp = ddip.DataParallel(r.Branches(), bucket_mb=0.001)
    for step in range(3):  # two branches share a bucket; one of them is not expected any more
        dp.zero_grad(set_to_none=False)
        r.late(dp, *r.batch(step, r.rank), r.rank, step).backward()
    dp.stats()
    if where == "unused":
        with torch.no_grad():
            dp.branches[1].weight.grad.fill_(float("nan"))
        r.late(dp, *r.batch(1, r.rank), r.rank, 1).backward()
        return dp.stats()["nonfinite"]
    x, y = r.batch(3, r.rank)
    loss = F.mse_loss(dp(x, 0), y)
    if r.rank:
        loss = loss + (dp.module.branches[1].weight * float("inf")).sum() * 1.0
    else:
        loss = loss + dp.module.branches[1].weight.sum()
    loss.backward()
    return dp.stats()["nonfinite"]
