"""A pipeline in one process: for researchers who want to see what staleness does, without any worker.

It plans the order of actions by the simple rules of each schedule, says which weights each action sees, and lets the
interpreter of `replay` compute it. The ledger that comes back is one that `ddip replay` accepts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ddip.errors import ConfigError
from ddip.pipeline.arguments import smoothing_of
from ddip.pipeline.ledger import FORMAT, Json, Ledger, Record, checked_header, did_you_mean
from ddip.pipeline.micro_batches import micro_batches_of, samples_in
from ddip.pipeline.parts import Part
from ddip.pipeline.replay import Interpreter, Loss, Observer
from ddip.pipeline.replay_stage import Gap, hash_of
from ddip.pipeline.simulate_order import SCHEDULES, SYNCHRONOUS, Action, order_of, without_empty
from ddip.pipeline.textbook_policies import check_options, parts_of, predictor_in
from ddip.pipeline.tying import tie_stages, ties_of

# What torch's optimizers are called in a ledger, and which of their settings matter.
OPTIMIZERS: dict[str, list[str]] = {
    "SGD": ["momentum", "dampening", "weight_decay", "nesterov", "maximize"],
    "Adam": ["betas", "eps", "weight_decay", "maximize"],
    "AdamW": ["betas", "eps", "weight_decay", "maximize"],
    "NAdam": ["betas", "eps", "weight_decay", "maximize", "momentum_decay", "decoupled_weight_decay"],
}


@dataclass
class Simulation:
    losses: list[float]  # per sample, one per micro-batch
    weights: list[dict[str, Tensor]]  # after the last step, per stage
    buffers: list[dict[str, Tensor]]
    gaps: list[Gap]
    ledger: Ledger


def simulate(
    stages: list[nn.Module],
    loss: Loss,
    batches: Iterable[tuple[Any, Any]],
    *,
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    schedule: str = "async_1f1b",
    window: list[int] | None = None,
    micro_batches: int = 1,
    accumulate: int = 1,
    staleness: str = "none",
    recompute: bool = False,
    rate: Callable[[int], float] = lambda step: 1.0,
    max_staleness: int | None = None,
    clip: float | None = None,
    precision: str = "fp32",
    form: str = "torch",
    seed: int = 0,
    options: Json | None = None,
    smoothing: Json | None = None,
    program: str | None = None,
    takes: list[list[str]] | None = None,
    gives: list[list[str]] | None = None,
    observe: Observer | None = None,
) -> Simulation:
    """Trains copies of `stages` (they are not changed) as a pipeline with this schedule and policy would.

    `batches`: (x, y) pairs, each cut into `micro_batches`. Asynchronous schedules step every `accumulate` micro-batches,
    synchronous ones every `accumulate` batches. `window`: per stage, how many micro-batches may be in flight beyond
    one; None: the stage's depth. `rate(step)`: factor on the optimizer's rates, 0 = the first step. `form`: SGD's,
    "torch" or "sutskever". `takes`, `gives`: names of what each stage is called with and returns, if it is no chain
    (several: a dict by name); the first stage takes x. `recompute`: forwards run again before backwards (not on the last stage).
    `smoothing`: {"passes": K, "radius": r}, of synchronous schedules.
    `observe(stage, version, gradient, weights)` is called after each step.
    """
    _check(schedule, staleness, stages, window)
    if precision == "fp16":
        raise ConfigError(
            "precision 'fp16' is not simulated: its scale depends on all stages' steps; expected fp32 or bf16"
        )
    for name, count in (("micro_batches", micro_batches), ("accumulate", accumulate)):
        if not isinstance(count, int) or count < 1:
            raise ConfigError(f"{name} {count!r}; expected a whole number from 1 on")
    if takes is None and ties_of(stages):
        parts = [Part(module) for module in stages]
        tie_stages(parts)
        stages, takes, gives = [p.module for p in parts], [p.takes for p in parts], [p.gives for p in parts]
    pairs = list(batches)
    if not pairs:
        raise ConfigError("no batches; expected at least one")
    check_options(parts_of(staleness), options or {})
    passes = smoothing_of(smoothing, schedule, schedule in SYNCHRONOUS, staleness).passes
    read = [x for x, _ in micro_batches_of(pairs, micro_batches) for _ in range(passes)]
    empty = {k for k, x in enumerate(read) if samples_in(x) == 0}
    sizes = [micro_batches * passes] * len(pairs)
    depth = len(stages)
    windows = window if window is not None else [depth - 1 - index for index in range(depth)]
    if schedule == "virtual_async":
        cap = depth - 1 if max_staleness is None else max_staleness
        windows = [max(0, min(depth - 1, cap) - index) for index in range(depth)]
    least = {"2bw": max(depth, windows[0]), "paci": windows[0]}.get(schedule, 1)
    if accumulate < least:
        raise ConfigError(f"schedule {schedule}: accumulate {accumulate}; expected at least {least}")
    orders = [order_of(schedule, sizes, windows[index], accumulate) for index in range(depth)]
    optimizers = [
        optimizer(trained) if (trained := [p for p in module.parameters() if p.requires_grad]) else None
        for module in stages
    ]
    if (options or {}).get("nesterov_by_stage"):
        for made, order in zip(optimizers, orders, strict=True):
            versions = 1 + max(action.staleness for action in order)
            for group in made.param_groups if isinstance(made, torch.optim.NAdam) else []:
                beta1, beta2 = group["betas"]
                by_stage = beta1 + (versions - 1) * (0.99 - beta1) / depth
                group["betas"] = 0.99 if versions > depth else by_stage, beta2
    per_step = accumulate * sizes[0] if schedule in SYNCHRONOUS else accumulate
    header: Json = {
        "kind": "header", "format": FORMAT, "stages": depth, "schedule": schedule, "staleness": staleness,
        "options": options or {}, "micro_batches": sum(sizes), "split": micro_batches, "accumulate": per_step,
        "optimizer": [described(o, module, form) for o, module in zip(optimizers, stages, strict=True)],
        "clip": clip, "precision": precision, "order": "plan",
        "mean_staleness": [_mean_staleness(order) for order in orders],
        "threads": torch.get_num_threads(), "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(), "seed": seed, "program": program,
        "initial": [hash_of(module, dict(module.named_parameters())) for module in stages],
    }  # fmt: skip
    if smoothing:
        header["smoothing"] = smoothing
    records = []
    for index, order in enumerate(orders):
        made = optimizers[index]
        rates = [float(group["lr"]) for group in made.param_groups] if made else []
        plan = _StagePlan(header, index, schedule, rates, rate, recompute and index < depth - 1)
        actions = without_empty(order, empty, None if schedule in SYNCHRONOUS else accumulate)
        if made is None:
            actions = [action for action in actions if action.kind != "step"]
        records += [Record(0, plan.record(action)) for action in actions]
    if takes is not None and gives is not None:
        header |= {"takes": takes, "gives": gives}
    ledger = Ledger(checked_header(header, "simulate"), records)
    for line, record in enumerate(records, 2):
        record.line = line
    interpreter = Interpreter(ledger, stages, loss, pairs, fill=True)
    interpreter.observe = observe
    result = interpreter.run()
    if result.difference is not None:
        raise ConfigError(f"simulate: {result.difference}")
    return Simulation(result.losses, result.weights, result.buffers, result.gaps, ledger)


def described(optimizer: torch.optim.Optimizer | None, module: nn.Module, form: str = "torch") -> Json:
    """A torch optimizer as a ledger's header has it. None: of a stage with nothing to train."""
    if optimizer is None:
        return {"name": "sgd", "form": "torch", "groups": []}
    kind = type(optimizer).__name__
    if kind not in OPTIMIZERS:
        raise ConfigError(f"optimizer {kind}; expected {', '.join(OPTIMIZERS)}{did_you_mean(kind, OPTIMIZERS)}")
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    groups = []
    for group in optimizer.param_groups:
        if group.get("amsgrad"):
            raise ConfigError(f"optimizer {kind}: amsgrad=True is not supported")
        settings = {key: list(group[key]) if key == "betas" else group[key] for key in OPTIMIZERS[kind]}
        groups.append({"parameters": [names[id(parameter)] for parameter in group["params"]], **settings})
    return {"name": kind.lower(), "form": form, "groups": groups}


class _StagePlan:
    """Which weights each action of one stage sees."""

    def __init__(self, header: Json, index: int, schedule: str, rates: list[float], rate: Callable[[int], float],
                 recompute: bool) -> None:  # fmt: skip
        self.header, self.index, self.schedule, self.recompute = header, index, schedule, recompute
        self.base, self.rate = rates, rate
        self.parts = parts_of(header["staleness"])
        self.predictor = predictor_in(self.parts)
        self.keeps = "smoothing" in header or bool(self.parts & {"stash", "gap_aware", "nesterov"})

    def rates(self, first: int, count: int) -> list[list[float]]:
        return [[rate * self.rate(first + ahead) for ahead in range(count)] for rate in self.base]

    def record(self, action: Action) -> Json:
        if action.kind == "step":
            values = {
                "kind": "step", "stage": self.index, "step": 0, "micro_batches": [], "count": 0,
                "rates": [rates[0] for rates in self.rates(action.version, 1)], "sha256": "",
            }  # fmt: skip
            return values if action.share is None else {**values, "share": list(action.share)}
        values = {"kind": action.kind, "stage": self.index, "micro_batch": action.micro_batch}
        if action.kind == "forward":
            return {**values, "count": 0, "weights": self._seen_by_forward(action), "buffers": 0, "seed": 0}
        return {**values, "weights": self._seen_by_backward(action), "recomputed": self.recompute}

    def _seen_by_forward(self, action: Action) -> Json:
        if not self.base:
            return {"kind": "true", "version": 0}
        if "smoothing" in self.header:
            return {"kind": "perturbed", "version": action.version}
        if self.schedule == "2bw":
            return {"kind": "true", "version": self._version_of_2bw(action), "n": action.staleness}
        if self.predictor == "spectrain":
            distance = self._distance(self.index // 2 + self.header["stages"] - self.index - 1)
            return {
                "kind": "predicted",
                "version": action.version,
                "distance": distance,
                "rates": self.rates(action.version, 1),
            }
        if self.predictor is None or action.staleness == 0:
            return {"kind": "true", "version": action.version, "n": action.staleness}
        seen: Json = {
            "kind": "predicted", "version": action.version, "n": action.staleness,
            "rates": self.rates(action.version, action.staleness),
        }  # fmt: skip
        return {**seen, "partial": action.partial} if self.predictor == "aggmsnag" else seen

    def _seen_by_backward(self, action: Action) -> Json:
        if not self.base:
            return {"kind": "true", "version": 0}
        if self.schedule == "2bw":
            return {"kind": "true", "version": self._version_of_2bw(action)}
        if self.keeps:
            return {"kind": "forward"}
        if "pipemare" in self.parts:
            return {"kind": "corrected", "version": action.version}
        if self.predictor == "spectrain":
            distance = self._distance(self.index // 2)
            return {
                "kind": "predicted",
                "version": action.version,
                "distance": distance,
                "rates": self.rates(action.version, 1),
            }
        return {"kind": "true", "version": action.version}

    def _version_of_2bw(self, action: Action) -> int:
        return max(0, action.micro_batch // int(self.header["accumulate"]) - 1)

    def _distance(self, micro_batches: int) -> int:
        return -(-micro_batches // int(self.header["accumulate"]))


def _mean_staleness(order: list[Action]) -> float:
    forwards = [action.staleness for action in order if action.kind == "forward"]
    return sum(forwards) / len(forwards)


def _check(schedule: str, staleness: str, stages: list[nn.Module], window: list[int] | None) -> None:
    if schedule not in SCHEDULES:
        raise ConfigError(f"schedule {schedule!r}; expected {', '.join(SCHEDULES)}{did_you_mean(schedule, SCHEDULES)}")
    parts = parts_of(staleness)
    if schedule in ("2bw", "paci") and parts != {"none"}:
        raise ConfigError(
            f"schedule {schedule} with staleness {staleness!r}; expected none: the schedule decides the weights"
        )
    if not stages:
        raise ConfigError("no stages; expected at least one")
    if window is not None and (len(window) != len(stages) or min(window) < 0):
        raise ConfigError(f"window {window}; expected {len(stages)} numbers from 0 on, one per stage")
