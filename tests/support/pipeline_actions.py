"""What a run did, action by action: order, messages, backwards in two parts; these run inside workers."""

from __future__ import annotations

import struct
from typing import Any

import pipelines as p
import torch

import ddip


class Logged(torch.nn.Module):
    """Writes down by itself which micro-batch goes forward and backward: its number travels in the samples."""

    def __init__(self, inner: torch.nn.Module, log: list[tuple[str, int]], first: bool, last: bool) -> None:
        super().__init__()
        self.inner, self.log, self.first, self.last = inner, log, first, last

    def forward(self, given: Any) -> Any:
        x, tag = (given, given[:, 0].long()) if self.first else given
        k = int(tag[0])
        self.log.append(("forward", k))
        out = self.inner(x)
        out.register_hook(lambda _: self.log.append(("backward", k)))
        return out if self.last else (out, tag)


def trace_and_plan(schedule: str, **options: Any) -> tuple[list[Any], list[Any]]:
    """What modules and optimizer of this rank's stage saw, and what the plan says."""
    log: list[tuple[str, int]] = []
    parts: list[torch.nn.Module] = [Logged(part, log, index == 0, index == 1) for index, part in enumerate(p.mlp(2))]
    batches = p.data(4, 12)
    for number, (x, _) in enumerate(batches):
        x[:, 0] = torch.arange(12) // 3 + 4 * number
    pipe = p.pipe_of(parts, schedule, **options)
    for stepping in pipe.steppings.values():
        stepping.optimizer.register_step_post_hook(lambda *_: log.append(("step", 0)))
    pipe.run(batches)
    planned = [
        (action.kind, 0 if action.kind == "step" else action.micro_batch)
        for action in pipe.plan.ranks[ddip.rank()]
        if action.kind in ("forward", "backward", "step")
    ]
    return log, planned


class WeighsInPython(torch.autograd.Function):
    """A product whose backward is Python and gives both gradients at once."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(x, weight)
        return x * weight

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        x, weight = context.saved_tensors
        WeighsInPython.calls += 1
        return gradient * weight, (gradient * x).sum(0)

    calls = 0


class Weighing(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.linspace(0.5, 1.5, 8, dtype=torch.float64))
        self.last = torch.nn.Linear(8, 3).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(WeighsInPython.apply(x, self.weight))  # type: ignore[no-any-return]


class Products(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts the matrix products of each action, by what autograd and not the plan does."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default):
            self.count += 1
        return function(*args, **(kwargs or {}))


def split_backward(schedule: str, layers: int = 3) -> tuple[float, int, list[str], list[str]]:
    """How far from one process; matrix products of one run on this rank; at which action each weight of the last stage got a
    gradient; notes."""
    torch.manual_seed(0)

    def make() -> list[torch.nn.Module]:
        torch.manual_seed(0)
        deep = [layer for _ in range(layers) for layer in (torch.nn.Linear(8, 8), torch.nn.Tanh())]
        return [torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh()).double(),
                torch.nn.Sequential(*deep, torch.nn.Linear(8, 3)).double()]  # fmt: skip

    batches, parts, seen = p.data(2, 12), make(), []
    pipe = p.pipe_of(parts, schedule, micro_batches=3)
    if ddip.rank() == 1:
        for parameter in parts[1].parameters():
            parameter.register_post_accumulate_grad_hook(lambda _: seen.append("gradient"))
        parts[1].register_full_backward_hook(lambda *_: seen.append("backward"))
    with Products() as products:
        pipe.run(batches)
    return p.furthest(p.in_one_process(make(), batches), pipe.state_dict()), products.count, seen, pipe.notes


def backward_that_cannot_be_split() -> tuple[float, int, list[str]]:
    def make() -> list[torch.nn.Module]:
        torch.manual_seed(0)
        return [p.mlp(2)[0], Weighing()]

    batches = p.data(3, 12)
    WeighsInPython.calls = 0
    pipe = p.pipe_of(make(), "zb1")
    pipe.run(batches)
    calls = WeighsInPython.calls
    return p.furthest(p.in_one_process(make(), batches), pipe.state_dict()), calls, pipe.notes


def window_of_a_link(slowness: float, **options: Any) -> tuple[list[int], Any, list[float]]:
    """Of a link on which a message takes `slowness` times a micro-batch of the slowest stage."""
    from ddip.pipeline import cutting

    real = cutting.cut

    def with_link(*given: Any) -> Any:
        found = real(*given)
        slowest = max(sum(cost) for cost in found.costs)
        found.link = found.bytes_of[0, 1] / (slowness * slowest) if slowness else 0.0
        return found

    from ddip.pipeline import front

    front.cut = with_link  # type: ignore[assignment]
    try:
        pipe = p.pipe_of(p.mlp(2), "async_1f1b", staleness="stash", example=p.data(1, 3)[0][0], **options)
    finally:
        front.cut = real
    assert pipe.cut
    return list(pipe.plan.window), pipe.cut.costs, pipe.cut.links(pipe.edges)


def messages_of(schedule: str, stages: int, placement: list[int], **options: Any) -> tuple[list[Any], list[Any]]:
    """Messages that the communicator was given, in order, by channel: (sends, peer, [micro-batches]); and those of the plan. What a
    frame holds is read from its bytes."""
    ranks, seen, waiting = ddip.comm(), {}, {}

    def micro_batch(frame: torch.Tensor) -> int:
        magic, kind, number = struct.unpack_from("<IIq", frame.numpy().tobytes()[:16])
        assert magic and kind is not None
        return int(number)

    def watch(sends: bool, peer: int, tag: int, tensor: torch.Tensor) -> None:
        if tensor.numel() < 4096:
            return  # how large frames are, and alarms
        if sends:
            seen.setdefault((True, peer, tag), []).append(micro_batch(tensor))
        else:
            waiting.setdefault((False, peer, tag), 0)
            waiting[False, peer, tag] += 1

    pipe = p.pipe_of(p.mlp(stages), schedule, placement=placement, **options)
    ranks.watch_messages(watch)
    try:
        pipe.run(p.data(3, 12))
    finally:
        ranks.watch_messages(None)
    planned: dict[Any, list[int]] = {}
    receives: dict[Any, int] = {}
    for action in pipe.plan.ranks[ddip.rank()]:
        if action.kind == "send":
            planned.setdefault((action.edge, action.direction), []).append(action.micro_batch)
        if action.kind == "receive":
            receives[action.edge, action.direction] = receives.get((action.edge, action.direction), 0) + 1
    return [sorted(seen.values()), sorted(waiting.values())], [sorted(planned.values()), sorted(receives.values())]
