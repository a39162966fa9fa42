"""A small executor of another kind writes ledgers as a pipeline does: flat buffers, a work buffer written behind
autograd's back, torch.optim on views, gradients added by autograd itself. Replay, which calls functions, must agree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ddip.pipeline.ledger import Ledger, Record
from ddip.pipeline.micro_batches import micro_batches_of
from ddip.pipeline.replay import replay
from ddip.pipeline.replay_stage import hash_of
from ddip.pipeline.seeds import seed_of, seeded
from ddip.pipeline.simulate import described
from ddip.pipeline.simulate_order import Action, order_of
from torch import Tensor, nn

RATE, MOMENTUM, SE, WINDOWS = 0.1, 0.9, 2, [4, 2, 0]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Flat:
    """A buffer with room for each parameter at a multiple of `step` numbers (16: 64 bytes)."""

    def __init__(self, module: nn.Module, step: int) -> None:
        self.places, begin = [], 0
        for p in module.parameters():
            self.places.append((begin, p.numel(), p.shape))
            begin += p.numel() + -p.numel() % step
        self.all = torch.zeros(begin)

    def views(self) -> list[Tensor]:
        return [self.all[begin : begin + count].view(shape) for begin, count, shape in self.places]


class FlatStage:
    def __init__(self, index: int, module: nn.Module, policy: str, recompute: bool, step: int = 16) -> None:
        self.index, self.module, self.policy, self.recompute = index, module, policy, recompute
        self.weights, self.work, self.gradient = Flat(module, step), Flat(module, step), Flat(module, step)
        true = []
        for p, w, work, g in zip(
            module.parameters(), self.weights.views(), self.work.views(), self.gradient.views(), strict=True
        ):
            w.copy_(p.detach())
            p.data = work
            true.append(nn.Parameter(w))
            true[-1].grad = g
        self.optimizer = torch.optim.SGD(true, RATE, momentum=MOMENTUM, foreach=False)
        self.flying: dict[int, Any] = {}
        self.stash: dict[int, Tensor] = {}
        self.pending: list[int] = []
        self.version = self.forwards = self.samples = 0
        self.records: list[dict[str, Any]] = []

    def load(self, flat: Tensor) -> None:
        self.work.all.numpy()[:] = flat.numpy()

    def hash(self) -> str:
        names = [name for name, _ in self.module.named_parameters()]
        return hash_of(self.module, dict(zip(names, self.weights.views(), strict=True)))

    def wanted(self, action: Action) -> tuple[Tensor, dict[str, Any]]:
        n = action.staleness
        if "msnag" not in self.policy or n == 0:
            return self.weights.all, {"kind": "true", "version": self.version, "n": n}
        said: dict[str, Any] = {"kind": "predicted", "version": self.version, "n": n, "rates": [[RATE] * n]}
        # Coefficients of velocity and of the gradients so far; w's own is 1, as there is no decay.
        speed, fresh, of_velocity, of_gradient = 1.0, 0.0, 0.0, 0.0
        if self.policy.startswith("aggmsnag"):
            said["partial"] = list(self.pending)
            if self.pending:
                fresh = len(self.pending) / (SE * self.samples)
        for ahead in range(n):
            speed = speed * MOMENTUM
            fresh = fresh * MOMENTUM if ahead > 0 else fresh
            of_velocity = of_velocity - RATE * speed
            of_gradient = of_gradient - RATE * fresh
        ahead_of = self.weights.all.clone()
        if self.version > 0:
            velocity = torch.zeros_like(ahead_of)
            for (begin, count, _), p in zip(self.weights.places, self.optimizer.param_groups[0]["params"], strict=True):
                velocity[begin : begin + count] = self.optimizer.state[p]["momentum_buffer"].flatten()
            ahead_of.add_(velocity, alpha=of_velocity)
        if of_gradient != 0:
            ahead_of.add_(self.gradient.all, alpha=of_gradient)
        return ahead_of, said

    def called(self, k: int, x: Tensor, finish: Any) -> Tensor:
        with seeded(seed_of(3, self.index, k)):
            return finish(self.module(x.clone()))

    def forward(self, action: Action, x: Tensor, finish: Any) -> Tensor:
        k = action.micro_batch
        flat, said = self.wanted(action)
        self.load(flat)
        if self.policy.endswith("stash"):
            self.stash[k] = flat.clone()
        x = x.detach().requires_grad_(self.index > 0)
        with torch.set_grad_enabled(not self.recompute):
            y = self.called(k, x, finish)
        self.flying[k] = (x, y, finish)
        self.records.append({
            "kind": "forward", "stage": self.index, "micro_batch": k, "count": len(x), "weights": said,
            "buffers": self.forwards, "seed": seed_of(3, self.index, k),
        })  # fmt: skip
        self.forwards += 1
        return y

    def backward(self, k: int, gradient: Tensor | None) -> Tensor | None:
        x, y, finish = self.flying.pop(k)
        kept = self.stash.pop(k, None)
        self.load(self.weights.all if kept is None else kept)
        if not self.recompute:
            y.backward(gradient)
        else:
            buffers = [buffer.clone() for buffer in self.module.buffers()]
            self.called(k, x, finish).backward(gradient)
            # Not before the backward: batch norm's graph has saved its running statistics and refuses changed ones.
            for buffer, before in zip(self.module.buffers(), buffers, strict=True):
                buffer.copy_(before)
        for p, g in zip(self.module.parameters(), self.gradient.views(), strict=True):
            if p.grad is not None:
                g.add_(p.grad) if self.pending else g.copy_(p.grad)
                p.grad = None
        self.pending.append(k)
        self.samples += len(x)
        said = {"kind": "true", "version": self.version} if kept is None else {"kind": "forward"}
        self.records.append({
            "kind": "backward", "stage": self.index, "micro_batch": k, "weights": said, "recomputed": self.recompute,
        })  # fmt: skip
        return x.grad

    def step(self, count: int) -> None:
        self.gradient.all.div_(float(count))
        names = [name for name, _ in self.module.named_parameters()]
        gradient = hash_of(self.module, dict(zip(names, self.gradient.views(), strict=True)))
        self.optimizer.step()
        self.gradient.all.zero_()
        self.version += 1
        self.records.append({
            "kind": "step", "stage": self.index, "step": self.version, "micro_batches": self.pending, "count": count,
            "rates": [RATE], "sha256": self.hash(), "gradient": gradient,
        })  # fmt: skip
        self.pending, self.samples = [], 0


def stages_of(kind: str) -> list[nn.Module]:
    torch.manual_seed(2)
    if kind == "conv":
        return [
            nn.Sequential(nn.Conv2d(1, 5, 3, padding=1), nn.BatchNorm2d(5), nn.ReLU(inplace=True), nn.Conv2d(5, 3, 3)),
            nn.Sequential(nn.ReLU(inplace=True), nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3)),
            nn.Sequential(nn.Flatten(), nn.Linear(27, 2)),
        ]
    return [
        nn.Sequential(nn.Linear(9, 7), nn.Dropout(0.3), nn.LayerNorm(7), nn.Linear(7, 5)),
        nn.Sequential(nn.Tanh(), nn.Linear(5, 5), nn.Dropout(0.3), nn.Linear(5, 7)),
        nn.Sequential(nn.GELU(), nn.Linear(7, 2)),
    ]


def data_of(kind: str, samples: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(4)
    shape = (samples, 1, 7, 7) if kind == "conv" else (samples, 9)
    return [(torch.randn(shape, generator=generator), torch.randn(samples, 2, generator=generator)) for _ in range(6)]


def loss(output: Tensor, y: Tensor) -> tuple[Tensor, int]:
    return (output - y).square().sum(), len(y)


def executed(kind: str, policy: str, recompute: bool, samples: int = 6, step: int = 16) -> Ledger:
    data = data_of(kind, samples)
    parts = micro_batches_of(data, 2)
    modules = stages_of(kind)
    initial = [hash_of(m, {n: p.detach().clone() for n, p in m.named_parameters()}) for m in modules]
    optimizers = [described(torch.optim.SGD(m.parameters(), RATE, momentum=MOMENTUM), m) for m in modules]
    stages = [FlatStage(i, m, policy, recompute and i < 2, step) for i, m in enumerate(modules)]
    queues = [list(order_of("async_1f1b", [2] * 6, window, SE)) for window in WINDOWS]
    values: dict[tuple[int, int], Tensor] = {(-1, k): x for k, (x, _) in enumerate(parts)}
    gradients: dict[tuple[int, int], Tensor | None] = {}
    while any(queues):
        for i, (stage, queue) in enumerate(zip(stages, queues, strict=True)):
            while queue:
                action, k = queue[0], queue[0].micro_batch
                if action.kind == "forward":
                    if (i - 1, k) not in values:
                        break
                    finish = (lambda out, y=parts[k][1]: loss(out, y)[0]) if i == 2 else (lambda out: out)
                    values[i, k] = stage.forward(action, values[i - 1, k], finish)
                elif action.kind == "backward":
                    if i < 2 and (i, k) not in gradients:
                        break
                    gradients[i - 1, k] = stage.backward(k, gradients.get((i, k)))
                else:
                    stage.step(sum(len(parts[j][0]) for j in stage.pending))
                queue.pop(0)
    header = {
        "kind": "header", "format": 1, "stages": 3, "schedule": "async_1f1b", "staleness": policy, "options": {},
        "micro_batches": 12, "split": 2, "accumulate": SE, "optimizer": optimizers, "clip": None, "precision": "fp32",
        "order": "plan", "mean_staleness": [0.0] * 3, "threads": 1, "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(), "seed": 3, "program": None, "initial": initial,
    }  # fmt: skip
    return Ledger(header, [Record(0, values) for stage in stages for values in stage.records])


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("policy", ["none", "stash", "msnag", "msnag+stash", "aggmsnag", "aggmsnag+stash"])
@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_the_ledger_of_flat_buffers_replays_identically(
    kind: str, policy: str, recompute: bool, tmp_path: Path
) -> None:
    executed(kind, policy, recompute).write(tmp_path / "ledger.jsonl")
    result = replay(tmp_path / "ledger.jsonl", stages_of(kind), loss, data_of(kind, 6))
    assert result.identical, result.difference
    assert result.steps == 18


def test_micro_batches_of_one_sample_need_aligned_parameters(tmp_path: Path) -> None:
    """Matrix-vector kernels look at addresses: without padding the bits may differ, with it they do not."""
    executed("linear", "none", False, samples=2).write(tmp_path / "ledger.jsonl")
    result = replay(tmp_path / "ledger.jsonl", stages_of("linear"), loss, data_of("linear", 2))
    assert result.identical, result.difference
