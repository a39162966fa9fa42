"""Models and data that a pipeline and one process train alike; both run inside workers."""

from __future__ import annotations

import copy
import os
import signal
import struct
from collections.abc import Callable
from typing import Any

import torch

import ddip


def mlp(stages: int, dtype: torch.dtype = torch.float64) -> list[torch.nn.Module]:
    torch.manual_seed(0)
    parts = [torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh())]
    parts += [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(stages - 2)]
    parts += [torch.nn.Linear(8, 3)]
    return [part.to(dtype) for part in parts[:stages]] if stages > 1 else [torch.nn.Linear(6, 3).to(dtype)]


def data(
    batches: int, size: int, last: int | None = None, dtype: torch.dtype = torch.float64
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(7)
    sizes = [size] * (batches - 1) + [last or size]
    return [
        (torch.randn(n, 6, generator=generator, dtype=dtype), torch.randn(n, 3, generator=generator, dtype=dtype))
        for n in sizes
    ]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.05, momentum=0.9)


def in_one_process(
    parts: list[torch.nn.Module],
    batches: list[Any],
    make: Callable[..., Any] = sgd,
    accumulate: int = 1,
    clip: float | None = None,
) -> dict[str, torch.Tensor]:
    """Plain PyTorch: one step for each `accumulate` batches, the mean over all their samples."""
    model = torch.nn.Sequential(*parts)
    optimizer = make(list(model.parameters()))
    for begin in range(0, len(batches), accumulate):
        group = batches[begin : begin + accumulate]
        x, y = torch.cat([x for x, _ in group]), torch.cat([y for _, y in group])
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def furthest(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert sorted(a) == sorted(b), (sorted(a), sorted(b))
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def synchronous(schedule: str, stages: int, micro_batches: int, last: int | None = None, **options: Any) -> float:
    """How far a pipeline ends from one process; and, so that it says something, how far the training went."""
    batches = data(5, 12, last)
    pipe = ddip.Pipeline(
        mlp(stages),
        loss=torch.nn.functional.mse_loss,
        optimizer=sgd,
        schedule=schedule,
        micro_batches=micro_batches,
        **options,
    )
    report = pipe.run(batches)
    expected = in_one_process(mlp(stages), batches, accumulate=options.get("accumulate", 1))
    assert len(report.losses) == 5 and report.losses[-1] > 0
    assert furthest(expected, {k: v for k, v in torch.nn.Sequential(*mlp(stages)).state_dict().items()}) > 1e-3
    return furthest(expected, pipe.state_dict())


RULES: dict[str, Callable[..., Any]] = {
    "sgd": sgd,
    "sgd with decay": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, 0.01),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, 0.01),
}


def replayed(
    path: str,
    schedule: str,
    staleness: str,
    rule: str = "sgd",
    stages: int = 2,
    runs: int = 1,
    size: int = 12,
    **options: Any,
) -> str:
    """Trains a pipeline that writes a ledger, and computes it again in one process: "identical", or what differs."""
    from ddip.pipeline.replay import replay

    batches = data(6, size, 7, torch.float32)
    torch.set_num_threads(1)
    pipe = ddip.Pipeline(
        mlp(stages, torch.float32), loss=torch.nn.functional.mse_loss, optimizer=RULES[rule], schedule=schedule,
        staleness=staleness, ledger=path, seed=5, **{"micro_batches": 4, **options},
    )  # fmt: skip
    for _ in range(runs):
        pipe.run(batches)
    weights = pipe.state_dict()
    if ddip.rank() != 0:
        return "identical"
    found = replay(path, mlp(stages, torch.float32), torch.nn.functional.mse_loss, batches * runs)
    if found.difference is not None:
        return found.difference
    for name, tensor in weights.items():
        stage, _, inner = name.partition(".")
        if not torch.equal(found.weights[int(stage)][inner], tensor):
            return f"{name} is not what the ledger says"
    return "identical"


def gaps_and_replays(path: str, staleness: str, **options: Any) -> tuple[list[Any], list[tuple[float, float]], str]:
    """What a run's report says of each stage, what its ledger's replay says, and the report."""
    from ddip.pipeline.replay import replay

    torch.set_num_threads(1)
    batches = data(6, 12, 7, torch.float32)
    pipe = pipe_of(
        mlp(2, torch.float32),
        "async_1f1b",
        staleness=staleness,
        ledger=path,
        gaps=True,
        **{"micro_batches": 4, "window": [3, 0], **options},
    )
    report = pipe.run(batches)
    found = replay(path, mlp(2, torch.float32), torch.nn.functional.mse_loss, batches, gaps=True)
    assert found.difference is None, found.difference
    means = []
    for index in range(2):
        mine = [gap for gap in found.gaps if gap.stage == index]
        ratios = [gap.ratio for gap in mine if gap.ratio is not None]
        means.append((sum(gap.moved for gap in mine) / len(mine), sum(ratios) / len(ratios) if ratios else 0.0))
    again = pipe.run(batches[:1]).stages  # a run of its own
    assert again[0].gap != report.stages[0].gap and pipe.evaluate(batches).stages[0].gap is None
    return [(one.gap.moved, one.gap.error) for one in report.stages], means, str(report)  # type: ignore[union-attr]


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


def pipe_of(parts: list[torch.nn.Module], schedule: str = "async_1f1b", **options: Any) -> ddip.Pipeline:
    usual = {"loss": torch.nn.functional.mse_loss, "optimizer": sgd, "micro_batches": 4}
    return ddip.Pipeline(parts, schedule=schedule, **{**usual, **options})


def failing(schedule: str) -> tuple[ddip.Pipeline, str]:
    """The last stage fails in the middle of a run. The pipeline, and what this rank was told."""
    pipe = pipe_of([mlp(2)[0], FailsAt(11)], schedule)
    try:
        pipe.run(data(5, 12))
    except Exception as error:  # noqa: BLE001
        return pipe, f"{type(error).__name__}: {error}"
    return pipe, "nothing"


def resident_kib() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4


def many(batches: int, parts: list[torch.nn.Module] | None = None) -> tuple[float, int]:
    """(growth of the resident memory in KiB per micro-batch, open descriptors more than before)."""
    import os

    pipe = pipe_of(parts or mlp(2), "async_1f1b", staleness="msnag+stash", micro_batches=8)
    small = data(batches // 10, 8)

    def least() -> int:
        """The allocator gives memory back now and then: what is held is the least of some runs."""
        found = []
        for _ in range(5):
            pipe.run(small)
            found.append(resident_kib())
        return min(found)

    least()  # everything that is made once is made here
    before, open_before = least(), len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        pipe.run(small)
    return (least() - before) / (batches * 8), len(os.listdir("/proc/self/fd")) - open_before


class Watched(torch.nn.Module):
    """Notes the resident memory in KiB at each of its forwards."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner, self.seen = inner, []  # type: ignore[var-annotated]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(resident_kib())
        return self.inner(x)  # type: ignore[no-any-return]


def one_long_run(batches: int, warm: int, parts: list[torch.nn.Module] | None = None) -> tuple[float, float]:
    """Growth of the resident memory in KiB per micro-batch, within a run of 8 a batch after the first `warm` of them; and what the
    report's trace takes of it, in KiB."""
    import pickle

    watched = [Watched(part) for part in parts or mlp(2)]
    pipe = pipe_of(watched, "async_1f1b", staleness="msnag+stash", micro_batches=8)  # type: ignore[arg-type]
    report = pipe.run(data(1, 8) * batches)
    (seen,) = [part.seen for part in watched if part.seen]
    return (seen[-1] - seen[warm]) / (len(seen) - warm), len(pickle.dumps(report.trace)) / 1024 / len(seen)


class Leaks(torch.nn.Module):
    """Keeps 1.5 KiB of every micro-batch."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.kept = mlp(2)[1], []  # type: ignore[var-annotated]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.kept.append(bytearray(b"x" * 1536))
        return self.inner(x)  # type: ignore[no-any-return]


class Residual(torch.nn.Module):
    """Takes and gives a tuple; works in place on what it receives; has a batch norm and dropout."""

    def __init__(self, first: bool = False) -> None:
        super().__init__()
        self.first = first
        self.linear = torch.nn.Linear(6, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.drop = torch.nn.Dropout(0.3)

    def forward(self, given: Any) -> Any:
        x, skip, times, nothing = (given, given * 0.5, 3, None) if self.first else given
        assert times == 3 and nothing is None
        x = x.relu_() if not self.first else x
        x = self.drop(self.norm(self.linear(x)))
        return (x + skip, skip.mul_(1.5) if not self.first else skip, times, nothing)


class Last(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 3)

    def forward(self, given: Any) -> Any:
        x, skip, _, _ = given
        return self.linear(x.add_(skip))


def borders(stages: int) -> list[torch.nn.Module]:
    torch.manual_seed(3)
    return [Residual(index == 0) if index < stages - 1 else Last() for index in range(stages)]


def borders_replayed(path: str, schedule: str, staleness: str, **options: Any) -> str:
    """Tuples, None, numbers, in-place operators at borders, batch norm and dropout, beside the replay."""
    from ddip.pipeline.replay import replay

    torch.set_num_threads(1)
    batches = data(5, 12, 9, torch.float32)
    stages = ddip.world_size()
    pipe = ddip.Pipeline(
        borders(stages), loss=torch.nn.functional.mse_loss, optimizer=sgd, schedule=schedule, staleness=staleness,
        ledger=path, seed=5, **{"micro_batches": 3, **options},
    )  # fmt: skip
    pipe.run(batches)
    weights = pipe.state_dict()
    if ddip.rank() != 0:
        return "identical"
    found = replay(path, borders(stages), torch.nn.functional.mse_loss, batches)
    if found.difference is not None:
        return found.difference
    for index, buffers in enumerate(found.buffers):
        for name, tensor in buffers.items():
            if not torch.equal(weights[f"{index}.{name}"], tensor):
                return f"buffer {index}.{name}: {weights[f'{index}.{name}']} and {tensor}"
    assert int(weights["0.norm.num_batches_tracked"]) == 15, "each micro-batch counts once"
    return "identical"


def resumed(path: str, schedule: str, staleness: str, rule: str) -> float:
    """How far a run that was saved, thrown away and loaded ends from one that went on."""
    batches = data(6, 12)

    def make() -> ddip.Pipeline:
        return pipe_of(mlp(2), schedule, staleness=staleness) if rule == "sgd" else ddip.Pipeline(
            mlp(2), loss=torch.nn.functional.mse_loss, optimizer=RULES[rule], schedule=schedule, staleness=staleness,
            micro_batches=4, scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.97),
        )  # fmt: skip

    whole = make()
    whole.run(batches[:3])
    whole.save(path)
    middle = whole.state_dict()
    whole.run(batches[3:])
    again = make()
    again.load(path)
    assert furthest(middle, again.state_dict()) == 0
    again.run(batches[3:])
    assert furthest(middle, whole.state_dict()) > 1e-4
    return furthest(whole.state_dict(), again.state_dict())


def failing_at_once() -> str:
    """The last stage fails in its first forward while the first one has many large messages on their way."""
    wide = torch.nn.Sequential(torch.nn.Linear(6, 8192), torch.nn.Tanh()).double()
    last = FailsAt(1)
    last.inner = torch.nn.Linear(8192, 3).double()
    pipe = pipe_of([wide, last], "gpipe", micro_batches=12)
    try:
        pipe.run(data(3, 24))
    except Exception as error:  # noqa: BLE001
        return str(error)
    return "nothing"


class AllToLast(torch.nn.Module):
    """Every layer is connected to the last one, besides the next."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(6, 6) for _ in range(layers)])
        self.last = torch.nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x
        for layer in self.layers:
            x = torch.tanh(layer(x))
            total = total + x
        return self.last(total)  # type: ignore[no-any-return]


def skipping(layers: int, cut: list[int]) -> Any:
    """`cut`: how many of the traced layers each stage has; -1: the rest."""
    from ddip.pipeline.split import split
    from ddip.pipeline.trace import trace

    torch.manual_seed(4)
    traced = trace(AllToLast(layers))
    names = [layer.name for layer in traced.layers]
    stages, begin = [], 0
    for count in cut:
        end = len(names) if count < 0 else begin + count
        stages.append(names[begin:end])
        begin = end
    return split(traced, stages)


def skips_replayed(
    path: str, schedule: str, staleness: str, cut: list[int], placement: list[int], **options: Any
) -> str:
    """Skips to the last stage, and stages that share a rank, beside the replay."""
    from ddip.pipeline.replay import replay

    torch.set_num_threads(1)
    batches = data(5, 12, 9, torch.float32)
    loss = torch.nn.functional.mse_loss
    pipe = ddip.Pipeline(
        skipping(4, cut), loss=loss, optimizer=sgd, schedule=schedule, staleness=staleness, ledger=path, seed=5,
        placement=placement, **{"micro_batches": 4, **options},
    )  # fmt: skip
    report = pipe.run(batches)
    weights = pipe.state_dict()
    evaluated = pipe.evaluate(batches)
    if ddip.rank() != 0:
        return "identical"
    torch.manual_seed(4)
    plain = AllToLast(4)
    assert sorted(weights) == sorted(plain.state_dict()), "the model's own names"
    plain.load_state_dict(weights)
    expected = [float(loss(plain(x), y)) for x, y in batches]
    assert all(abs(a - b) < 1e-5 for a, b in zip(expected, evaluated.losses, strict=True)), (expected, evaluated.losses)
    assert report.losses != evaluated.losses
    found = replay(path, skipping(4, cut).modules, loss, batches)
    return found.difference or "identical"


def skips_in_one_process(schedule: str, cut: list[int], placement: list[int], **options: Any) -> float:
    batches = data(5, 12, 9, torch.float32)
    pipe = ddip.Pipeline(
        skipping(4, cut), loss=torch.nn.functional.mse_loss, optimizer=sgd, schedule=schedule, placement=placement,
        **{"micro_batches": 4, **options},
    )  # fmt: skip
    pipe.run(batches)
    torch.manual_seed(4)
    expected = in_one_process([AllToLast(4)], batches)
    return furthest({name.removeprefix("0."): tensor for name, tensor in expected.items()}, pipe.state_dict())


def on_backend(name: str) -> float:
    """The same over another communicator."""
    batches = data(4, 12, 7)
    pipe = pipe_of(mlp(2), "1f1b", ranks=ddip.comm(name))
    pipe.run(batches)
    return furthest(in_one_process(mlp(2), batches), pipe.state_dict())


def mixed(staleness: str) -> tuple[list[str], float, float]:
    """bf16 autocast: (notes, first loss, last loss)."""
    batches = data(1, 12, dtype=torch.float32) * 60
    pipe = pipe_of(mlp(2, torch.float32), staleness=staleness, precision="bf16")
    losses = pipe.run(batches).losses
    return pipe.notes, losses[0], losses[-1]


class Head(torch.nn.Module):
    """A hidden layer of its own, then the weight that another stage owns."""

    def __init__(self, table: torch.nn.Parameter) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(8, 8)
        self.out = torch.nn.Linear(8, 6, bias=False)
        self.out.weight = table

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        SEEN.append(self.out.weight.detach().clone())
        return self.out(torch.tanh(self.hidden(x)))  # type: ignore[no-any-return]


class Table(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(6, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        SEEN.append(self.weight.detach().clone())
        return torch.tanh(x @ self.weight)


SEEN: list[torch.Tensor] = []  # the tied weight, as each forward on this rank saw it


def tied(stages: int, dtype: torch.dtype = torch.float64) -> list[torch.nn.Module]:
    torch.manual_seed(3)
    first = Table()
    between = [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(stages - 2)]
    parts = torch.nn.ModuleList([first, *between, Head(first.weight)]).to(dtype)
    assert parts[-1].out.weight is parts[0].weight
    return list(parts)


def tied_data(dtype: torch.dtype = torch.float64) -> list[Any]:
    return [(x, x.flip(0)) for x, _ in data(5, 12, 9, dtype)]


def tied_in_one_process(schedule: str, stages: int) -> float:
    batches, parts = tied_data(), tied(stages)
    placement = [stage * 2 // stages for stage in range(stages)]
    pipe = pipe_of(parts, schedule, placement=placement, accumulate=2)
    pipe.run(batches)
    assert parts[-1].out.weight is parts[0].weight and parts[-1](torch.zeros(2, 8).double()).shape == (2, 6)
    found = pipe.state_dict()
    assert torch.equal(found["0.weight"], found[f"{stages - 1}.out.weight"])
    return furthest(in_one_process(tied(stages), batches, accumulate=2), found)


def tied_replayed(
    path: str, schedule: str, staleness: str, stages: int, **options: Any
) -> tuple[str, list[torch.Tensor]]:
    """And the tied weight, as each forward saw it."""
    from ddip.pipeline.replay import replay

    torch.set_num_threads(1)
    batches, parts = tied_data(torch.float32), tied(stages, torch.float32)
    SEEN.clear()
    pipe = pipe_of(
        parts,
        schedule,
        staleness=staleness,
        ledger=path,
        placement=[stage * 2 // stages for stage in range(stages)],
        **options,
    )
    pipe.run(batches)
    seen = list(SEEN)
    weights = pipe.state_dict()
    pipe.save(path + ".saved")
    other = pipe_of(tied(stages, torch.float32), schedule, staleness=staleness, placement=pipe.placement, **options)
    other.load(path + ".saved")
    assert furthest(other.state_dict(), weights) == 0
    found = replay(path, tied(stages, torch.float32), torch.nn.functional.mse_loss, batches)
    assert found.difference or torch.equal(found.weights[0]["weight"], weights["0.weight"])
    return found.difference or "identical", seen


def tied_simulated(schedule: str, staleness: str) -> float:
    """How far the simulator's weights are from the pipeline's."""
    from ddip.pipeline.simulate import simulate

    torch.set_num_threads(1)
    batches = tied_data(torch.float32)
    pipe = pipe_of(tied(2, torch.float32), schedule, staleness=staleness)
    pipe.run(batches)
    found = simulate(
        tied(2, torch.float32), torch.nn.functional.mse_loss, batches, schedule=schedule, staleness=staleness, optimizer=sgd,
        micro_batches=4,
    )  # fmt: skip
    simulated = {
        f"{stage}.{name}": tensor for stage, weights in enumerate(found.weights) for name, tensor in weights.items()
    }
    return furthest(simulated, {name: tensor for name, tensor in pipe.state_dict().items() if name != "1.out.weight"})


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
    parts: list[torch.nn.Module] = [Logged(part, log, index == 0, index == 1) for index, part in enumerate(mlp(2))]
    batches = data(4, 12)
    for number, (x, _) in enumerate(batches):
        x[:, 0] = torch.arange(12) // 3 + 4 * number
    pipe = pipe_of(parts, schedule, **options)
    for stepping in pipe.steppings.values():
        stepping.optimizer.register_step_post_hook(lambda *_: log.append(("step", 0)))
    pipe.run(batches)
    planned = [
        (action.kind, 0 if action.kind == "step" else action.micro_batch)
        for action in pipe.plan.ranks[ddip.rank()]
        if action.kind in ("forward", "backward", "step")
    ]
    return log, planned


class Mean(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1)


def of_any_length() -> list[torch.nn.Module]:
    torch.manual_seed(2)
    first = torch.nn.Sequential(torch.nn.Linear(6, 40), torch.nn.Tanh())
    last = torch.nn.Sequential(torch.nn.Linear(40, 3), Mean())
    return [first.double(), last.double()]


def changing_shapes(schedule: str) -> float:
    """Sequences whose length changes from batch to batch: shorter and longer than the first."""
    generator = torch.Generator().manual_seed(8)
    batches = [
        (
            torch.randn(8, length, 6, generator=generator, dtype=torch.float64),
            torch.randn(8, 3, generator=generator, dtype=torch.float64),
        )
        for length in (5, 1, 60, 7, 200, 5)
    ]
    pipe = pipe_of(of_any_length(), schedule)
    expected = torch.nn.Sequential(*of_any_length())
    optimizer = sgd(list(expected.parameters()))
    pipe.run(batches)
    for x, y in batches:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(expected(x), y).backward()
        optimizer.step()
    return furthest(expected.state_dict(), pipe.state_dict())


def bytes_with_targets_of(width: int) -> list[int]:
    """Bytes that each stage sends."""
    batches = [(x, torch.nn.functional.pad(y, (0, width - 3))) for x, y in data(3, 12)]
    pipe = ddip.Pipeline(
        mlp(2),
        loss=lambda out, y: torch.nn.functional.mse_loss(out, y[:, :3]),
        optimizer=sgd,
        schedule="1f1b",
        micro_batches=4,
    )
    return [stage.bytes_sent for stage in pipe.run(batches).stages]


def stepping_rarely(path: str, schedule: str, staleness: str) -> str:
    """One step in eight batches, which a plan of few batches would take for a synchronous run."""
    from ddip.pipeline.replay import replay

    torch.set_num_threads(1)
    batches = data(40, 4, dtype=torch.float32)

    def parts() -> list[torch.nn.Module]:
        torch.manual_seed(2)
        first = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Tanh())
        return [first, torch.nn.Linear(8, 3)]

    loss = torch.nn.functional.mse_loss
    pipe = ddip.Pipeline(
        parts(), loss=loss, optimizer=sgd, schedule=schedule, staleness=staleness, micro_batches=1, accumulate=8, ledger=path
    )  # fmt: skip
    report = pipe.run(batches)
    if ddip.rank() != 0:
        return "identical"
    assert max(report.stages[0].staleness) > 0
    return replay(path, parts(), loss, batches).difference or "identical"


def kept_after_small_batches(schedule: str, **options: Any) -> list[int]:
    """Copies of weights that are there after runs whose last batch has fewer samples than micro-batches."""
    pipe = pipe_of(mlp(2), schedule, micro_batches=4, **options)
    for _ in range(3):
        pipe.run(data(4, 8, 2))
    return [versions.kept for versions in pipe.versions.values()]


def next_words() -> tuple[float, float]:
    """A language model, whose labels are its own inputs one word later: (how far from one process, how far it came)."""
    torch.manual_seed(3)
    texts = torch.randint(11, (4, 12, 7))

    def parts() -> list[torch.nn.Module]:
        torch.manual_seed(4)
        made = [torch.nn.Sequential(torch.nn.Embedding(11, 8), torch.nn.Linear(8, 8)), torch.nn.Linear(8, 11)]
        return [part.double() for part in made]

    def loss(out: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(out[:, :-1].flatten(0, 1), words[:, 1:].flatten())

    pipe = ddip.Pipeline(parts(), loss=loss, optimizer=sgd, schedule="1f1b", micro_batches=4)
    pipe.run([(text, text) for text in texts])
    model = torch.nn.Sequential(*parts())
    begun = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = sgd(model.parameters())
    for text in texts:
        optimizer.zero_grad()
        loss(model(text), text).backward()
        optimizer.step()
    ended = pipe.state_dict()
    return furthest(model.state_dict(), ended), furthest(begun, ended)


def scheduled(path: str) -> str:
    """Rates that a scheduler changes at every step."""
    return replayed(
        path,
        "async_1f1b",
        "msnag",
        window=[3, 0],
        scheduler=lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 40),
    )


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

    batches, parts, seen = data(2, 12), make(), []
    pipe = pipe_of(parts, schedule, micro_batches=3)
    if ddip.rank() == 1:
        for parameter in parts[1].parameters():
            parameter.register_post_accumulate_grad_hook(lambda _: seen.append("gradient"))
        parts[1].register_full_backward_hook(lambda *_: seen.append("backward"))
    with Products() as products:
        pipe.run(batches)
    return furthest(in_one_process(make(), batches), pipe.state_dict()), products.count, seen, pipe.notes


def backward_that_cannot_be_split() -> tuple[float, int, list[str]]:
    def make() -> list[torch.nn.Module]:
        torch.manual_seed(0)
        return [mlp(2)[0], Weighing()]

    batches = data(3, 12)
    WeighsInPython.calls = 0
    pipe = pipe_of(make(), "zb1")
    pipe.run(batches)
    calls = WeighsInPython.calls
    return furthest(in_one_process(make(), batches), pipe.state_dict()), calls, pipe.notes


def clipped(schedule: str, clipping: str, stages: int = 2, placement: list[int] | None = None) -> float:
    """How far a pipeline whose gradients are clipped ends from one process that clips the whole model's."""
    batches = data(6, 12, 7)
    options = {"clip": 0.05, "clipping": clipping, "placement": placement or [s * 2 // stages for s in range(stages)]}
    pipe = pipe_of(mlp(stages), schedule, **options)
    pipe.run(batches[:3])
    pipe.run(batches[3:])
    return furthest(in_one_process(mlp(stages), batches, clip=0.05), pipe.state_dict())


def replicated(
    schedule: str, staleness: str, world: int, replicas: int, last: int = 12, **options: Any
) -> tuple[float, bool, list[float]]:
    """Pipelines side by side, each on its part of the batches, beside one process, or the simulator, on whole ones: how far they
    are from each other, whether the replicas have the same bits, and by how much the losses differ from one process's first."""
    from ddip.pipeline.simulate import simulate
    from ddip.replicas import gather_objects

    whole, stages, synchronous = (
        data(6, 12 * replicas, last * replicas),
        world // replicas,
        schedule in ("gpipe", "1f1b"),
    )
    pipe = pipe_of(mlp(stages), schedule, staleness=staleness, replicas=replicas, **options)

    def share(tensor: torch.Tensor) -> torch.Tensor:
        """Micro-batch k of the whole is micro-batch k of each replica, one after the other."""
        return torch.cat([part.tensor_split(replicas)[pipe.replica] for part in tensor.tensor_split(4)])

    mine = [(share(x), share(y)) for x, y in whole]
    losses = pipe.run(mine[:4]).losses + pipe.run(mine[4:]).losses if synchronous else pipe.run(mine).losses
    weights = pipe.state_dict()
    here = {index: pipe.stage_state_dict(index) for index in pipe.mine}
    same = all(
        torch.equal(tensor, theirs[index][name])
        for theirs in gather_objects(here, pipe.ranks)
        for index, state in here.items()
        if index in theirs
        for name, tensor in state.items()
    )
    loss = torch.nn.functional.mse_loss
    before = float(loss(torch.nn.Sequential(*mlp(stages))(whole[0][0]), whole[0][1]))
    if synchronous:
        expected = in_one_process(mlp(stages), whole, clip=options.get("clip"))
        return furthest(expected, weights), same, [losses[0] - before]
    found = simulate(
        mlp(stages), loss, whole, schedule=schedule, staleness=staleness, optimizer=sgd, micro_batches=4,
        accumulate=options.get("accumulate", 1), recompute=options.get("recompute", False),
    )  # fmt: skip
    simulated = {f"{i}.{name}": tensor for i, one in enumerate(found.weights) for name, tensor in one.items()}
    return furthest(simulated, weights), same, [0.0]


def replicas_resumed(path: str) -> tuple[float, bool]:
    """How far replicas with batch norm, saved and loaded, end from those that went on; and whether their statistics differ."""

    def make() -> ddip.Pipeline:
        torch.manual_seed(3)
        stages = [torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8)), torch.nn.Linear(8, 3)]
        return pipe_of([stage.double() for stage in stages], "1f1b", replicas=2, micro_batches=2)

    whole = make()
    mine = data(4, 12)[whole.replica :: 2] + [(x + whole.replica, y) for x, y in data(2, 12)]
    whole.run(mine)
    whole.save(path)
    again = make()
    again.load(path)
    # Evaluation uses the running statistics, each replica its own.
    expected, found = whole.evaluate(mine).losses, again.evaluate(mine).losses
    away = max(abs(a - b) for a, b in zip(expected, found, strict=True))
    everybody = ddip.gather_objects([whole.stage_state_dict(index) for index in whole.mine if index == 0])
    means = [one[0]["1.running_mean"] for one in everybody if one]
    return away, bool((means[0] - means[1]).abs().max() > 1e-3)


def replica_that_fails() -> tuple[str, float]:
    def parts(at: int) -> list[torch.nn.Module]:
        return [mlp(2)[0], FailsAt(at if ddip.rank() // 2 == 1 else 10**9)]

    torch.manual_seed(0)
    pipe = pipe_of(parts(7), "1f1b", replicas=2)
    try:
        pipe.run(data(4, 12))
        said = ""
    except Exception as error:  # noqa: BLE001 - whatever a rank is told
        said = str(error)
    return said, pipe.run(data(2, 12)).losses[-1]


def replay_again(path: str, stages: int, runs: int) -> str | None:
    from ddip.pipeline.replay import replay

    batches = data(6, 12, 7, torch.float32)
    return replay(path, mlp(stages, torch.float32), torch.nn.functional.mse_loss, batches * runs).difference


def whole(dtype: torch.dtype = torch.float64) -> AllToLast:
    torch.manual_seed(4)
    return AllToLast(4).to(dtype)


def whole_pipe(**options: Any) -> ddip.Pipeline:
    return pipe_of(whole(), **{"schedule": "1f1b", "example": data(1, 3)[0][0], **options})  # type: ignore[arg-type]


def whole_in_one_process(schedule: str, stages: int) -> tuple[float, str, int]:
    batches = data(5, 12, 9)
    pipe = whole_pipe(schedule=schedule, stages=stages)
    pipe.run(batches)
    expected = in_one_process([whole()], batches)
    away = furthest({name.removeprefix("0."): tensor for name, tensor in expected.items()}, pipe.state_dict())
    return away, str(pipe.cut.plan) if pipe.cut else "", len(pipe.mine)


class Pair(torch.nn.Sequential):
    """Two layers that are one to whoever says so."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__(torch.nn.Linear(inside, inside), torch.nn.Tanh(), torch.nn.Linear(inside, outside))


def pairs(leaves: list[Any]) -> tuple[list[list[str]], float]:
    """Three of them, in two stages: which layers each has, and how far the training is from one process's."""
    torch.manual_seed(2)
    model = torch.nn.Sequential(Pair(6, 6), Pair(6, 6), Pair(6, 3)).double()
    batches = data(4, 12)
    pipe = pipe_of(copy.deepcopy(model), "1f1b", example=batches[0][0][:3], leaves=leaves)  # type: ignore[arg-type]
    pipe.run(batches)
    expected = in_one_process([model], batches)
    away = furthest({name.removeprefix("0."): tensor for name, tensor in expected.items()}, pipe.state_dict())
    return pipe.cut.plan.stages if pipe.cut else [], away


class TwiceUsed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.middle, self.head = (torch.nn.Linear(6, 6, bias=False) for _ in range(3))
        self.head.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.middle(torch.tanh(self.table(x)))))  # type: ignore[no-any-return]


def whole_and_tied() -> float:
    torch.manual_seed(2)
    model = TwiceUsed().double()
    batches = [(x, x.flip(0)) for x, _ in data(4, 12)]
    pipe = pipe_of(copy.deepcopy(model), "1f1b", example=batches[0][0][:3])  # type: ignore[arg-type]
    pipe.run(batches)
    expected = in_one_process([model], batches)
    return furthest({name.removeprefix("0."): tensor for name, tensor in expected.items()}, pipe.state_dict())


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
        pipe = pipe_of(mlp(2), "async_1f1b", staleness="stash", example=data(1, 3)[0][0], **options)
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

    pipe = pipe_of(mlp(stages), schedule, placement=placement, **options)
    ranks.watch_messages(watch)
    try:
        pipe.run(data(3, 12))
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
