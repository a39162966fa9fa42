"""Computes a pipeline's run again from its ledger, in one process, and compares the weights after every step.

Bit-identical on the same host, torch, thread count and instruction set, or the first difference is named (docs/ledger.md).
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ddip.errors import ConfigError
from ddip.pipeline.borders import Routes, added, floats_in
from ddip.pipeline.ledger import Ledger, Record, read
from ddip.pipeline.micro_batches import Batches, micro_batches_of, samples_in
from ddip.pipeline.replay_norms import Norms
from ddip.pipeline.replay_rules import Rules
from ddip.pipeline.replay_runs import check_runs
from ddip.pipeline.replay_scale import Scales
from ddip.pipeline.replay_stage import Difference, Found, Gap, Stage, hash_of
from ddip.pipeline.seeds import seed_of
from ddip.pipeline.tying import ties_of, wrapped

Loss = Callable[[Any, Any], Any]
# After each step: stage, version that it made, gradient that the optimizer saw, weights. Not to be changed.
Observer = Callable[[int, int, dict[str, Tensor], dict[str, Tensor]], None]


@dataclass
class Replay:
    """What was computed again. `difference`: None if everything agreed."""

    difference: str | None
    actions: int = 0
    steps: int = 0
    notes: list[str] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)  # per sample, one per micro-batch
    weights: list[dict[str, Tensor]] = field(default_factory=list)  # newest, per stage
    buffers: list[dict[str, Tensor]] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)  # of simulations, and where they were asked for

    @property
    def identical(self) -> bool:
        return self.difference is None


def replay(
    ledger: Ledger | Path | str, stages: list[nn.Module], loss: Loss, batches: Batches, gaps: bool = False
) -> Replay:
    """`stages` hold the weights that the run began with; they are not changed. `gaps`: also how far they moved on the way."""
    if not isinstance(ledger, Ledger):
        ledger = read(ledger)
    interpreter = Interpreter(ledger, stages, loss, batches)
    interpreter.gaps = gaps
    return interpreter.run()


class Interpreter:
    """Does the actions of all stages, each as soon as what it needs is there.

    `fill`: the ledger has no results yet (a simulation): write them into it instead of comparing."""

    observe: Observer | None = None
    gaps = False

    def __init__(
        self, ledger: Ledger, stages: list[nn.Module], loss: Loss, batches: Batches, fill: bool = False
    ) -> None:
        header = ledger.header
        if len(stages) != header["stages"]:
            raise ConfigError(f"the ledger has {header['stages']} stages, the program {len(stages)}")
        self.ledger, self.fill = ledger, fill
        self.rules = Rules(ledger)
        if ties := ties_of(stages):
            lent = {tie.value for tie in ties}
            stages = wrapped(stages, [[name for name in given if name not in lent] for given in header["gives"]], ties)
        self.stages = [Stage(index, module, loss, header) for index, module in enumerate(stages)]
        self.norms = Norms(ledger, self.stages)
        self.scales = Scales(ledger, self.stages)
        self.result = Replay(None)
        self.data = self._data(batches)
        self.filled = sum(samples_in(x) > 0 for x, _ in self.data)
        self.routes = Routes(header)
        self.values: dict[tuple[str, int], Any] = {}  # what stages gave, until the last stage that takes it has it
        self.takers = Counter(name for taken in self.routes.takes[1:] for name in taken)
        self.taken: Counter[tuple[str, int]] = Counter()
        # (name, micro-batch) → its gradient from each stage that takes it
        self.gradients: dict[tuple[str, int], dict[int, list[Tensor | None]]] = {}
        self.widths: dict[tuple[int, str], int] = {}  # tensors with gradients in what a stage takes
        self.waiting: dict[tuple[int, int], Found] = {}  # of split backwards
        self.seen: set[tuple[int, int]] = set()
        self.stale: set[tuple[int, int]] = set()  # micro-batches that a step overtook
        self.losses: dict[int, tuple[float, float]] = {}
        self.reads = Counter((record.stage, version) for record in ledger.records for version in _versions_read(record))

    def _data(self, batches: Batches) -> list[tuple[Any, Any]]:
        """As many as the ledger has: it may have ended before the program did."""
        count, split = self.ledger.header["micro_batches"], self.ledger.header["split"]
        passes = self.ledger.header.get("smoothing", {}).get("passes", 1)
        if count == 0:
            raise ConfigError("the ledger has no run: its first one did not end, and there is nothing to compare")
        rest = iter(batches)
        cut = micro_batches_of(islice(rest, -(-count // (split * passes))), split)
        data = [part for part in cut for _ in range(passes)]
        if len(data) < count:
            raise ConfigError(f"the ledger has {count} micro-batches, the program {len(data)}")
        if any(samples_in(x) for x, _ in data[count:]) or next(rest, None) is not None:
            self.result.notes.append(
                f"the ledger ends after {count} micro-batches, and the program has more: not compared"
            )
        return data[:count]

    def run(self) -> Replay:
        header = self.ledger.header
        threads = torch.get_num_threads()
        torch.set_num_threads(header["threads"])
        try:
            self._check_machine()
            uses_means = bool(self.rules.parts & {"pipemare", "spike"})
            for stage in self.stages:
                check_runs(self.ledger, stage.index, uses_means and bool(stage.trained))
            self._run_all()
            self.norms.check()
            self.scales.check()
        except Difference as difference:
            self.result.difference = str(difference)
        finally:
            torch.set_num_threads(threads)
        self.result.losses = [total / count if count else math.nan for _, (total, count) in sorted(self.losses.items())]
        self.result.weights = [stage.weights for stage in self.stages]
        self.result.buffers = [stage.buffers for stage in self.stages]
        return self.result

    def _check_machine(self) -> None:
        header = self.ledger.header
        # A C++ program knows its torch's version without the build's name behind "+".
        version = torch.__version__ if "+" in header["torch"] else torch.__version__.partition("+")[0]
        for key, here in (("torch", version), ("capability", torch.backends.cpu.get_cpu_capability())):
            if header[key] != here:
                self.result.notes.append(
                    f"the ledger was written with {key} {header[key]}, this is {here}: bits may differ"
                )
        for stage, said in zip(self.stages, header["initial"], strict=True):
            here = hash_of(stage.module, stage.weights)
            if here != said:
                raise Difference(
                    f"line 1: stage {stage.index}, version 0: initial weights are {here[:12]}…, ledger {said[:12]}…"
                )

    def _run_all(self) -> None:
        queues = [deque(r for r in self.ledger.records if r.stage == stage.index) for stage in self.stages]
        moving = True
        while moving:
            moving = False
            for queue in queues:
                while queue and self._is_ready(queue[0]):
                    self._do(queue.popleft())
                    moving = True
        for queue in queues:
            if queue:
                raise Difference(f"{queue[0].name}: what it needs from its neighbour never comes")
        for index, k in self.waiting:
            raise Difference(
                f"the ledger ends: the weight gradient of micro-batch {k} of stage {index}, whose backward was split, never comes"
            )
        for stage in self.stages:
            done = stage.forwards - len(stage.flights)
            if done != self.filled:
                raise Difference(
                    f"the ledger ends with {self.filled - done} micro-batches unfinished on stage {stage.index}"
                )
            if stage.pending:
                raise Difference(
                    f"the ledger ends: gradients of micro-batches {list(stage.pending)} of stage {stage.index} entered no step"
                )

        steps = [len(record.values["micro_batches"]) for record in self.ledger.records if record.kind == "step"]
        if steps and max(steps) < self.rules.accumulate:
            self.result.notes.append(
                f"no step has as many micro-batches as the header's accumulate, {self.rules.accumulate}"
            )

    def _is_ready(self, record: Record) -> bool:
        k, last = record.values.get("micro_batch"), record.stage == len(self.stages) - 1
        if record.kind == "forward" and (record.stage, k) not in self.seen:
            return record.stage == 0 or all((name, k) in self.values for name in self.routes.takes[record.stage])
        if record.kind == "backward" and not last and k in self.stages[record.stage].flights:
            names = self.routes.gives[record.stage]
            return all(len(self.gradients.get((name, k), {})) == self.takers[name] for name in names)
        return True

    def _do(self, record: Record) -> None:
        action = {
            "run": self._begin_run,
            "forward": self._forward,
            "backward": self._backward,
            "weight_gradient": self._weight_gradient,
            "step": self._step,
            "drain": self._drain,
        }[record.kind]
        try:
            action(record, self.stages[record.stage])
        except Difference as difference:
            raise Difference(f"{record.name}: {difference}") from None
        for version in _versions_read(record):
            self.reads[record.stage, version] -= 1
        self._forget(self.stages[record.stage])
        self.result.actions += 1

    def _forget(self, stage: Stage) -> None:
        for version in [v for v in stage.versions if v < stage.version and self.reads[stage.index, v] <= 0]:
            del stage.versions[version]

    def _agree(self, record: Record, key: str, here: Any) -> None:
        if self.fill:
            record.values[key] = here
        elif record.values[key] != here:
            raise Difference(f"{key} is {_short(here)}, the ledger says {_short(record.values[key])}")

    # ---- actions

    def _begin_run(self, record: Record, stage: Stage) -> None:
        if stage.flights or stage.pending:
            raise Difference("a run begins before the one before it has ended")
        stage.begin_run(float(record.values["mean_staleness"]))

    def _forward(self, record: Record, stage: Stage) -> None:
        values, k = record.values, record.values["micro_batch"]
        if (stage.index, k) in self.seen:
            raise Difference("a second forward of the same micro-batch")
        self.seen.add((stage.index, k))
        x, y = self.data[k]
        samples = samples_in(x)
        if samples == 0:
            raise Difference("its batch has too few samples, so that it is empty: it has no forward")
        if "samples" in values and len(values["samples"]) != samples:
            raise Difference(f"{samples} samples, the ledger says {len(values['samples'])}")
        if "count" in values:
            self._agree(record, "count", samples)
        self._agree(record, "buffers", stage.forwards)
        self._agree(record, "seed", seed_of(stage.seed, stage.index, k))
        self.rules.forward(stage, values["weights"])
        result = stage.forward(values["weights"], k, self._arguments(stage.index, k), y, samples)
        if not stage.last:
            self.values |= {(name, k): value for name, value in self.routes.values(stage.index, result).items()}
            return
        total, count = result
        self.losses[k] = (total.item(), float(count))
        if self.fill or "loss" in values:
            self._agree(record, "loss", total.item() if math.isfinite(total.item()) else None)

    def _compare_staleness(self, said: int | None, came: int) -> None:
        if said is not None and said != came:
            raise Difference(f"{came} steps came between forward and backward, the forward says n = {said}")

    def _backward(self, record: Record, stage: Stage) -> None:
        values, k = record.values, record.values["micro_batch"]
        if k not in stage.flights:
            raise Difference("its forward did not come before it, or it has already been here")
        flight = stage.flights[k]
        between = stage.version - flight.version
        self._compare_staleness(flight.staleness, between)
        self.rules.backward(stage, values["weights"], flight, values["recomputed"])
        if between:
            self.stale.add((stage.index, k))
        if self.fill or self.gaps:
            self.result.gaps.append(stage.gap(k))
        gradients = None if stage.last else self._gradients(stage, k)
        scale = float(values.get("loss_scale", 1.0))
        if stage.pending and scale != stage.loss_scale:
            raise Difference(f"loss scale {scale}, but {stage.loss_scale} for other gradients of the same step")
        self.scales.backward(k, scale)
        stage.loss_scale = scale
        before, gradient = stage.backward(values["weights"], k, values["recomputed"], gradients, self.losses[k][1])
        if stage.index > 0:
            self._hand_back(stage.index, k, before)
        if values.get("split", False):
            self.waiting[stage.index, k] = gradient
        else:
            self._enter(stage, k, gradient)

    def _arguments(self, stage: int, k: int) -> tuple[Any, ...]:
        if stage == 0:
            return (self.data[k][0],)
        taken = []
        for name in self.routes.takes[stage]:
            taken.append(self.values[name, k])
            self.widths[stage, name] = len(floats_in(taken[-1]))
            self.taken[name, k] += 1
            if self.taken[name, k] == self.takers[name]:
                del self.values[name, k]
        return tuple(taken)

    def _hand_back(self, stage: int, k: int, gradients: list[Tensor | None]) -> None:
        rest = iter(gradients)
        for name in self.routes.takes[stage]:
            part = list(islice(rest, self.widths[stage, name]))
            self.gradients.setdefault((name, k), {})[stage] = part

    def _gradients(self, stage: Stage, k: int) -> list[Tensor | None]:
        """Of what the stage gave; where several stages took it, the deepest one's first."""
        found: list[Tensor | None] = []
        for name in self.routes.gives[stage.index]:
            parts = self.gradients.pop((name, k), {})
            found += added([parts[taker] for taker in sorted(parts, reverse=True)])
        return found

    def _weight_gradient(self, record: Record, stage: Stage) -> None:
        k = record.values["micro_batch"]
        if (stage.index, k) not in self.waiting:
            raise Difference("no split backward of this micro-batch came before it")
        self._enter(stage, k, self.waiting.pop((stage.index, k)))

    def _enter(self, stage: Stage, k: int, gradient: Found) -> None:
        if not stage.trained:
            return
        stage.pending[k] = gradient
        stage.samples[k] = self.losses[k][1]

    def _step(self, record: Record, stage: Stage) -> None:
        values = record.values
        self._agree(record, "step", stage.version + 1)
        self._agree(record, "micro_batches", list(stage.pending))
        count = sum(stage.samples.values())
        self._agree(record, "count", int(count) if count == int(count) else count)
        left_out = self.scales.step(record, stage, count)
        if count == 0 or left_out:
            self._skip(record, stage)
            return
        fresh = not any((stage.index, k) in self.stale for k in stage.pending)
        self.rules.step(values["micro_batches"], values.get("share"), fresh)
        if len(values["rates"]) != len(stage.groups):
            raise Difference(f"{len(values['rates'])} rates for {len(stage.groups)} groups")
        divisor = float(values["count"]) * stage.loss_scale
        norm = self.norms.of(record, stage, divisor)
        gradient = stage.step(values["micro_batches"], divisor, values["rates"], values.get("share"), norm)
        if self.fill or "gradient" in values:
            self._agree(record, "gradient", hash_of(stage.module, gradient))
        self._agree(record, "sha256", hash_of(stage.module, stage.weights))
        self.result.steps += 1
        if self.observe is not None:
            self.observe(stage.index, stage.version, gradient, stage.weights)

    def _skip(self, record: Record, stage: Stage) -> None:
        self._agree(record, "rates", [])
        if "share" in record.values and not self.fill:
            raise Difference("a step that counts nothing, or is left out, has a share")
        stage.skip()
        self._agree(record, "sha256", hash_of(stage.module, stage.weights))

    def _drain(self, record: Record, stage: Stage) -> None:
        if stage.flights:
            raise Difference(f"micro-batches {sorted(stage.flights)} are still in flight")
        self._agree(record, "version", stage.version)
        self._agree(record, "sha256", hash_of(stage.module, stage.weights))


def _versions_read(record: Record) -> list[int]:
    weights = record.values.get("weights", {})
    return [weights["version"]] if "version" in weights else []


def _short(value: Any) -> str:
    return f"{value[:12]}…" if isinstance(value, str) and len(value) == 64 else str(value)
