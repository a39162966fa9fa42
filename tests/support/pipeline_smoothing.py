"""Gradients smoothed over several passes: in a pipeline, and in one process of plain PyTorch."""

from __future__ import annotations

import copy
from typing import Any

import pipelines as p
import torch
from ddip.replicas import gather_objects

import ddip


def mixed(number: int) -> int:
    """splitmix64, as docs/ledger.md says it."""
    number = (number + 0x9E3779B97F4A7C15) % 2**64
    number = ((number ^ (number >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    number = ((number ^ (number >> 27)) * 0x94D049BB133111EB) % 2**64
    return number ^ (number >> 31)


def noisy(stage: torch.nn.Module, run: int, number: int, micro_batch: int, radius: float) -> torch.nn.Module:
    """A copy of the stage. `number`: of the noise, which is that of the stage plus as many as there are stages."""
    made = copy.deepcopy(stage)
    generator = torch.Generator().manual_seed(mixed(mixed(run + number) + micro_batch) >> 1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn(parameter.shape, dtype=parameter.dtype, generator=generator), alpha=radius)
    return made


def in_one_process(
    stages: list[torch.nn.Module], batches: list[Any], micro_batches: int, passes: int, radius: float, accumulate: int, seed: int
) -> dict[str, torch.Tensor]:  # fmt: skip
    parameters = [parameter for stage in stages for parameter in stage.parameters()]
    optimizer = p.sgd(parameters)
    count = number = 0
    optimizer.zero_grad()
    for batch, (x, y) in enumerate(batches, 1):
        for part_of_x, part_of_y in zip(x.tensor_split(micro_batches), y.tensor_split(micro_batches), strict=True):
            for _ in range(passes):
                copies = [noisy(s, seed, len(stages) + i, number, radius) for i, s in enumerate(stages)]
                number += 1
                if not len(part_of_x):
                    continue
                loss = torch.nn.functional.mse_loss(torch.nn.Sequential(*copies)(part_of_x), part_of_y)
                own = [parameter for one in copies for parameter in one.parameters()]
                gradients = torch.autograd.grad(loss * len(part_of_x), own)
                count += len(part_of_x)
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        if batch % accumulate == 0 or batch == len(batches):
            for parameter in parameters:
                assert parameter.grad is not None
                parameter.grad /= count
            optimizer.step()
            optimizer.zero_grad()
            count = 0
    return dict(torch.nn.Sequential(*stages).state_dict())


def beside_one_process(
    schedule: str, stages: int, passes: int, last: int | None = None, accumulate: int = 1, **options: Any
) -> tuple[float, float]:
    """How far a pipeline ends from one process, and from one without noise."""
    batches = p.data(5, 12, last)
    smoothing = {"passes": passes, "radius": 0.1}
    pipe = p.pipe_of(p.mlp(stages), schedule, smoothing=smoothing, seed=9, accumulate=accumulate, **options)
    pipe.run(batches[:2])  # the noise goes on where the run before ended
    pipe.run(batches[2:])
    found = pipe.state_dict()
    split = options.get("micro_batches", 4)
    # A run steps at its end.
    assert accumulate in (1, 2)
    expected = in_one_process(p.mlp(stages), batches, split, passes, 0.1, accumulate, 9)
    return p.furthest(expected, found), p.furthest(
        p.in_one_process(p.mlp(stages), batches, accumulate=accumulate), found
    )


def nearly_nothing(schedule: str, passes: int) -> tuple[float, float]:
    """How far many passes on weights whose noise is rounded away end from one: weights, and losses."""
    ends = []
    for smoothing in (None, {"passes": passes, "radius": 1e-30}):
        pipe = p.pipe_of(p.mlp(2), schedule, smoothing=smoothing)
        losses = pipe.run(p.data(4, 12, 7)).losses
        ends.append((losses, pipe.evaluate(p.data(2, 12)).losses, pipe.state_dict()))
    (plain, plain_held_out, weights), (several, held_out, smoothed) = ends
    assert len(plain) == 4 and len(held_out) == 2
    losses = zip(plain + plain_held_out, several + held_out, strict=True)
    return p.furthest(weights, smoothed), max(abs(a - b) for a, b in losses)


class Constant(torch.nn.Module):
    """Gives its weights, whatever comes."""

    def __init__(self, values: list[float]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(values, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :1] * 0 + self.weight


def of_the_absolute_value(places: list[float], radius: float) -> list[float]:
    """The gradient of Σ|w| that a step of a smoothed pipeline has used."""
    stages = [torch.nn.Identity(), Constant(places)]
    pipe = ddip.Pipeline(
        stages, loss=lambda out, y: (out.abs().sum(), 1), optimizer=lambda ps: torch.optim.SGD(ps, 1.0), schedule="1f1b",
        micro_batches=1, smoothing={"passes": 1024, "radius": radius},
    )  # fmt: skip
    pipe.run([(torch.ones(1, 6, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))])
    after = pipe.state_dict()["1.weight"]
    return (torch.tensor(places, dtype=torch.float64) - after).tolist()  # type: ignore[no-any-return]


class InPlace(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.layer = torch.nn.Linear(6, 8).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.mul_(2))  # type: ignore[no-any-return]


class OutOfPlace(InPlace):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x * 2)  # type: ignore[no-any-return]


def changed_in_place() -> float:
    """How far apart two pipelines end of which one changes its samples and its targets in place."""
    ends = []
    mse = torch.nn.functional.mse_loss
    for first, loss in (
        (InPlace(), lambda out, y: mse(out, y.sub_(1))),
        (OutOfPlace(), lambda out, y: mse(out, y - 1)),
    ):
        pipe = p.pipe_of([first, p.mlp(2)[1]], "gpipe", smoothing={"passes": 3, "radius": 0.1}, loss=loss)
        pipe.run(p.data(3, 12))
        ends.append(pipe.state_dict())
    return p.furthest(*ends)


def phases(folder: str) -> list[bool]:
    """After so many batches in several passes, whether the next run of an asynchronous pipeline is synchronous still."""
    before = p.pipe_of(p.mlp(2), "1f1b", smoothing={"passes": 8, "radius": 0.1})
    before.run(p.data(3, 12))
    before.save(folder)
    pipe = p.pipe_of(p.mlp(2), staleness="none", warmup=5)
    pipe.load(folder)
    found = []
    for _ in range(2):
        pipe.run(p.data(2, 12))
        found.append(not any(pipe.plan.check().staleness))
    return found


def copies(schedule: str) -> list[tuple[int, int, int]]:
    """By stage: copies of weights at one time, what the plan allows beside the true ones, and with how many passes they were drawn."""
    pipe = p.pipe_of(p.mlp(2), schedule, smoothing={"passes": 3, "radius": 0.1})
    stages = pipe.run(p.data(2, 12)).stages
    actions = [action for rank in pipe.plan.ranks for action in rank]
    planned = [sum(a.kind == "predict" and a.stage == s for a in actions) for s in range(2)]
    versions = pipe.plan.check().versions
    return [(one.copies_kept, versions[one.stage] - 1, planned[one.stage]) for one in stages]


def resumed(folder: str) -> tuple[float, float]:
    """How far a run that was saved and loaded ends from one that went on; how far that went meanwhile."""

    def made() -> ddip.Pipeline:
        return p.pipe_of(p.mlp(2), "1f1b", smoothing={"passes": 3, "radius": 0.1})

    whole = made()
    whole.run(p.data(3, 12))
    whole.save(folder)
    middle = whole.state_dict()
    whole.run(p.data(2, 12))
    again = made()
    again.load(folder)
    again.run(p.data(2, 12))
    return p.furthest(whole.state_dict(), again.state_dict()), p.furthest(middle, whole.state_dict())


def simulated(passes: int) -> float:
    """How far the one-process simulator ends from a pipeline."""
    from ddip.pipeline.simulate import simulate

    smoothing = {"passes": passes, "radius": 0.1}
    pipe = p.pipe_of(p.mlp(2), "gpipe", smoothing=smoothing, seed=3)
    pipe.run(p.data(4, 12, 2))
    found = simulate(
        p.mlp(2), torch.nn.functional.mse_loss, p.data(4, 12, 2), optimizer=p.sgd, schedule="gpipe", micro_batches=4,
        smoothing=smoothing, seed=3,
    )  # fmt: skip
    theirs = {
        f"{stage}.{name}": tensor for stage, weights in enumerate(found.weights) for name, tensor in weights.items()
    }
    return p.furthest(theirs, pipe.state_dict())


def on_replicas() -> tuple[float, float]:
    """Two pipelines of one stage on the same batches: how far apart they end, and how far from one of them alone, whose noise the
    second would have too if its own were not another one."""
    pipe = p.pipe_of(p.mlp(1), "1f1b", replicas=2, smoothing={"passes": 2, "radius": 0.1})
    pipe.run(p.data(3, 12))
    mine, other = pipe.state_dict(), gather_objects(pipe.state_dict(), ddip.comm())[1 - ddip.rank()]
    expected = in_one_process(p.mlp(1), p.data(3, 12), 4, 2, 0.1, 1, 0)
    return p.furthest(mine, other), p.furthest(mine, expected)
