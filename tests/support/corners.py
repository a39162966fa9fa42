"""Runs on the ranks of a group: corners of ddip.DataParallel where a mistake was found once. Uses replicas.py."""

from __future__ import annotations

import copy
import datetime
import io
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import replicas as r
import survivors
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import ddip
from ddip import communicators


def outcome(body: Callable[[], Any]) -> str:
    """The error's type and text, or "nothing"."""
    try:
        body()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def all_but_the_first() -> Any:
    """A communicator of these ranks; None on rank 0."""
    if r.rank == 0:
        communicators.store()  # the ranks count these together
        return None
    return survivors.communicator(r.rank - 1, r.world - 1)


def same_everywhere(tensor: torch.Tensor) -> bool:
    every = ddip.comm().all_gather(tensor)
    return bool((every == every[0]).all())


# --- late gradients: their bucket had left without them


def late_with_history() -> list[Any]:
    """backward(create_graph=True) where a gradient comes late: alone (its bucket has left), or with a bucket of its own."""
    found = []
    for loss_of in (r.late, r.by_step):
        single, dp = r.pair(r.Branches)
        for step in range(5):
            single.zero_grad()
            dp.zero_grad()
            (sum(loss_of(single, *r.batch(step, of), of, step) for of in range(r.world)) / r.world).backward(
                create_graph=True
            )
            loss_of(dp, *r.batch(step, r.rank), r.rank, step).backward(create_graph=True)
            history = all(p.grad is None or p.grad.requires_grad for p in dp.parameters())
            found.append((r.gradients_apart(single, dp), history))
    return found


class AtClone(TorchDispatchMode):
    """Calls a function when a tensor of this shape is copied: an all-reduce of something late begins so."""

    def __init__(self, shape: tuple[int, ...], call: Callable[[], None]) -> None:
        super().__init__()
        self.shape, self.call, self.times = shape, call, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.clone.default and tuple(args[0].shape) == self.shape:
            self.times += 1
            self.call()
        return function(*args, **(kwargs or {}))


class TwoParts(nn.Module):
    """Two parameters in one bucket, the second of a shape that nothing else has."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 5))

    def forward(self, both: bool) -> Any:
        return self.always.sum() * (1.0 + r.rank) + (self.sometimes.sum() if both else 0.0)


def late_that_fails() -> tuple[str, int, list[bool]]:
    """The ranks have agreed that something late must travel, all else is through; then its all-reduce fails."""
    ranks = survivors.communicator(r.rank, r.world)
    dp = ddip.DataParallel(TwoParts(), ranks=ranks)
    for both in (True, False, False):
        dp.zero_grad()
        dp(both).backward()
    dp.zero_grad()
    with AtClone((2, 5), ranks.abort) as mode:
        said = outcome(lambda: dp(True).backward())
    return said, mode.times, [parameter.grad is None for parameter in dp.parameters()]


def late_with_an_error_of_another_kind() -> tuple[str, list[bool], list[float]]:
    """The end of a backward fails on this side of the ranks; what the next one gives."""
    dp = ddip.DataParallel(TwoParts())
    for both in (True, False, False):
        dp.zero_grad()
        dp(both).backward()
    dp.zero_grad()

    def fail() -> None:
        raise MemoryError("no room for a copy")

    with AtClone((2, 5), fail):
        said = outcome(lambda: dp(True).backward())
    dropped = [parameter.grad is None for parameter in dp.parameters()]
    dp.zero_grad()
    dp(True).backward()
    return said, dropped, [parameter.grad.mean().item() for parameter in dp.parameters()]


def frozen_where_all_is_expected(**options: bool) -> list[Any]:
    """Layers are frozen, and thawed again, where every backward must use the same parameters: what it said, the layer's
    gradient, and whether the others' are everybody's."""
    model = r.mlp()
    dp = ddip.DataParallel(model, **options)
    found = []
    for step, frozen in enumerate((False, False, True, True, False)):
        model[0].requires_grad_(not frozen)
        dp.zero_grad()
        said = outcome(lambda step=step: r.squares(dp, *r.batch(step, r.rank), r.rank, step).backward())
        found.append([said, model[0].weight.grad is None, same_everywhere(model[4].weight.grad)])
    return found


# --- join


def joined_after(change: str) -> bool:
    """What happened to the model before the join counts inside it: whether the gradients are everybody's."""
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3)).double()
    model[0].requires_grad_(change not in ("thawed", "thawed inside"))
    dp = ddip.DataParallel(model)
    r.squares(dp, *r.batch(0, r.rank), r.rank, 0).backward()
    dp.zero_grad()
    dtype = torch.float32 if change == "float" else torch.float64
    if change == "thawed":
        model[0].requires_grad_(True)
    model.to(dtype)
    with dp.join():
        for step in range(1 + r.rank):
            if change == "thawed inside":
                model[0].requires_grad_(True)
            dp.zero_grad()
            x, y = r.batch(step, r.rank)
            r.squares(dp, x.to(dtype), y.to(dtype), r.rank, step).backward()
            if step == 0:
                gradients = [p.grad.clone() for p in model.parameters()]
    return all(same_everywhere(one) and one.dtype == dtype for one in gradients)


def changed_inside_join() -> str:
    dp = ddip.DataParallel(r.mlp())
    x, y = r.batch(0, r.rank)

    def body() -> None:
        with dp.join():
            dp.float()
            r.squares(dp, x.float(), y.float(), r.rank, 0).backward()

    return outcome(body)


def join_that_failed_for_who_had_no_data() -> tuple[str, float]:
    """Ranks 0 and 1 are at different places; rank 2 has ended. Afterwards nobody is in join any more."""
    dp = ddip.DataParallel(r.mlp())

    def body() -> None:
        with dp.join():
            if r.rank == 0:
                dp(r.batch(0, 0)[0]), dp(r.batch(0, 0)[0])
            if r.rank == 1:
                dp(r.batch(0, 1)[0]).sum().backward()

    said = outcome(body)
    dp.zero_grad()
    dp(torch.ones(1, 6, dtype=r.DOUBLE) * (1 + r.rank)).sum().backward()
    return said, float(dp.module[4].bias.grad.sum())


def sparse_join_where_all_is_expected() -> float:
    """Rank 0 has no data from the beginning, and so no gradient that says it is sparse."""
    single, dp = r.pair(r.sparse_model, find_unused=False)
    one = torch.optim.SGD(single.parameters(), 0.1)
    ours = torch.optim.SGD(dp.parameters(), 0.1)
    for step in range(3):
        one.zero_grad()
        busy = [of for of in range(r.world) if step < 3 * of]
        (sum(r.always_sparse(single, *r.batch(step, of), of, step) for of in busy) / len(busy)).backward()
        one.step()
    with dp.join():
        for step in range(min(3, 3 * r.rank)):
            ours.zero_grad()
            r.always_sparse(dp, *r.batch(step, r.rank), r.rank, step).backward()
            ours.step()
    return r.apart(single, dp)


def sparse_that_is_missing() -> str:
    dp = ddip.DataParallel(r.sparse_model(), find_unused=False)
    return outcome(lambda: r.sparse_loss(dp, *r.batch(1, r.rank), r.rank, 1).backward())


def joined_with_an_optimizer_in_a_part_of_the_group() -> float | None:
    """Rank 0 of the group has no part in it: numbers of ranks mean other ranks here than in ddip.comm()."""
    ranks = all_but_the_first()
    if ranks is None:
        return None
    dp = ddip.DataParallel(r.mlp(), ranks=ranks)
    optimizer = r.sgd(dp)
    with dp.join(optimizer):
        for step in range(r.rank):
            optimizer.zero_grad()
            r.squares(dp, *r.batch(step, r.rank), r.rank, step).backward()
            optimizer.step()
    momenta = [state["momentum_buffer"] for state in optimizer.state.values()]
    every = ranks.all_gather(torch.cat([one.reshape(-1) for one in momenta]))
    return (every - every[0]).abs().max().item()


# --- what nobody used


def unused_keeps_its_gradient(compress: str) -> float:
    """Half of the model is expected, and not used: its gradient of before has travelled for nothing."""
    model = nn.ModuleDict({"a": nn.Linear(16, 16), "b": nn.Linear(16, 16)})
    dp = ddip.DataParallel(model, compress=compress)
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(r.rank))
    for _ in range(3):
        dp.zero_grad()
        ((model["a"](x) ** 2).sum() + (model["b"](x) ** 2).sum()).backward()
    before = model["b"].weight.grad.clone()
    (model["a"](x) ** 2).sum().backward()
    assert not torch.equal(model["a"].weight.grad, before)
    return (model["b"].weight.grad - before).abs().max().item()


def bystander_that_was_expected() -> list[float]:
    """A gradient of this rank's own, which the backward has nothing to do with."""
    model = TwoParts()
    dp = ddip.DataParallel(model)
    for _ in range(2):
        dp.zero_grad()
        dp(True).backward()
    model.sometimes.grad = torch.full((2, 5), float(r.rank))
    dp(False).backward()
    return [model.sometimes.grad.min().item(), model.sometimes.grad.max().item()]


# --- compression


def of_low_rank(rows: int, columns: int) -> float:
    """PowerSGD of matrices of rank 1 is exact. Returns the largest error relative to the matrix, over some seeds."""
    worst = 0.0
    for seed in range(12):
        dp = ddip.DataParallel(nn.Linear(columns, rows, bias=False), compress="powersgd")
        generator = torch.Generator().manual_seed(seed)
        wanted = torch.randn(rows, 1, generator=generator) @ torch.randn(1, columns, generator=generator)
        (dp.module.weight * wanted).sum().backward()
        worst = max(worst, ((dp.module.weight.grad - wanted).norm() / wanted.norm()).item())
    return worst


class Rows(nn.Module):
    """Parameters of one shape, so that only which one it is tells them apart; their gradients are what the caller says."""

    SHAPE = (24, 20)

    def __init__(self, count: int) -> None:
        super().__init__()
        self.rows = nn.ParameterList(nn.Parameter(torch.zeros(self.SHAPE)) for _ in range(count))

    def forward(self, gradients: list[torch.Tensor]) -> Any:
        return sum((row * gradient).sum() for row, gradient in zip(self.rows, gradients, strict=True))


def noise(seed: int) -> torch.Tensor:
    return torch.randn(Rows.SHAPE, generator=torch.Generator().manual_seed(seed))


def rests_of_parameters_that_moved(compress: str) -> list[list[float]]:
    """One parameter comes before two that are there, then the first of these goes. Nobody asks for anything any more, so
    what arrives is what was left over. Returns for each of them, in both steps: how much, and how far from what was owed."""
    model = Rows(2)
    dp = ddip.DataParallel(model, compress=compress)
    first, second = model.rows
    owed = {row: torch.zeros(Rows.SHAPE) for row in (first, second)}
    for step in range(3):
        dp.zero_grad()
        given = [[noise(100 * step + 10 * row + of) for row in range(2)] for of in range(r.world)]
        dp(given[r.rank]).backward()
        for index, row in enumerate((first, second)):
            owed[row] += sum(every[index] for every in given) / r.world - row.grad
    found = []
    new = nn.Parameter(torch.zeros(Rows.SHAPE))
    for rows in ([new, first, second], [new, second]):
        model.rows = nn.ParameterList(rows)
        dp.zero_grad()
        dp([torch.zeros(Rows.SHAPE) for _ in rows]).backward()
        for index, row in enumerate(rows):
            rest = r.rest_of(dp._dp.compressor, index, Rows.SHAPE)
            ddip.comm().all_reduce(rest, "mean")
            owed[row] = owed.get(row, torch.zeros(Rows.SHAPE)) - row.grad
            found.append([row.grad.abs().max().item(), (rest - owed[row]).abs().max().item()])
    return found


def rests_of_uneven_inputs(compress: str) -> float:
    """Rank 0 has more data than the others, who take part with nothing but what they have left over. What is missing of what
    was asked for, after what arrived and what is left."""
    dp = ddip.DataParallel(Rows(1), compress=compress)
    batches = [5 if of == 0 else 2 for of in range(r.world)]
    asked, arrived = torch.zeros(Rows.SHAPE), torch.zeros(Rows.SHAPE)
    with dp.join():
        for step in range(batches[r.rank]):
            dp.zero_grad()
            dp([noise(100 * step + r.rank)]).backward()
            arrived += dp.module.rows[0].grad
    for step in range(max(batches)):
        busy = [of for of in range(r.world) if step < batches[of]]
        asked += sum(noise(100 * step + of) for of in busy) / len(busy)
    rest = r.rest_of(dp._dp.compressor, 0, Rows.SHAPE)
    ddip.comm().all_reduce(rest, "mean")
    ddip.comm().broadcast(arrived)  # of who was there to the end
    return (arrived + rest - asked).abs().max().item()


class Backwards(Rows):
    """Its gradients come in the order of its parameters, so that buckets are cut anew behind the first step; and depend on
    what was learned."""

    def forward(self, gradients: list[torch.Tensor]) -> Any:
        pairs = list(zip(self.rows, gradients, strict=True))
        return sum((row * gradient + row**2).sum() for row, gradient in reversed(pairs))


def resumed(compress: str) -> list[bool]:
    """Whether a run that was saved and goes on ends with the same bits as one that was not: with all that was saved, and
    without what compression had left over."""

    def begun() -> tuple[Any, torch.optim.Optimizer]:
        dp = ddip.DataParallel(Backwards(6), compress=compress, bucket_mb=0.004)
        return dp, torch.optim.SGD(dp.parameters(), 0.1, momentum=0.9)

    def train(dp: Any, optimizer: torch.optim.Optimizer, steps: Sequence[int]) -> None:
        for step in steps:
            dp.zero_grad()
            dp([noise(100 * step + 10 * row + r.rank) for row in range(6)]).backward()
            optimizer.step()

    whole, optimizer = begun()
    train(whole, optimizer, range(3))
    file = io.BytesIO()
    torch.save([whole.state_dict(), optimizer.state_dict(), whole.compression_state_dict()], file)
    train(whole, optimizer, range(3, 6))
    same = []
    for with_all in (True, False):
        file.seek(0)
        of_model, of_optimizer, kept = torch.load(file)
        dp, optimizer = begun()
        dp.load_state_dict(of_model)
        optimizer.load_state_dict(of_optimizer)
        dp.load_compression_state_dict(kept if with_all else {})
        train(dp, optimizer, range(3, 6))
        same.append(all(torch.equal(a, b) for a, b in zip(dp.parameters(), whole.parameters(), strict=True)))
    return same


def refused_rests() -> list[str]:
    dp = ddip.DataParallel(Rows(1), compress="int8")
    whole = ddip.DataParallel(Rows(1))
    return [
        outcome(lambda: dp.load_compression_state_dict({"rest.rows.7": torch.zeros(480)})),
        outcome(lambda: dp.load_compression_state_dict({"rest.rows.0": torch.zeros(3)})),
        outcome(lambda: dp.load_compression_state_dict({"order": torch.tensor([5, 1])})),
        outcome(lambda: whole.load_compression_state_dict({"rest.rows.0": torch.zeros(480)})),
        outcome(lambda: whole.load_compression_state_dict(whole.compression_state_dict())),
    ]


def one_ranks_wrong_rests() -> str:
    dp = ddip.DataParallel(Rows(1), compress="int8")
    wrong = {"rest.rows.7": torch.zeros(480)} if ddip.rank() == 0 else {}
    return outcome(lambda: dp.load_compression_state_dict(wrong))


class Some(Backwards):
    """Uses the rows that have a gradient."""

    def forward(self, gradients: list[torch.Tensor]) -> Any:
        pairs = [(row, g) for row, g in zip(self.rows, gradients, strict=True) if g.numel()]
        return sum((row * g + row**2).sum() for row, g in reversed(pairs))


def resumed_with_fewer(compress: str) -> bool:
    """The first step after the load uses fewer parameters than the first of all: the buckets must stay as they were."""

    def begun() -> tuple[Any, torch.optim.Optimizer]:
        dp = ddip.DataParallel(Some(6), compress=compress, bucket_mb=0.004)
        return dp, torch.optim.SGD(dp.parameters(), 0.1)

    def train(dp: Any, optimizer: torch.optim.Optimizer, steps: Sequence[int]) -> None:
        for step in steps:
            dp.zero_grad()
            used = range(3, 6) if step == 3 else range(6)
            empty = torch.zeros(0)
            dp([noise(100 * step + 10 * row + ddip.rank()) if row in used else empty for row in range(6)]).backward()
            optimizer.step()

    whole, optimizer = begun()
    train(whole, optimizer, range(3))
    saved = {name: tensor.clone() for name, tensor in whole.state_dict().items()}
    kept = {name: tensor.clone() for name, tensor in whole.compression_state_dict().items()}
    train(whole, optimizer, range(3, 7))
    dp, optimizer = begun()
    dp.load_state_dict(saved)
    dp.load_compression_state_dict(kept)
    train(dp, optimizer, range(3, 7))
    return all(torch.equal(a, b) for a, b in zip(dp.parameters(), whole.parameters(), strict=True))


def denormal(compress: str) -> tuple[int, float]:
    """Gradients near the smallest numbers that there are, then usual ones: steps dropped, and what arrives of the last."""
    dp = ddip.DataParallel(nn.Linear(4, 3, bias=False), compress=compress)
    for size in (1e-45, 1e-44, 1e-43, 1e-42):
        dp.zero_grad()
        tiny = torch.zeros(3, 4)
        tiny[0, 0] = size
        (dp.module.weight * tiny).sum().backward()
    dp.zero_grad()
    dp.module.weight.sum().backward()
    gradient = dp.module.weight.grad
    return dp.stats()["nonfinite"], 0.0 if gradient is None else gradient.min().item()


# --- buffers


class Scaled(nn.Module):
    """Its buffers are constants that the graph holds; one of them cannot be written to."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("scale", torch.full((3,), 2.0))
        self.register_buffer("sign", torch.ones(1).expand(3))
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> Any:
        self.count += 1.0 + r.rank  # differs between the ranks, and becomes rank 0's
        return (x * self.weight * self.scale * self.sign).sum()


def constants_in_the_graph() -> tuple[str, list[float], float]:
    dp = ddip.DataParallel(Scaled())
    said = outcome(lambda: (dp(torch.ones(3)) + dp(torch.ones(3))).backward())
    dp(torch.ones(3))
    return said, dp.module.weight.grad.tolist(), dp.module.count.item()


# --- wrappers and helpers


def wrapped_again_in_vain() -> list[str]:
    model = r.mlp()
    dp = ddip.DataParallel(model)
    return [
        outcome(lambda: ddip.DataParallel(model, compress="zip")),
        outcome(lambda: r.squares(dp, *r.batch(0, r.rank), r.rank, 0).backward()),
    ]


def frozen_on_some(ranks: list[int]) -> list[str]:
    model = r.mlp()
    model[2].bias.requires_grad_(r.rank not in ranks)
    said = outcome(lambda: ddip.DataParallel(model))
    model[2].bias.requires_grad_(False)
    return [said, outcome(lambda: ddip.DataParallel(model))]


def of_no_shape() -> str:
    return outcome(lambda: ddip.DataParallel(nn.Sequential(nn.Linear(2, 2), nn.LazyLinear(3))))


class Named(nn.Module):
    """Has a part named as the one of a wrapper is; with `inner`, a part of that too. Without `head` it has nothing else."""

    def __init__(self, inner: bool = False, head: bool = True) -> None:
        super().__init__()
        self.module = Named(head=head) if inner else nn.Linear(3, 2)
        if head:
            self.head = nn.Linear(2, 1)


def loaded_by_name(inner: bool, head: bool, around: bool, of_ddp: bool) -> bool:
    """Whether a model with a part named "module" gets its own values back: by itself or inside another, from its own keys or
    from those of torch's DDP."""
    model = Named(inner, head)
    dp = ddip.DataParallel(model)
    wanted = [parameter.detach().clone() for parameter in model.parameters()]
    outer = nn.ModuleDict({"net": dp, "other": nn.Linear(2, 2)}) if around else dp
    saved = {key: value.clone() for key, value in outer.state_dict().items()}
    if of_ddp:
        saved = {
            key.replace("net.", "net.module.", 1) if around else f"module.{key}": value for key, value in saved.items()
        }
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    outer.load_state_dict(saved)
    return all(torch.equal(a, b) for a, b in zip(model.parameters(), wanted, strict=True))


def registered_through_the_wrapper() -> list[Any]:
    model = nn.Linear(2, 2)
    dp = ddip.DataParallel(model)
    dp.register_buffer("mean", torch.ones(1))
    dp.register_parameter("scale", nn.Parameter(torch.ones(1)))
    dp.add_module("head", nn.Linear(1, 1))
    dp.register_module("tail", nn.Identity())
    (dp(torch.ones(1, 2)).sum() * dp.scale * (1 + r.rank)).sum().backward()
    return [sorted(dp.state_dict()), dp.head is model.head, dp.tail is model.tail, same_everywhere(model.scale.grad)]


def unpicklable(root: int) -> list[str]:
    value = (lambda: 1) if r.rank == root else 1
    return [
        outcome(lambda: ddip.gather_objects(value)),
        outcome(lambda: ddip.broadcast_object(value, root)),
        outcome(lambda: ddip.gather_objects(1)),
    ]


def metrics() -> list[str]:
    return [
        outcome(lambda: ddip.gather_metrics({"loss": 1.0, "right" if r.rank else "correct": 2.0})),
        outcome(lambda: ddip.gather_metrics({"loss": 1.0}, "median")),
        str(ddip.gather_metrics({})),
    ]


def metrics_of_who_had_no_samples() -> dict[str, float]:
    return ddip.gather_metrics({"loss": 2.0 if r.rank else float("nan"), "weight": 3 * r.rank})


def batch_norm_in_two_places() -> list[Any]:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.BatchNorm1d(3)
            self.second = self.first
            self.deeper = nn.Sequential(self.first, nn.Identity())

    made = ddip.SyncBatchNorm.convert(Twice())
    return [type(made.second).__name__, made.second is made.first, made.deeper[0] is made.first]


def batch_norm_in_a_part_of_the_group() -> tuple[float | None, float]:
    """Rank 0 has no part in it. Beside one process on the joint batch: parameters and statistics apart. Then with all."""
    model = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3)).double()
    torch.manual_seed(1)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    whole = range(r.world)
    ranks = all_but_the_first()
    apart = None if ranks is None else normed_apart(copy.deepcopy(model), whole[1:], ranks=ranks)
    return apart, normed_apart(copy.deepcopy(model), whole)


def normed_apart(model: nn.Module, of: Sequence[int], **options: Any) -> float:
    single = copy.deepcopy(model)
    dp = ddip.DataParallel(ddip.SyncBatchNorm.convert(model), broadcast_buffers=False, **options)
    for step in range(3):
        x, y = (torch.cat(every) for every in zip(*(r.batch(step, rank) for rank in of), strict=True))
        for trained, (some, wanted) in ((single, (x, y)), (dp, r.batch(step, r.rank))):
            trained.zero_grad()
            nn.functional.mse_loss(trained(some), wanted).backward()
            with torch.no_grad():
                for parameter in trained.parameters():
                    parameter -= 0.1 * parameter.grad
    pairs = zip(single.state_dict().values(), dp.state_dict().values(), strict=True)
    return max((a - b).abs().max().item() for a, b in pairs)


def sparse_over_gloo() -> float:
    return r.train(
        r.sparse_model,
        r.always_sparse,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), 0.1),
        ranks=ddip.comm("gloo"),
    )


# --- communicators


def let_go_while_something_is_under_way() -> Any:
    """The operation ends when the other ranks come, and its end calls Python: letting go must not hold Python's lock."""
    ranks = survivors.communicator(r.rank, r.world)
    tensor, told = torch.ones(4), []
    if r.rank == 0:
        future = ranks.start_all_reduce(tensor).get_future().then(lambda done: told.append(1))
        # The others come when a thread of Python's has said so, while the communicator is being let go.
        herald = threading.Timer(0.2, ddip.comm().barrier)
        herald.start()
        del ranks
        herald.join()
        future.wait()
    else:
        ddip.comm().barrier()
        ranks.all_reduce(tensor)
        told.append(1)
    return tensor.tolist(), told


def futures_of_works_that_are_over() -> int:
    """How many are not done when wait() has returned."""
    ranks, tensor, early = ddip.comm(), torch.ones(4), 0
    for _ in range(20000):
        work = ranks.start_all_reduce(tensor, "max")
        work.wait()
        early += not work.get_future().done()
    return early


def lost_while_others_come() -> tuple[str, float]:
    """Rank 1 has said that it is there, and dies before the last one comes."""
    pids = ddip.gather_objects(os.getpid())
    store = communicators.store()
    if r.rank == r.world - 1:
        store.wait(["ddip/here/1"])
        os.kill(pids[1], signal.SIGKILL)
    begun = time.monotonic()
    engine = communicators.engine()
    said = outcome(lambda: engine.C10dBackend(store, r.rank, r.world, datetime.timedelta(seconds=60)))
    return said, time.monotonic() - begun


def messages_after_another_timeout() -> list[str]:
    """Nobody sends what is waited for: once before the first message, once after it."""
    engine = communicators.engine()
    after, before = (r.rank + 1) % r.world, (r.rank - 1) % r.world
    backends = [
        engine.C10dBackend(communicators.store(), r.rank, r.world, datetime.timedelta(seconds=60)) for _ in range(2)
    ]
    sent = backends[1].send([torch.ones(1)], after, 0)
    backends[1].recv([torch.empty(1)], before, 0).wait()
    sent.wait()
    said = []
    for backend in backends:
        backend.set_timeout(datetime.timedelta(seconds=0.2))
        said.append(outcome(backend.recv([torch.empty(1)], before, 0).wait))
    ddip.comm().barrier()  # a rank that has left is another error
    return said
