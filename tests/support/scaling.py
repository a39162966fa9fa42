"""Pipelines in half precision with a scaled loss, beside one process with torch.amp.GradScaler; they run inside workers."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pipelines as p
import torch
from ddip.pipeline.replay import replay
from torch.nn.functional import mse_loss

import ddip

# Begins far too large, so that steps are left out, and grows soon, so that later ones are, too.
SCALING = {"initial": 2.0**20, "interval": 4}


def stages() -> list[torch.nn.Module]:
    """Large inputs: the first stage's gradients are too large at scales at which the last one's are not."""
    torch.manual_seed(1)
    first, last = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)
    with torch.no_grad():
        first.weight.mul_(0.01)
    return [torch.nn.Sequential(first, torch.nn.Tanh()), last]


def data(batches: int, size: int = 12, last: int | None = None) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(100 * x, y) for x, y in p.data(batches, size, last, torch.float32)]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 1e-3, momentum=0.9)


class OneProcess:
    """Plain PyTorch: the sum over each micro-batch is scaled, and the step's gradient is the mean over its samples."""

    def __init__(self, parts: list[torch.nn.Module], clip: float | None = None) -> None:
        self.model, self.clip = torch.nn.Sequential(*parts), clip
        self.optimizer = sgd(self.model.parameters())
        self.scaler = torch.amp.GradScaler(
            "cpu", init_scale=SCALING["initial"], growth_interval=int(SCALING["interval"])
        )
        self.scales: list[float] = []
        self.left_out = 0
        self.first_stage_alone = 0  # steps that are left out for the first stage's sake

    def step(self, x: torch.Tensor, y: torch.Tensor, replicas: int = 1) -> None:
        """Each replica has every n-th sample."""
        self.optimizer.zero_grad()
        parts = [
            (x[r::replicas].tensor_split(4)[k], y[r::replicas].tensor_split(4)[k])
            for r in range(replicas)
            for k in range(4)
        ]
        for part, target in parts:
            with torch.autocast("cpu", torch.float16):
                loss = mse_loss(self.model(part), target) * len(part)
            self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        finite = [all(bool(w.grad.isfinite().all()) for w in part.parameters()) for part in self.model]
        for weight in self.model.parameters():
            weight.grad /= len(x)
        if self.clip:
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.scales.append(self.scaler.get_scale())
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.left_out += not all(finite)
        self.first_stage_alone += finite == [False, True]


def pipe_of(schedule: str, **options: Any) -> ddip.Pipeline:
    usual: dict[str, Any] = {
        "loss": mse_loss,
        "optimizer": sgd,
        "micro_batches": 4,
        "precision": "fp16",
        "loss_scale": SCALING,
    }
    return ddip.Pipeline(options.pop("parts", None) or stages(), schedule=schedule, **{**usual, **options})


def beside_grad_scaler(schedule: str, clip: float | None = None, **options: Any) -> dict[str, Any]:
    batches = data(40, 12, 8)
    pipe = pipe_of(schedule, clip=clip, **options)
    report = pipe.run(batches)
    one = OneProcess(stages(), clip)
    for x, y in batches:
        one.step(x, y)
    trained = {name: w.detach() for name, w in one.model.state_dict().items()}
    return {
        "far": p.furthest(trained, pipe.state_dict()),
        "moved": p.furthest(trained, torch.nn.Sequential(*stages()).state_dict()),
        "scale": (report.stages[-1].loss_scale, one.scaler.get_scale()),
        "left out": ([stage.left_out for stage in report.stages], one.left_out),
        "first stage alone": one.first_stage_alone,
        "both ways": [min(one.scales) < scale < max(one.scales) for scale in (one.scales[-1],)],
        "grew": any(b > a for a, b in zip(one.scales, one.scales[1:], strict=False)),
        "said": str(report).splitlines()[-1],
    }


def proved(path: str, schedule: str, staleness: str, **options: Any) -> dict[str, Any]:
    """A run with a ledger, computed again; what is in the ledger."""
    torch.set_num_threads(1)
    batches = data(options.pop("batches", 30), 12, 7)
    runs = options.pop("runs", [len(batches)])
    pipe = pipe_of(schedule, staleness=staleness, ledger=path, **options)
    rest = iter(batches)
    for count in runs:
        pipe.run([next(rest) for _ in range(count)])
    weights = pipe.state_dict()
    if ddip.rank() != 0:
        return {}
    found = replay(path, stages(), options.get("loss", mse_loss), batches)
    same = all(
        torch.equal(tensor, found.weights[int(name[0])][name[2:]]) for name, tensor in weights.items()
    )  # fmt: skip
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()[1:]]
    return {
        "difference": found.difference,
        "same": same,
        "scales": [line["loss_scale"] for line in lines if line["kind"] == "backward" and line["stage"] == 1],
        "left out": [
            [
                line["step"]
                for line in lines
                if line["kind"] == "step" and line["stage"] == stage and line.get("left_out")
            ]
            for stage in (0, 1)
        ],
        "moved": p.furthest(weights, dict(torch.nn.Sequential(*stages()).state_dict())),
    }


def resumed(path: str, schedule: str) -> tuple[float, list[Any]]:
    """How far a run that was saved and loaded ends from one that went on, and the scales of both."""
    batches = data(24)
    whole = pipe_of(schedule)
    whole.run(batches[:7])
    whole.save(path)
    again = pipe_of(schedule)
    again.load(path)
    ends = [pipe.run(batches[7:]).stages[-1].loss_scale for pipe in (whole, again)]
    return p.furthest(whole.state_dict(), again.state_dict()), [whole.scale_state, again.scale_state, ends]


def replicas(schedule: str) -> dict[str, Any]:
    """Two pipelines of one rank each, on halves of each batch, beside one process with all of it."""
    batches = data(40)
    pipe = pipe_of(schedule, replicas=2, placement=[0, 0])
    report = pipe.run([(x[pipe.replica :: 2], y[pipe.replica :: 2]) for x, y in batches])
    one = OneProcess(stages())
    for x, y in batches:
        one.step(x, y, replicas=2)
    return {
        "state": {name: tensor.tolist() for name, tensor in pipe.state_dict().items()},
        "far": p.furthest({k: v.detach() for k, v in one.model.state_dict().items()}, pipe.state_dict()),
        "scale": (pipe.scale_state or [None])[0],
        "expected": one.scaler.get_scale(),
        "left out": (max(stage.left_out for stage in report.stages), one.left_out),
    }


def frozen_last() -> dict[str, Any]:
    """The stage that has the loss has nothing to step, and learns all the same that its scale is too large."""
    parts = stages()
    parts[1].requires_grad_(False)
    pipe = pipe_of("async_1f1b", parts=parts, staleness="stash")
    before = {name: tensor.clone() for name, tensor in pipe.state_dict().items()}
    report = pipe.run(data(30))
    return {
        "scale": report.stages[-1].loss_scale,
        "left out": [stage.left_out for stage in report.stages],
        "moved": p.furthest(before, pipe.state_dict()),
        "finite": all(bool(tensor.isfinite().all()) for tensor in pipe.state_dict().values()),
    }


def half_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Of half precision itself: a scale of 65536 is infinite there."""
    return (output - target.half()).abs().mean()


def after_a_failure(schedule: str) -> dict[str, Any]:
    """A stage that raises in the middle; the pipeline goes on afterwards."""
    pipe = pipe_of(schedule)
    batches = data(30)
    pipe.run(batches[:6])
    broken = [*batches[6:9], (batches[9][0], batches[9][1][:, :2]), *batches[10:12]]
    try:
        pipe.run(broken)
        failed = False
    except Exception:  # noqa: BLE001 - one rank gets the error itself, the other hears of it
        failed = True
    report = pipe.run(batches[12:])
    return {"failed": failed, "loss": report.losses[-1], "scale": report.stages[-1].loss_scale}


def uneven(schedule: str, sizes: dict[int, int], which: list[int], count: int) -> dict[str, Any]:
    """Two replicas of one rank. In these of `count` batches a replica has `sizes` samples, else four."""
    pipe = pipe_of(schedule, replicas=2, placement=[0, 0], loss_scale={"initial": 1024.0, "interval": 3})
    batches = p.data(count, 4, dtype=torch.float32)
    for number in which:
        x, y = batches[number]
        batches[number] = x[: sizes[pipe.replica]], y[: sizes[pipe.replica]]
    report = pipe.run(batches)
    return {
        "state": {name: tensor.tolist() for name, tensor in pipe.state_dict().items()},
        "left out": [stage.left_out for stage in report.stages],
        "moved": p.furthest(pipe.state_dict(), torch.nn.Sequential(*stages()).state_dict()),
    }


def loaded(path: str, first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """What is under way in one pipeline, of which the other knows nothing, or more: before it runs, and afterwards."""
    saved = pipe_of(**first)
    saved.run(data(7))
    saved.save(path)
    pipe = pipe_of(**second)
    pipe.run(data(3))  # it has a scale of its own by then
    pipe.load(path)
    squares, before = pipe.heard
    report = pipe.run(data(12))
    return {
        "saved": saved.scale_state, "squares": sorted(squares), "before": before, "after": pipe.scale_state, "delay": pipe.norm_delay,
        "left out": [stage.left_out for stage in report.stages],
    }  # fmt: skip


class WithAuxiliaryLoss(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.inner(x)
        ddip.pipeline.auxiliary_loss(0.1 * hidden.float().square().mean())
        return hidden


def with_auxiliary_loss() -> list[torch.nn.Module]:
    first, last = stages()
    return [WithAuxiliaryLoss(first), last]


def tied_stages() -> list[torch.nn.Module]:
    torch.manual_seed(1)
    first, last = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)
    last.weight = first.weight
    return [torch.nn.Sequential(first, torch.nn.Tanh()), torch.nn.Sequential(torch.nn.Tanh(), last)]


def four_stages() -> list[torch.nn.Module]:
    torch.manual_seed(1)
    middle = [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(2)]
    return [torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh()), *middle, torch.nn.Linear(8, 3)]


def first_three(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return mse_loss(output[:, :3], target)


def beside_fp32(parts: Any, schedule: str, **options: Any) -> dict[str, Any]:
    """How far half precision ends from single, where nothing is too large."""
    ends = []
    for precision in ({"precision": "fp32", "loss_scale": "auto"}, {"precision": "fp16", "loss_scale": 256.0}):
        pipe = pipe_of(schedule, parts=parts(), loss=first_three, **options, **precision)
        report = pipe.run(p.data(30, 12, 8, torch.float32))
        ends.append(pipe.state_dict())
    start = ddip.Pipeline(parts(), loss=first_three, optimizer=sgd, **options).state_dict()
    return {
        "far": p.furthest(*ends),
        "moved": p.furthest(ends[0], start),
        "left out": max(stage.left_out for stage in report.stages),
    }


def told(scale: float, times: float, repeats: int) -> dict[str, Any]:
    """Losses and warnings of a loss that is of half precision itself, about a hundred times `times`."""
    batches = [
        (x.repeat(repeats, 1), (times * 100 + y).repeat(repeats, 1)) for x, y in p.data(4, 12, dtype=torch.float32)
    ]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        pipe = pipe_of("1f1b", loss=half_loss, loss_scale=scale)
        report = pipe.run(batches)
    return {
        "losses": report.losses,
        "said": [str(one.message) for one in said],
        "left out": [stage.left_out for stage in report.stages],
        "finite": all(bool(tensor.isfinite().all()) for tensor in pipe.state_dict().values()),
    }


def left_out_and_loaded(path: str) -> dict[str, Any]:
    """The last steps before the save were too large; the run that goes on limits by norms of some steps before."""
    saved = pipe_of("async_1f1b", staleness="stash", loss_scale=2.0**24, window=[4, 0])
    report = saved.run(data(1))
    saved.save(path)
    pipe = pipe_of(
        "async_1f1b",
        staleness="stash",
        window=[4, 0],
        precision="fp32",
        loss_scale="auto",
        clip=1e-3,
        clipping="global",
    )
    pipe.load(path)
    before = pipe.state_dict()
    pipe.run(data(1))  # fewer steps than norms are old
    after = pipe.state_dict()
    return {
        "left out": min(stage.left_out for stage in report.stages),
        "finite": all(bool(tensor.isfinite().all()) for tensor in after.values()),
        "moved": p.furthest(before, after),
    }
