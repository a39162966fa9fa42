"""Runs on the ranks of a group: trains a model under ddip.DataParallel and, beside it, a plain copy in one process on what
all ranks have together. Each case returns the largest difference between the two (or asserts something of its own)."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import ddip

torch.set_num_threads(1)
rank, world = ddip.rank(), ddip.world_size()
DOUBLE = torch.float64
DEVICE = ddip.device()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)


def batch(step: int, of: int, size: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """What rank `of` has in this step: different for each."""
    generator = torch.Generator().manual_seed(1000 * step + of)
    x = torch.randn(size, 6, generator=generator, dtype=DOUBLE)
    y = torch.randn(size, 3, generator=generator, dtype=DOUBLE)
    return x.to(DEVICE), y.to(DEVICE)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 3)).to(DOUBLE)


def squares(model: Any, x: torch.Tensor, y: torch.Tensor, of: int, step: int) -> torch.Tensor:
    return F.mse_loss(model(x), y)


def pair(make: Callable[[], nn.Module], **options: Any) -> tuple[nn.Module, Any]:
    """The plain model with rank 0's values, and the wrapped one, which begins with other values on the other ranks."""
    torch.manual_seed(0)
    single = make().to(DEVICE)
    torch.manual_seed(rank)
    return single, ddip.DataParallel(make().to(DEVICE), bucket_mb=0.001, **options)


def apart(single: nn.Module, dp: Any) -> float:
    ours, theirs = list(dp.named_parameters()), list(single.named_parameters())
    assert [name for name, _ in ours] == [name for name, _ in theirs]
    assert dp.check_replicas() == [], dp.check_replicas()
    return max((a.detach() - b.detach()).abs().max().item() for (_, a), (_, b) in zip(ours, theirs, strict=True))


def gradients_apart(single: nn.Module, dp: Any) -> float:
    worst = 0.0
    for (name, a), (_, b) in zip(dp.named_parameters(), single.named_parameters(), strict=True):
        assert (a.grad is None) == (b.grad is None), f"{name}: {a.grad} {b.grad}"
        if a.grad is not None:
            worst = max(worst, (a.grad.to_dense() - b.grad.to_dense()).abs().max().item())
    return worst


def train(
    make: Any = mlp,
    loss_of: Any = squares,
    *,
    steps: int = 6,
    optimizer: Any = sgd,
    to_none: bool = True,
    **options: Any,
) -> float:
    single, dp = pair(make, **options)
    one, ours = optimizer(single), optimizer(dp)
    worst = 0.0
    for step in range(steps):
        one.zero_grad(to_none)
        (sum(loss_of(single, *batch(step, of), of, step) for of in range(world)) / world).backward()
        ours.zero_grad(to_none)
        loss_of(dp, *batch(step, rank), rank, step).backward()
        if to_none:
            worst = max(worst, gradients_apart(single, dp))
        one.step()
        ours.step()
    return max(worst, apart(single, dp))


# --- models and losses


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.second.weight = self.first.weight
        self.last = nn.Linear(6, 3)
        self.double()

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Branches(nn.Module):
    """Which branch is used depends on who asks; one is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(6, 3) for _ in range(4))
        self.common = nn.Linear(3, 3)
        self.double()

    def forward(self, x: torch.Tensor, which: int) -> Any:
        return self.common(self.branches[which](x))


def by_rank(model: Any, x: Any, y: Any, of: int, step: int) -> torch.Tensor:
    return F.mse_loss(model(x, of % 3), y)


def by_step(model: Any, x: Any, y: Any, of: int, step: int) -> torch.Tensor:
    return F.mse_loss(model(x, step % 3), y)


def late(model: Any, x: Any, y: Any, of: int, step: int) -> torch.Tensor:
    """The first step uses two branches, so that they share a bucket; two steps use one of them, so that the other is not
    expected; then both are used again, and the other's gradient comes when the bucket has left."""
    loss = F.mse_loss(model(x, 0), y)
    return loss if step in (1, 2) else loss + F.mse_loss(model(x, 1), y)


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first, self.middle, self.last = (
            nn.Linear(6, 8),
            nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)),
            nn.Linear(8, 3),
        )
        self.double()

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(checkpoint(self.middle, self.first(x), use_reentrant=self.reentrant))


class CheckpointedTwice(nn.Module):
    """One layer in two checkpointed parts: re-entrant, each is a backward of its own inside the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.twice, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
        self.double()

    def forward(self, x: torch.Tensor) -> Any:
        for _ in range(2):
            x = checkpoint(self.twice, x, use_reentrant=True)
        return self.last(x)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = (
            nn.Sequential(nn.Conv2d(2, 8, 3), nn.ReLU(), nn.Conv2d(8, 3, 3))
            .double()
            .to(memory_format=torch.channels_last)
        )

    def forward(self, x: torch.Tensor) -> Any:
        image = (
            torch.cat([x, x], 1)
            .reshape(-1, 2, 6, 1)
            .expand(-1, -1, -1, 6)
            .contiguous(memory_format=torch.channels_last)
        )
        return self.body(image).mean((2, 3))


class Gan(nn.Module):
    """As fastai has it: one module, two halves, and which one trains is switched."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))
        self.critic = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 1))
        self.gen_mode = False
        self.double()

    def switch(self, gen_mode: bool) -> None:
        self.gen_mode = gen_mode
        self.generator.requires_grad_(gen_mode)
        self.critic.requires_grad_(not gen_mode)

    def generator_loss(self, x: torch.Tensor) -> torch.Tensor:
        return -self.critic(self.generator(x)).mean()

    def critic_loss(self, x: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
        return self.critic(self.generator(x)).mean() - self.critic(real).mean()


def gan_loss(model: Any, x: Any, y: Any, of: int, step: int) -> torch.Tensor:
    model.switch(step % 2 == 1)
    assert model.gen_mode == (step % 2 == 1)
    return model.generator_loss(x) if model.gen_mode else model.critic_loss(x, y)


def penalty(model: Any, x: Any, y: Any, of: int, step: int) -> torch.Tensor:
    """A gradient inside a loss."""
    x = x.clone().requires_grad_()
    out = model(x)
    (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    return F.mse_loss(out, y) + slope.pow(2).mean()


def twice(model: Any, x: Any, y: Any, of: int, step: int) -> torch.Tensor:
    """Two forwards before the backward."""
    first, second = model(x), model(-x)
    return F.mse_loss(first, y) + F.mse_loss(second, y)


def sparse_model() -> nn.Module:
    return nn.ModuleDict({"words": nn.Embedding(11, 4, sparse=True), "out": nn.Linear(4, 3)}).double()


def always_sparse(model: Any, x: Any, y: Any, of: int, step: int) -> torch.Tensor:
    model = getattr(model, "module", model)
    return F.mse_loss(model["out"](model["words"]((x[:, 0].abs() * 3).long() + of)), y)


def sparse_here_dense_there(model: Any, x: Any, y: Any, of: int, step: int) -> torch.Tensor:
    model = getattr(model, "module", model)
    words = (x[:, 0].abs() * 3).long()
    looked_up = model["words"](words) if of == 0 else F.embedding(words, model["words"].weight)
    return F.mse_loss(model["out"](looked_up), y)


def dense_then_sparse(model: Any, x: Any, y: Any, of: int, step: int) -> torch.Tensor:
    model = getattr(model, "module", model)
    words = (x[:, 0].abs() * 3).long() + of
    looked_up = model["words"](words) if step >= 3 else F.embedding(words, model["words"].weight)
    return F.mse_loss(model["out"](looked_up), y)


def sparse_then_dense(model: Any, x: Any, y: Any, of: int, step: int) -> torch.Tensor:
    return dense_then_sparse(model, x, y, of, 6 - step)


def always_one_branch(model: Any, x: Any, y: Any, of: int, step: int) -> torch.Tensor:
    return F.mse_loss(model(x, 1), y)


def sparse_loss(model: Any, x: Any, y: Any, of: int, step: int) -> torch.Tensor:
    model = getattr(model, "module", model)
    if of == 0 and step == 1:
        return F.mse_loss(model["out"](x[:, :4]), y)  # without the embedding, on this rank only
    return F.mse_loss(model["out"](model["words"]((x[:, 0].abs() * 3).long() + of)), y)


# --- cases that are more than one training


def accumulated(last_uses_all: bool = True) -> float:
    """Three backwards without sync, one with."""
    single, dp = pair(Branches)
    one, ours = sgd(single), sgd(dp)
    for step in range(4):
        one.zero_grad()
        ours.zero_grad()
        for part in range(4):
            which = part % 3 if last_uses_all else min(part, 2)
            for of in range(world):
                x, y = batch(10 * step + part, of)
                (F.mse_loss(single(x, which), y) / world).backward()
            x, y = batch(10 * step + part, rank)
            with dp.no_sync() if part < 3 else contextlib.nullcontext():
                F.mse_loss(dp(x, which), y).backward()
        assert gradients_apart(single, dp) < 1e-12
        one.step()
        ours.step()
    return apart(single, dp)


def several_backwards() -> float:
    """Each with sync, gradients add up; one keeps its graph."""
    single, dp = pair(mlp)
    for step in range(3):
        for of in range(world):
            x, y = batch(step, of)
            loss = F.mse_loss(single(x), y) / world
            loss.backward(retain_graph=True)
            loss.backward()
        x, y = batch(step, rank)
        loss = F.mse_loss(dp(x), y)
        loss.backward(retain_graph=True)
        loss.backward()
        if step == 1:
            single.zero_grad(set_to_none=False)
            dp.zero_grad(set_to_none=False)
    return gradients_apart(single, dp)


def with_history() -> float:
    """backward(create_graph=True): the gradients have a graph of their own."""
    single, dp = pair(mlp)
    for step in range(3):
        single.zero_grad()
        dp.zero_grad()
        (sum(F.mse_loss(single(x), y) for x, y in (batch(step, of) for of in range(world))) / world).backward(
            create_graph=True
        )
        x, y = batch(step, rank)
        F.mse_loss(dp(x), y).backward(create_graph=True)
        assert all(parameter.grad.requires_grad for parameter in dp.parameters())
    return gradients_apart(single, dp)


def frozen_and_thawed() -> float:
    def loss(model: Any, x: Any, y: Any, of: int, step: int) -> torch.Tensor:
        model[0].requires_grad_(step >= 3)
        return squares(model, x, y, of, step)

    return train(mlp, loss, steps=7)


def clipped() -> float:
    class Clipping(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            torch.nn.utils.clip_grad_norm_([p for group in self.param_groups for p in group["params"]], 0.05)
            return super().step(closure)

    return train(optimizer=lambda model: Clipping(model.parameters(), 0.1))


def scaled() -> tuple[float, list[float], int]:
    """GradScaler, with one step in which one rank alone overflows: all skip it."""
    single, dp = pair(mlp)
    one, ours = sgd(single), sgd(dp)
    scalers = [torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2) for _ in range(2)]
    for step in range(5):
        hurt = 1e308 if step == 2 else 1.0
        one.zero_grad()
        ours.zero_grad()
        loss = sum(
            F.mse_loss(single(x), y) * (hurt if of == world - 1 else 1.0)
            for of, (x, y) in enumerate(batch(step, of) for of in range(world))
        )
        scalers[0].scale(loss / world).backward()
        x, y = batch(step, rank)
        scalers[1].scale(F.mse_loss(dp(x), y) * (hurt if rank == world - 1 else 1.0)).backward()
        for scaler, optimizer in zip(scalers, (one, ours), strict=True):
            scaler.step(optimizer)
            scaler.update()
    return apart(single, dp), [scaler.get_scale() for scaler in scalers], int(ours.state[next(dp.parameters())] != {})


def autocast() -> float:
    """bf16 autocast, fp32 weights: as one process that adds the ranks' losses, up to the rounding of bf16."""
    make = lambda: mlp().float()  # noqa: E731

    def loss(model: Any, x: Any, y: Any, of: int, step: int) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return F.mse_loss(model(x.float()).float(), y.float())

    return train(make, loss)


def changed(how: str) -> float:
    """The model changes under the wrapper, between two trainings; the optimizer is made anew, as anybody would."""
    make = lambda: mlp().float() if how == "double" else mlp()  # noqa: E731
    single, dp = pair(make)
    kind = next(single.parameters()).dtype

    def some_steps(first: int) -> float:
        one, ours = sgd(single), sgd(dp)
        for step in range(first, first + 3):
            one.zero_grad()
            ours.zero_grad()
            (
                sum(F.mse_loss(single(x.to(kind)), y.to(kind)) for x, y in (batch(step, of) for of in range(world)))
                / world
            ).backward()
            x, y = batch(step, rank)
            F.mse_loss(dp(x.to(kind)), y.to(kind)).backward()
            one.step()
            ours.step()
        return apart(single, dp)

    before = some_steps(0)
    assert before < (1e-5 if how == "double" else 1e-12), before
    torch.manual_seed(77)
    fresh = mlp()
    if how == "double":
        dp.double()
        single.load_state_dict({key: value.clone() for key, value in dp.state_dict().items()}, assign=True)
        kind = DOUBLE
    elif how == "float and back":
        # The parameters are the same objects, of the same type: only autograd's nodes are other ones.
        dp.float().double()
        single.float().double()
    elif how == "data and back":
        for model in (dp, single):
            weight = model[2].weight  # type: ignore[index]
            kept, weight.data = weight.data, weight.data.float()
            weight.data = kept
    elif how == "assign":
        dp.load_state_dict(copy.deepcopy(fresh.state_dict()), assign=True)
        single.load_state_dict(fresh.state_dict())
    elif how == "pretrained encoder":
        dp[0].load_state_dict(fresh[0].state_dict())  # type: ignore[index]
        single[0].load_state_dict(fresh[0].state_dict())  # type: ignore[index]
    elif how == "replaced part":
        dp.module[2] = copy.deepcopy(fresh[2])  # type: ignore[index]
        single[2] = copy.deepcopy(fresh[2])  # type: ignore[index, operator]
    else:
        raise ValueError(how)
    return some_steps(3)


def buffers() -> list[Any]:
    """Running statistics: rank 0's, at every forward."""
    torch.manual_seed(rank)
    dp = ddip.DataParallel(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double())
    torch.manual_seed(0)
    single = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double()
    for step in range(3):
        single(batch(step, 0)[0])  # what rank 0 sees
        dp(batch(step, rank)[0])
    dp._dp.sync_buffers(0)
    same = all(torch.equal(a, b) for a, b in zip(dp.buffers(), single.buffers(), strict=True))
    dp.eval()
    before = [buffer.clone() for buffer in dp.buffers()]
    dp(batch(9, rank)[0])
    return [same, dp.check_replicas(), all(torch.equal(a, b) for a, b in zip(dp.buffers(), before, strict=True))]


def normed_model() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8, track_running_stats=False), nn.Linear(8, 3)).double()


def uneven(by_all: bool = False, make: Any = normed_model, loss_of: Any = squares, **options: Any) -> tuple[float, int]:
    """Rank r has 2 + 3 r batches. One process: in each step the mean over those that still have one."""
    lengths = [2 + 3 * of for of in range(world)]
    single, dp = pair(make, **options)
    one, ours = torch.optim.SGD(single.parameters(), 0.1), torch.optim.SGD(dp.parameters(), 0.1)
    for step in range(max(lengths)):
        with_data = [of for of in range(world) if step < lengths[of]]
        one.zero_grad()
        (
            sum(loss_of(single, *batch(step, of), of, step) for of in with_data) / (world if by_all else len(with_data))
        ).backward()
        one.step()
    seen = 0
    with dp.join(divide_by_initial_world_size=by_all):
        for step in range(lengths[rank]):
            ours.zero_grad()
            loss_of(dp, *batch(step, rank), rank, step).backward()
            ours.step()
            seen += 1
    after = train()  # the group is as good as new
    assert after < 1e-12, after
    return apart(single, dp), seen


def two_models(together: bool) -> float:
    """Two wrapped models: in one loss, or in turn."""
    pairs = [pair(mlp), pair(lambda: nn.Sequential(nn.Linear(6, 30), nn.Tanh(), nn.Linear(30, 3)).to(DOUBLE))]
    optimizers = [[sgd(model) for model in one] for one in pairs]
    for step in range(5):
        for side in (0, 1):
            for of in optimizers:
                of[side].zero_grad()
        if together:
            (
                sum(F.mse_loss(pairs[0][0](x) + pairs[1][0](x), y) for x, y in (batch(step, of) for of in range(world)))
                / world
            ).backward()
            x, y = batch(step, rank)
            F.mse_loss(pairs[0][1](x) + pairs[1][1](x), y).backward()
        else:
            for single, dp in pairs:
                (sum(squares(single, *batch(step, of), of, step) for of in range(world)) / world).backward()
                squares(dp, *batch(step, rank), rank, step).backward()
        for of in optimizers:
            of[0].step()
            of[1].step()
    return max(apart(single, dp) for single, dp in pairs)


def thawed_when_everything_is_expected() -> float:
    single, dp = pair(mlp, find_unused=False)
    for model in (single, dp):
        model[0].requires_grad_(False)
    single, dp = single, ddip.DataParallel(dp.module, find_unused=False, bucket_mb=0.001)
    one, ours = sgd(single), sgd(dp)
    for step in range(6):
        if step == 3:
            for model in (single, dp):
                model[0].requires_grad_(True)
        one.zero_grad()
        ours.zero_grad()
        (sum(squares(single, *batch(step, of), of, step) for of in range(world)) / world).backward()
        squares(dp, *batch(step, rank), rank, step).backward()
        one.step()
        ours.step()
    return apart(single, dp)


def wrapped_again() -> tuple[float, str]:
    """The new wrapper takes over; the old one says so."""
    single, old = pair(mlp)
    dp = ddip.DataParallel(old.module, bucket_mb=0.001)
    one, ours = sgd(single), sgd(dp)
    for step in range(4):
        one.zero_grad()
        ours.zero_grad()
        (sum(squares(single, *batch(step, of), of, step) for of in range(world)) / world).backward()
        squares(dp, *batch(step, rank), rank, step).backward()
        assert gradients_apart(single, dp) < 1e-12
        one.step()
        ours.step()
    try:
        old(batch(0, 0)[0])
    except ddip.ConfigError as error:
        return apart(single, dp), str(error)
    return 1.0, "nothing"


def given_up() -> list[bool]:
    """Added up without sync, then given up: who got nothing else has no gradient, not a zero one."""
    dp = ddip.DataParallel(Branches())
    for _ in range(3):
        with dp.no_sync():
            F.mse_loss(dp(batch(0, rank)[0], 0), batch(0, rank)[1]).backward()
        dp.zero_grad()
        F.mse_loss(dp(batch(0, rank)[0], 1), batch(0, rank)[1]).backward()
    return [parameter.grad is None for parameter in dp.branches[0].parameters()]


def bystander(in_join: bool) -> list[float]:
    """Two branches share a bucket; one is not used any more, its gradient still lies there, and is each rank's own."""
    dp = ddip.DataParallel(Branches(), bucket_mb=0.001)

    def backward(number: int, both: bool) -> None:
        late(dp, *batch(number, rank), rank, 0 if both else 1).backward()

    for number in range(3):
        backward(number, both=True)
    assert any({0, 2} <= set(bucket) for bucket in dp._dp.buckets), dp._dp.buckets  # both weights
    backward(3, both=False)
    unused = dp.branches[1].weight
    with torch.no_grad():
        unused.grad.fill_(rank + 1)
    with dp.join() if in_join else contextlib.nullcontext():
        # In join only the last rank has data: there the mean is scaled.
        if rank == world - 1 or not in_join:
            backward(4, both=False)
        found = unused.grad.clone()  # a rank without data drops its gradients
    return [found.min().item(), found.max().item()]


def bystander_of_an_earlier_sum() -> list[float]:
    """A branch that was used without sync, and averaged with the next backward; the one after that does not use it."""
    dp = ddip.DataParallel(Branches(), bucket_mb=0.001)
    x, y = batch(0, rank)
    with dp.no_sync():
        F.mse_loss(dp(x, 1), y).backward()
    F.mse_loss(dp(x, 0), y).backward()
    unused = dp.branches[1].weight
    with torch.no_grad():
        unused.grad.fill_(rank + 1)
    F.mse_loss(dp(x, 0), y).backward()
    return [unused.grad.min().item(), unused.grad.max().item()]


def joined_with_momentum() -> tuple[float, list[str]]:
    """After join, with the optimizer's state made alike, training goes on as one."""
    single, dp = pair(mlp)
    optimizer = sgd(dp)
    with dp.join(optimizer):
        for step in range(1 + 2 * rank):
            optimizer.zero_grad()
            squares(dp, *batch(step, rank), rank, step).backward()
            optimizer.step()
    for step in range(3):
        optimizer.zero_grad()
        squares(dp, *batch(step, rank), rank, step).backward()
        optimizer.step()
    return train(), dp.check_replicas()


def join_that_failed() -> float:
    """An error on all ranks inside join: afterwards a changed model is planned anew, as ever."""
    _, dp = pair(mlp)
    try:
        with dp.join():
            squares(dp, *batch(0, rank), rank, 0).backward()
            raise Interrupted
    except Interrupted:
        pass
    assert not dp._dp.joining
    return train()


def evaluated_by_one_rank() -> str:
    """Alone, without gradients, after the plan has become old: nobody is waited for."""
    _, dp = pair(mlp)
    dp.module[2] = mlp()[2]
    if rank == 0:
        with torch.no_grad():
            dp(batch(0, 0)[0])
        with torch.inference_mode():
            dp(batch(0, 0)[0])
    squares(dp, *batch(0, rank), rank, 0).backward()
    return "done"


class Interrupted(Exception):
    pass


class Throws(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        raise Interrupted


def broken_off() -> float:
    """A backward that ends with an error on all ranks, after some buckets have left; then training goes on."""
    single, dp = pair(mlp)
    x, y = batch(0, rank)
    for _ in range(2):
        hidden = Throws.apply(dp.module[1](dp.module[0](x)))
        try:
            F.mse_loss(dp.module[4](dp.module[3](dp.module[2](hidden))), y).backward()
        except Interrupted:
            pass
        else:
            raise AssertionError("backward should have failed")
    one, ours = sgd(single), sgd(dp)
    for step in range(3):
        one.zero_grad()
        ours.zero_grad()
        (sum(squares(single, *batch(step, of), of, step) for of in range(world)) / world).backward()
        squares(dp, *batch(step, rank), rank, step).backward()
        one.step()
        ours.step()
    return apart(single, dp)


def halves() -> list[tuple[int, float]]:
    """Bytes sent and seconds computed in each backward of a GAN, whose halves train in turn by methods of their own."""
    gan = ddip.DataParallel(Gan())
    found = []
    for step in range(8):
        gan.zero_grad()
        gan_loss(gan, *batch(step, rank), rank, step).backward()
        stats = gan.stats()
        found.append((stats["sent_bytes"], stats["compute_seconds"]))
    return found


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        time.sleep(0.2)
        return gradient


class Sleeper(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return Slow.apply(x)


def overlapped() -> dict[str, Any]:
    """Backward takes its time between two layers: the gradients of the later one can travel meanwhile."""
    dp = ddip.DataParallel(nn.Sequential(nn.Linear(64, 512), Sleeper(), nn.Linear(512, 1024)), bucket_mb=1)
    for _ in range(2):
        dp.zero_grad()
        dp(torch.randn(4, 64)).sum().backward()
    return dp.stats()


def counted() -> list[dict[str, Any]]:
    """Bytes: with gradients made anew each step, and with gradients that stay where they are."""
    torch.manual_seed(0)
    dp = ddip.DataParallel(
        nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 3))
    )
    found = []
    for to_none in (True, False):
        for step in range(6):
            if step == 2:
                dp.stats()  # the first steps plan and settle
            dp.zero_grad(set_to_none=to_none)
            dp(torch.randn(4, 256)).sum().backward()
        found.append(dp.stats())
    found[0]["bytes_of_gradients"] = sum(parameter.numel() * 4 for parameter in dp.parameters())
    found[0]["rank"] = rank
    return found


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(2, 4, 2), nn.BatchNorm1d(4), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3))
        self.double()

    def forward(self, x: torch.Tensor) -> Any:
        return self.body(x.view(-1, 2, 3))


def batch_norm() -> list[float]:
    """Statistics of everybody's batch: like one process on the joint batch, in training and in evaluation."""
    torch.manual_seed(0)
    single = Normed().to(DEVICE)
    torch.manual_seed(rank)
    dp = ddip.DataParallel(ddip.SyncBatchNorm.convert(Normed().to(DEVICE)), bucket_mb=0.001)
    one, ours = sgd(single), sgd(dp)
    for step in range(5):
        joint = [batch(step, of) for of in range(world)]
        one.zero_grad()
        F.mse_loss(single(torch.cat([x for x, _ in joint])), torch.cat([y for _, y in joint])).backward()
        one.step()
        ours.zero_grad()
        F.mse_loss(dp(joint[rank][0]), joint[rank][1]).backward()
        ours.step()
    statistics = max((a - b).abs().max().item() for a, b in zip(dp.buffers(), single.buffers(), strict=True))
    single.eval()
    dp.eval()
    x = batch(9, 0)[0]
    return [apart(single, dp), statistics, (single(x) - dp(x)).abs().max().item()]


def alike() -> list[Any]:
    """The helpers: parameters, optimizer state, objects, metrics."""
    torch.manual_seed(rank)
    model = mlp()
    ddip.broadcast_parameters(model)
    optimizer = torch.optim.Adam(model.parameters(), 0.1 * (rank + 1))
    model(batch(0, rank)[0]).sum().backward()
    optimizer.step()
    ddip.broadcast_parameters(model, root=1)
    ddip.broadcast_optimizer_state(optimizer, root=1)
    state = [value for of in optimizer.state.values() for value in of.values()]
    every = ddip.gather_objects(
        [optimizer.param_groups[0]["lr"], *(tensor.sum().item() for tensor in (*model.parameters(), *state))]
    )
    return [
        len(every) == world and all(one == every[0] for one in every) and len(every[0]) == 1 + 6 + 18,
        ddip.broadcast_object({"rank": rank, "x": torch.arange(rank + 2)}, root=world - 1)["x"].tolist(),
        ddip.gather_metrics({"loss": float(rank), "correct": 2 * rank}, "sum"),
        ddip.gather_metrics({"accuracy": float(rank), "weight": rank + 1}),
    ]


# --- compression


class Given(nn.Module):
    """Parameters whose gradients are what the test says."""

    SHAPES = ((40, 30), (7,), (64, 8, 3, 3), (1,), (30, 40))

    def __init__(self) -> None:
        super().__init__()
        self.all = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in self.SHAPES)

    def forward(self, gradients: list[torch.Tensor]) -> torch.Tensor:
        return sum((p * g).sum() for p, g in zip(self.all, gradients, strict=True))  # type: ignore[return-value]


def given(step: int, of: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + of)
    return [torch.randn(shape, generator=generator) for shape in Given.SHAPES]


def conserved(compress: str, steps: int = 12) -> dict[str, Any]:
    """Nothing is lost: what arrived plus what is left over is what was asked for, through buckets cut anew, a model planned
    anew, and a step that was dropped because one value on one rank was not finite."""
    dp = ddip.DataParallel(Given(), compress=compress, bucket_mb=0.004)
    compressor = dp._dp.compressor
    arrived = [torch.zeros(shape) for shape in Given.SHAPES]
    asked = [torch.zeros(shape) for shape in Given.SHAPES]
    largest, skipped, sent = 0.0, 0, []
    for step in range(steps):
        dp.zero_grad()
        if step == 4:
            dp._dp.plan()
        mine = given(step, rank)
        if step == 7 and rank == world - 1:
            mine[2][0, 0, 0, 0] = float("nan")
        before = [rest_of(compressor, index, shape).clone() for index, shape in enumerate(Given.SHAPES)]
        dp(mine).backward()
        stats = dp.stats()
        sent.append(stats["sent_bytes"])
        if step == 7:
            skipped = stats["skipped"]
            assert all(parameter.grad is None for parameter in dp.parameters())
            after = [rest_of(compressor, index, shape) for index, shape in enumerate(Given.SHAPES)]
            assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True)), "the dropped step left something"
            continue
        for index, parameter in enumerate(dp.parameters()):
            arrived[index] += parameter.grad
            mean = sum(given(step, of)[index] for of in range(world)) / world
            asked[index] += mean
            largest = max(largest, (parameter.grad - mean).abs().max().item())
    gap = 0.0
    for index, shape in enumerate(Given.SHAPES):
        rest = rest_of(compressor, index, shape)
        ddip.comm().all_reduce(rest, "mean")
        gap = max(gap, (arrived[index] + rest - asked[index]).abs().max().item())
    same = ddip.comm().all_gather(torch.cat([a.reshape(-1) for a in arrived]))
    return {
        "gap": gap,
        "largest": largest,
        "skipped": skipped,
        "sent": sent,
        "identical": bool((same == same[0]).all()),
    }


def rest_of(compressor: Any, index: int, shape: Any) -> torch.Tensor:
    rest = compressor.residual(index)
    return torch.zeros(shape) if rest is None else rest.reshape(shape).clone()


def final_loss(compress: str, seed: int) -> float:
    """A small classifier; the loss over everybody's data at the end."""
    torch.manual_seed(seed)
    truth = nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 4))
    x = torch.randn(64 * world, 20)
    y = truth(x).argmax(1)
    dp = ddip.DataParallel(
        nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4)), compress=compress
    )
    optimizer = torch.optim.SGD(dp.parameters(), 0.1, momentum=0.9)
    for _ in range(150):
        optimizer.zero_grad()
        F.cross_entropy(dp(x[rank::world]), y[rank::world]).backward()
        optimizer.step()
    assert dp.check_replicas() == []
    return F.cross_entropy(dp(x), y).item()
