"""Pipelines in unusual circumstances, each beside what plain PyTorch would do; run inside workers."""

from __future__ import annotations

import math
from typing import Any

import pipelines as p
import torch

import ddip


def said_by(call: Any) -> str:
    try:
        call()
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"
    return "nothing"


# --- optimizers


def fractional_counts(staleness: str) -> float:
    """A loss whose sum and count are a hundredth of another's has the same mean: how far the weights end from each other's."""

    def trained(scale: float) -> dict[str, torch.Tensor]:
        def loss(out: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, float]:
            return torch.nn.functional.mse_loss(out, y, reduction="sum") * scale, scale * len(y)

        pipe = p.pipe_of(p.mlp(2), staleness=staleness, accumulate=2, loss=loss)
        pipe.run(p.data(6, 12))
        return pipe.state_dict()

    return p.furthest(trained(1.0), trained(0.01))


def small_batches(staleness: str, schedule: str = "async_1f1b", **options: Any) -> int:
    """A batch smaller than its micro-batches, and one that is empty, among others. Steps that were done."""
    batches = [batch for size in (12, 2, 12, 0, 12) for batch in p.data(1, size)]
    pipe = p.pipe_of(p.mlp(2), schedule, staleness=staleness, **options)
    pipe.run(batches)
    return pipe.stage(0).version


def masked(staleness: str) -> bool:
    """A loss that counts nothing in every third micro-batch, as of tokens that are all padding."""
    calls = [0]

    def loss(out: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, int]:
        calls[0] += 1
        counted = 0 if calls[0] % 3 == 0 else len(y)
        return torch.nn.functional.mse_loss(out, y, reduction="sum") * (1 if counted else 0), counted

    pipe = p.pipe_of(p.mlp(2), staleness=staleness, loss=loss)
    pipe.run(p.data(6, 12))
    return all(tensor.isfinite().all() for tensor in pipe.state_dict().values())


class Penalised(torch.nn.Module):
    """A stage with a loss of its own beside the model's."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.inner(x)
        ddip.pipeline.auxiliary_loss(0.3 * out.pow(2).mean())
        return out  # type: ignore[no-any-return]


def auxiliary(stage: int, schedule: str) -> float:
    """Beside a loss that counts elements, not samples. How far the weights are from one process's, which adds both means."""
    parts = p.mlp(2)
    parts[stage] = Penalised(parts[stage])

    def loss(out: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, int]:
        return torch.nn.functional.mse_loss(out, y, reduction="sum"), y.numel()

    pipe = p.pipe_of(parts, schedule, loss=loss)
    batches = p.data(4, 12)
    pipe.run(batches)
    first, last = p.mlp(2)
    optimizer = p.sgd([*first.parameters(), *last.parameters()])
    for x, y in batches:
        optimizer.zero_grad()
        middle = first(x)
        out = last(middle)
        penalty = 0.3 * (middle, out)[stage].pow(2).mean()
        (torch.nn.functional.mse_loss(out, y) + penalty).backward()
        optimizer.step()
    found = pipe.state_dict()
    expected = {
        **{f"0.{k}": v for k, v in first.state_dict().items()},
        **{f"1.{k}": v for k, v in last.state_dict().items()},
    }
    return p.furthest({name.replace("inner.", ""): tensor for name, tensor in found.items()}, expected)


class Poisoned(torch.nn.Module):
    """Its gradient is not a number."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.inner(x)
        out.register_hook(lambda gradient: gradient * math.nan)
        return out  # type: ignore[no-any-return]


def not_a_number() -> tuple[list[bool], bool]:
    """One stage's gradient is NaN, and the norm is that of all stages. Which stages' weights are NaN; torch's, in one process, too."""
    first, last = p.mlp(2)
    pipe = p.pipe_of([Poisoned(first), last], "1f1b", clip=1.0)
    pipe.run(p.data(1, 12))
    own = [bool(torch.stack([t.isnan().any() for t in pipe.stage(k).weights.values()]).all()) for k in range(2)]
    first, last = p.mlp(2)
    poisoned = Poisoned(first)
    parameters = [*poisoned.parameters(), *last.parameters()]
    x, y = p.data(1, 12)[0]
    torch.nn.functional.mse_loss(last(poisoned(x)), y).backward()
    torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    p.sgd(parameters).step()
    return own, all(bool(tensor.isnan().any()) for tensor in parameters)


def rates_after(scheduler: str, changes: list[tuple[int, float]], steps: int) -> tuple[list[float], list[float]]:
    """Rates of the first stage after each batch, where some were set by hand; and those of a scheduler that nobody disturbed."""
    makers: dict[str, Any] = {
        "onecycle": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=100),
        "cyclic": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=10),
        "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
        "exponential": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
    }
    pipe = p.pipe_of(p.mlp(2), "1f1b", scheduler=makers[scheduler])
    alone = p.sgd([torch.nn.Parameter(torch.zeros(1))])
    undisturbed = makers[scheduler](alone)
    mine, theirs = [], []
    for step in range(steps):
        for when, rate in changes:
            if when == step:
                pipe.set_rate(rate)
        mine.append(pipe.stage(0).rates[0])
        theirs.append(float(alone.param_groups[0]["lr"]))
        pipe.run(p.data(1, 12))
        alone.step()
        undisturbed.step()
    return mine, theirs


# --- a step that is stopped


class StopsWithin(torch.optim.Adam):
    """A stop reaches its rank in the middle of every step."""

    stops = False

    def step(self, closure: Any = None) -> Any:
        import signal

        groups = self.param_groups
        kept = [group["params"] for group in groups]
        for half in (slice(None, 1), slice(1, None)):  # one parameter, then the others
            for group, parameters in zip(groups, kept, strict=True):
                group["params"] = parameters[half]
            super().step()
            if half.stop and self.stops:
                signal.raise_signal(signal.SIGINT)
        for group, parameters in zip(groups, kept, strict=True):
            group["params"] = parameters
        return None


def stopped_within_a_step() -> tuple[str, set[float], int]:
    """What was raised, how many steps each parameter has done, and how many the stage says."""
    pipe = p.pipe_of(p.mlp(2), "1f1b", optimizer=lambda parameters: StopsWithin(parameters, 0.01))
    pipe.run(p.data(2, 12))
    StopsWithin.stops = ddip.rank() == 0
    said = "nothing"
    try:
        pipe.run(p.data(2, 12))
    except KeyboardInterrupt:
        said = "stopped"
    except Exception as error:  # noqa: BLE001
        said = type(error).__name__
    StopsWithin.stops = False
    index = pipe.mine[0]
    stepping = pipe.steppings[index]
    assert stepping.optimizer
    done = {float(state["step"]) for state in stepping.optimizer.state.values()}
    pipe.run(p.data(1, 12))
    return said, done, stepping.steps


class FailsOnce(torch.optim.SGD):
    """On one rank, in its n-th step."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, 0.1, momentum=0.9)
        self.left = 3 if ddip.rank() == 1 else 10**9

    def step(self, closure: Any = None) -> Any:
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("no step today")
        return super().step(closure)


def replicas_after_a_failure() -> tuple[str, bool, list[str], list[bool]]:
    """Two replicas of which one failed in a step. What was said; whether they are equal after the next run; notes; whether their
    statistics are still their own."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 3)).double()
    pipe = p.pipe_of([model], "1f1b", optimizer=FailsOnce, replicas=2)
    batches = [(x + pipe.replica, y) for x, y in p.data(5, 12)]
    said = said_by(lambda: pipe.run(batches))
    pipe.run(batches)
    weights = ddip.gather_objects({name: tensor.detach() for name, tensor in pipe.modules[0].named_parameters()})
    means = ddip.gather_objects(pipe.modules[0][1].running_mean)
    steps = ddip.gather_objects(pipe.steppings[0].steps)
    return said, p.furthest(*weights) == 0.0 and steps[0] == steps[1], pipe.notes, [bool((means[0] != means[1]).any())]


# --- modules between runs


def another_pipeline() -> str:
    parts = p.mlp(2)
    one = p.pipe_of(parts)
    one.run(p.data(1, 12))
    p.pipe_of(parts)
    return said_by(lambda: one.run(p.data(1, 12)))


def other_parameters(freeze: bool) -> str:
    """Frozen, or thawed, since the pipeline was made."""
    parts = p.mlp(2)
    for part in parts:
        next(part.parameters()).requires_grad_(freeze)
    pipe = p.pipe_of(parts)
    for part in parts:
        next(part.parameters()).requires_grad_(not freeze)
    return said_by(lambda: pipe.run(p.data(1, 12)))


def left_in_evaluation() -> tuple[bool, bool, bool]:
    """A batch norm that its owner has put into evaluation stays so: in a run, in an evaluation, after both. Where all were in
    evaluation, they train."""
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(8)
    parts = [torch.nn.Sequential(torch.nn.Linear(6, 8), norm), torch.nn.Linear(8, 3)]
    parts = [part.double() for part in parts]
    norm.eval()
    pipe = p.pipe_of(parts, "1f1b")
    pipe.run(p.data(2, 12))
    still = bool((norm.running_mean == 0).all())
    pipe.evaluate(p.data(1, 12))
    restored = parts[0].training and not norm.training and parts[1].training
    for part in parts:
        part.eval()
    parts[0].training = True  # as of one that was made of somebody's layers
    pipe.run(p.data(2, 12))
    moved = bool((norm.running_mean != 0).any()) if ddip.rank() == 0 else True
    return still, restored, moved


# --- files


def loaded_into_another(path: str) -> tuple[str, float]:
    """A file whose last stage has another shape. What was said, and how far the weights moved."""
    p.pipe_of(p.mlp(2)).save(path)
    first, _ = p.mlp(2)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in first.parameters():
            parameter.add_(1)
    pipe = p.pipe_of([first, torch.nn.Linear(8, 4).double()])
    before = pipe.state_dict()
    said = said_by(lambda: pipe.load(path))
    return said, p.furthest(before, pipe.state_dict())


def numbers_of_numpy(path: str) -> float:
    """A scheduler and a rate that are NumPy's. How far a pipeline that was loaded ends from one that went on."""
    import numpy as np

    def make() -> ddip.Pipeline:
        return p.pipe_of(
            p.mlp(2), "1f1b",
            optimizer=lambda parameters: torch.optim.SGD(parameters, float(np.float64(0.1)), momentum=0.9),
            scheduler=lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.5 * (1 + np.cos(step / 50))),
        )  # fmt: skip

    one, other = make(), make()
    one.run(p.data(2, 12))
    one.save(path)
    other.load(path)
    for pipe in (one, other):
        pipe.run(p.data(2, 12))
    return p.furthest(one.state_dict(), other.state_dict())


# --- batches and losses


def named_targets() -> float:
    import collections

    Both = collections.namedtuple("Both", "y weight")
    batches = p.data(3, 12)
    pipe = p.pipe_of(p.mlp(2), "1f1b", loss=lambda out, target: torch.nn.functional.mse_loss(out, target.y))
    pipe.run([(x, Both(y, torch.ones(len(y)))) for x, y in batches])
    return p.furthest(p.in_one_process(p.mlp(2), batches), pipe.state_dict())


# --- weights that a stage has not


class Calls(torch.nn.Module):
    """A layer between two functions that know things of their own."""

    def __init__(self, before: Any, after: Any) -> None:
        super().__init__()
        self.layer, self.functions = torch.nn.Linear(8, 3), (before, after)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before, after = self.functions
        return after(self.layer(before(x)))  # type: ignore[no-any-return]


def hidden(kind: str, **options: Any) -> tuple[list[str], float]:
    """What two runs say, and how far the weights moved."""
    first, _ = p.mlp(2)
    weight = next(first.parameters())  # 8 x 6
    unknown = torch.ones(3, dtype=torch.float64, requires_grad=True)
    changed_before = {"another's, in place": lambda x: x.add_(weight.sum())}
    functions = {
        "another's": lambda x: x + weight.sum(),
        "nobody's": lambda x: x * unknown,
        "nobody's, not trained": lambda x: x * unknown.detach(),
        "made anew": lambda x: x * torch.ones(3, dtype=torch.float64, requires_grad=True),
        "its own": lambda x: x,
    }
    torch.manual_seed(1)
    same = functions["its own"]
    last = Calls(changed_before.get(kind, same), functions.get(kind, same)).double()
    pipe = p.pipe_of([first, last], "1f1b", **options)
    before = pipe.state_dict()
    said = [said_by(lambda: pipe.run(p.data(2, 12))) for _ in range(2)]
    return said, p.furthest(before, pipe.state_dict())
