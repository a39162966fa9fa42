"""One stage of a pipeline, computed again from its ledger: a dictionary of weight versions, functional calls, textbook updates.

Shares no code with the executor or the policies of a pipeline, so that both can only agree by computing the same thing.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ddip.errors import ConfigError
from ddip.pipeline.auxiliary import collected, taken
from ddip.pipeline.borders import floats_in, with_tensors
from ddip.pipeline.ledger import Json
from ddip.pipeline.seeds import seed_of, seeded
from ddip.pipeline.textbook_corrections import GapAware, PipeMare, spike_of, standing_still
from ddip.pipeline.textbook_optimizers import Group, Memory, Spike, group_of, stepped
from ddip.pipeline.textbook_policies import check_policy, options_of, parts_of, predictor_in
from ddip.pipeline.textbook_predictions import Partial, predicted

Weights = dict[str, Tensor]
Found = Mapping[str, Tensor | None]  # a micro-batch's gradients; None: it did not use the weight


class Difference(Exception):  # noqa: N818 - not an error of ours: what replay is there to find
    """The ledger says one thing, the computation another."""


@dataclass
class Flight:
    """A micro-batch between its forward and its backward."""

    inputs: list[Tensor]  # leaves that receive the border's gradient
    call_with: tuple[Any, ...]  # the leaves in their tree
    target: Any
    samples: int
    leaves: Weights
    used: Weights  # the bits that the forward saw
    base: Weights  # true weights of the version it read
    version: int  # newest version at the time of the forward
    read: int  # version that it read
    staleness: int | None
    outputs: list[Tensor] = field(default_factory=list)
    auxiliary: list[Tensor] = field(default_factory=list)  # losses of this stage's own


@dataclass
class Gap:
    """How far a stage moved while a micro-batch was in flight."""

    stage: int
    micro_batch: int
    staleness: int
    moved: float  # ‖w_B − w_F‖
    missed: float  # ‖ŵ − w_B‖

    @property
    def ratio(self) -> float | None:
        """Less than 1: the prediction helps. None: nothing moved."""
        return self.missed / self.moved if self.moved > 0 else None


def hash_of(module: nn.Module, tensors: Weights) -> str:
    """Of weights, or of gradients (frozen parameters have none)."""
    digest = hashlib.sha256()
    for name, _ in module.named_parameters():
        if name in tensors:
            digest.update(tensors[name].detach().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class Stage:
    """REQUIRES: the module holds its initial weights; it is never changed."""

    def __init__(self, index: int, module: nn.Module, loss: Any, header: Json) -> None:
        described = header["optimizer"][index]
        self.index, self.module, self.loss = index, module, loss
        self.stages = header["stages"]
        self.last = index == self.stages - 1
        self.radius = header.get("smoothing", {}).get("radius", 0.0)  # of the noise on weights
        self.seed, self.accumulate, self.clip = header["seed"], header["accumulate"], header["clip"]
        self.autocast = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(header["precision"])
        self.groups = [
            group_of(described["name"], described.get("form", "torch"), group) for group in described["groups"]
        ]
        self.parts, self.options = parts_of(header["staleness"]), header["options"]
        self.predictor = predictor_in(self.parts)
        self.version = 0  # steps, those that had nothing to step with too
        self.steps = 0  # of the optimizer
        self.versions: dict[int, Weights] = {0: {name: p.detach().clone() for name, p in module.named_parameters()}}
        self.trained = [name for group in self.groups for name in group.parameters]
        self.buffers = {name: buffer.detach().clone() for name, buffer in module.named_buffers()}
        self.memory = {name: Memory() for name in self.trained}
        self.flights: dict[int, Flight] = {}
        self.pending: dict[int, Found] = {}  # gradients since the last step, in the order in which they came
        self.samples: dict[int, float] = {}  # what each pending gradient counts for
        self.reached: dict[int, set[str]] = {}  # which weights each backward had a gradient for
        self.loss_scale, self.scales_loss = 1.0, header["precision"] == "fp16"
        self.norms: list[float] = []  # of each step's gradient, before it was clipped
        self.forwards = 0
        self.gives: list[str] = header["gives"][index] if "gives" in header else []
        self._check_parameters()
        check_policy(self.parts, self.options, self.groups)
        trained = {name: self.weights[name] for name in self.trained}
        self.pipemare = (
            PipeMare(trained, 0.0, **options_of("pipemare", self.options)) if "pipemare" in self.parts else None
        )
        self.gap_aware = (
            GapAware(trained, **options_of("gap_aware", self.options)) if "gap_aware" in self.parts else None
        )
        self.spikes: list[Spike | None] = []
        self.begin_run(float(header["mean_staleness"][index]))

    def begin_run(self, mean_staleness: float) -> None:
        """What pipemare and spike compute with from here on."""
        if self.pipemare is not None:
            self.pipemare.staleness = mean_staleness
        self.spikes = [spike_of(group, mean_staleness) if "spike" in self.parts else None for group in self.groups]

    @property
    def weights(self) -> Weights:
        return self.versions[self.version]

    def _check_parameters(self) -> None:
        names = dict(self.module.named_parameters())
        for name in self.trained:
            if name not in names:
                raise ConfigError(
                    f"stage {self.index}: the ledger's optimizer has {name!r}, the program's module has not"
                )
        for name, parameter in names.items():
            if parameter.requires_grad and self.trained.count(name) != 1:
                raise ConfigError(
                    f"stage {self.index}: {name!r} stands in {self.trained.count(name)} groups; expected 1"
                )

    # ---- forward and backward

    def forward(self, said: Json, micro_batch: int, arguments: tuple[Any, ...], target: Any, samples: int) -> Any:
        """What the module returns; on the last stage (sum of losses, count)."""
        leaves = []

        def leaf(tensor: Tensor) -> Tensor:
            tensor = tensor.detach().clone()
            if self.index > 0 and tensor.is_floating_point():
                leaves.append(tensor.requires_grad_())
            return tensor

        received = with_tensors(arguments, leaf)
        used = self._perturbed(micro_batch) if said["kind"] == "perturbed" else self._weights_for(said)
        read = said["version"]
        flight = Flight(
            leaves, received, target, samples, {}, used, self.versions[read], self.version, read, said.get("n")
        )
        result = self._run(flight, micro_batch, used, self.buffers)
        self.flights[micro_batch] = flight
        self.forwards += 1
        return result

    def backward(
        self, said: Json, micro_batch: int, recomputed: bool, gradients: list[Tensor | None] | None, count: float
    ) -> tuple[list[Tensor | None], Found]:
        """Gradients for the border before this stage, and of the weights. `gradients`: from the next stage, None on the last.
        `count`: what the micro-batch's loss is a sum over."""
        flight = self.flights.pop(micro_batch)
        weights = flight.used if said["kind"] == "forward" else self._weights_for(said)
        if recomputed:
            self._run(flight, micro_batch, weights, {name: buffer.clone() for name, buffer in self.buffers.items()})
        else:
            for name, held in flight.leaves.items():
                held.data.copy_(weights[name])  # behind autograd's back, as the executor's flat buffer does it
        outputs = flight.outputs
        if gradients is None:
            gradients = [filled(outputs[0], self.loss_scale)]
        wanted = [*flight.inputs, *(flight.leaves[name] for name in self.trained)]
        own = [(a, filled(a, count * self.loss_scale)) for a in flight.auxiliary]
        given = [*own, *zip(outputs, gradients, strict=True)]
        pairs = [(y, g) for y, g in given if g is not None and y.requires_grad]
        found: Sequence[Tensor | None] = [None] * len(wanted)
        if pairs and wanted:
            found = torch.autograd.grad([y for y, _ in pairs], wanted, [g for _, g in pairs], allow_unused=True)
        of_inputs, of_weights = list(found[: len(flight.inputs)]), found[len(flight.inputs) :]
        self.reached[micro_batch] = {name for name, g in zip(self.trained, of_weights, strict=True) if g is not None}
        return of_inputs, self.scaled_by_gap(dict(zip(self.trained, of_weights, strict=True)), flight.used)

    def scaled_by_gap(self, gradient: Found, used: Weights) -> Found:
        if self.gap_aware is None:
            return gradient
        scaled = self.gap_aware.scaled
        whole = {name: torch.zeros_like(used[name]) if part is None else part for name, part in gradient.items()}
        return {
            name: scaled(group, name, whole[name], self.weights[name], used[name], self.steps)
            for group in self.groups
            for name in group.parameters
        }

    def gap(self, micro_batch: int) -> Gap:
        """REQUIRES: its backward comes next."""
        flight = self.flights[micro_batch]

        def distance(a: Weights, b: Weights) -> float:
            if a is b:
                return 0.0
            return math.sqrt(sum((a[name].double() - b[name].double()).square().sum().item() for name in self.trained))

        moved, missed = distance(self.weights, flight.base), distance(flight.used, self.weights)
        return Gap(self.index, micro_batch, self.version - flight.version, moved, missed)

    def _run(self, flight: Flight, micro_batch: int, weights: Weights, buffers: Weights) -> Any:
        trained = set(self.trained)
        flight.leaves = {name: w.clone().requires_grad_(name in trained) for name, w in weights.items()}
        call_with = with_tensors(flight.call_with, torch.clone)  # a module may work in place on what it receives
        with seeded(seed_of(self.seed, self.index, micro_batch)), autocast(self.autocast):
            with collected():
                output = functional_call(self.module, (flight.leaves, buffers), call_with)
            flight.auxiliary = taken()
            if not self.last:
                values = [output[name] for name in self.gives] if len(self.gives) > 1 else output
                flight.outputs = floats_in(values)
                return output
            # Of several passes each has its own, as in the pipeline.
            target = with_tensors(flight.target, torch.clone) if self.radius else flight.target
            value = self.loss(output, target)
            if isinstance(value, tuple):
                total, count = value
            else:
                mean = value.float() if value.dtype == torch.float16 else value
                total, count = mean * flight.samples, flight.samples
        flight.outputs = [total]
        return total, count

    def _weights_for(self, said: Json) -> Weights:
        version = said["version"]
        if version not in self.versions:
            raise Difference(f"reads version {version}; the newest is {self.version}")
        if said["kind"] == "true":
            return self.versions[version]
        if version != self.version:
            raise Difference(f"predicts from version {version}; the newest is {self.version}")
        if said["kind"] == "corrected":
            if self.pipemare is None:
                raise Difference("corrects, but the ledger's policy is not pipemare")
            return self.pipemare.corrected(self.weights)
        if self.predictor is None:
            raise Difference("predicts, but the ledger's policy has no prediction")
        ahead = said["n"] if "n" in said else 1
        if len(said["rates"]) != len(self.groups) or any(len(rates) != ahead for rates in said["rates"]):
            raise Difference(f"rates {said['rates']}; expected {ahead} for each of {len(self.groups)} groups")
        partial = said.get("partial", [])
        counts = self.predictor == "aggmsnag" and sum(self.samples.values()) > 0 and self._is_usable()
        pending = list(self.pending) if counts else []
        if partial != pending:
            raise Difference(f"predicts with gradients of micro-batches {partial}; expected {pending}")
        result = dict(self.weights)
        for group, rates in zip(self.groups, said["rates"], strict=True):
            for name in group.parameters:
                result[name] = predicted(
                    self.predictor, group, self.weights[name], self._known_of(group, name), self.steps, rates,
                    self._partial(partial, group, name), said.get("distance", 0),
                    self.options.get("second_decays", False),
                )  # fmt: skip
        return result

    def _perturbed(self, micro_batch: int) -> Weights:
        result = dict(self.weights)
        with seeded(seed_of(self.seed, self.stages + self.index, micro_batch)):
            for name, _ in self.module.named_parameters():
                if name in self.trained:
                    weight = self.weights[name]
                    noise = torch.randn(weight.shape, dtype=weight.dtype)
                    result[name] = torch.add(weight, noise, alpha=self.radius)
        return result

    def _is_usable(self) -> bool:
        """In half precision: a gradient that is not finite says nothing about the next step."""
        return not self.scales_loss or math.isfinite(self.norm(list(self.pending), 1.0))

    def _known_of(self, group: Group, name: str) -> Memory:
        """A parameter that has not stepped yet, beside others that have, has a velocity of zeros. NAdam's product is that of the
        group's parameter that has stepped most often."""
        own = self.memory[name]
        most = max((self.memory[other] for other in group.parameters), key=lambda memory: memory.steps)
        known = replace(own, mu_product=most.mu_product)
        if own.has_moved or (group.name == "sgd" and group.momentum == 0):
            return known
        if any(other.velocity is not None for other in self.memory.values()):
            known.velocity = torch.zeros_like(self.weights[name])
        return known

    def _partial(self, micro_batches: list[int], group: Group, name: str) -> Partial | None:
        if not micro_batches:
            return None
        sign, count = -1.0 if group.maximize else 1.0, sum(self.samples[k] for k in micro_batches)
        weight = sign * len(micro_batches) / (self.accumulate * count)
        return Partial(self._sum(name, micro_batches), weight / self.loss_scale)

    def _sum(self, name: str, micro_batches: list[int]) -> Tensor:
        """It begins with the first gradient, not with a zero: -0 stays -0."""
        total: Tensor | None = None
        for k in micro_batches:
            part = self.pending[k][name]
            if part is not None:
                total = part.clone() if total is None else total.add_(part)
        return torch.zeros_like(self.weights[name]) if total is None else total

    # ---- step

    def step(
        self,
        micro_batches: list[int],
        divisor: float,
        rates: list[float],
        share: list[int] | None,
        norm: float | None = None,
    ) -> Weights:
        """Divides, clips, steps. The gradient that the optimizer saw. `norm`: to clip by another than the stage's own.
        REQUIRES: the micro-batches are those that are pending."""
        gradient = self.gradient(micro_batches, divisor)
        if self.clip is not None:
            self.norms.append(_norm([gradient[name] for name in self.trained]))
            self.clip_by(self.norms[-1] if norm is None else norm, gradient)
        old, new = self.weights, dict(self.weights)
        reached = set().union(*(self.reached[k] for k in micro_batches))
        for group, scheduled, spike in zip(self.groups, rates, self.spikes, strict=True):
            rate = self._rate(scheduled, share)
            for name in group.parameters:
                memory = self.memory[name]
                if name in reached:
                    memory.steps += 1
                    new[name] = stepped(group, old[name], gradient[name], memory, memory.steps, rate, spike)
                else:
                    memory = standing_still(group, old[name], gradient[name], memory)
                if self.pipemare is not None:
                    self.pipemare.follow(name, old[name], new[name])
                if self.gap_aware is not None:
                    self.gap_aware.follow(group, name, memory, old[name], new[name], rate)
        self.steps += 1
        self._go_on(new)
        return gradient

    def gradient(self, micro_batches: list[int], divisor: float) -> Weights:
        return {name: self._sum(name, micro_batches).div_(divisor) for name in self.trained}

    def clip_by(self, norm: float, gradient: Weights) -> None:
        """Changes the gradient, where the norm is above the limit."""
        assert self.clip is not None
        scale = self.clip / (norm + 1e-6)
        for one in gradient.values():
            if math.isnan(scale):
                one.fill_(math.nan)  # always the same NaN: a product's depends on the order of its factors
            elif scale < 1:
                one.mul_(scale)

    def norm(self, micro_batches: list[int], divisor: float) -> float:
        """Of what a step with them would use, before it is clipped."""
        gradient = self.gradient(micro_batches, divisor)
        return _norm([gradient[name] for name in self.trained])

    def skip(self) -> None:
        """A step whose micro-batches count nothing, or that is left out: it makes a version of the same weights."""
        if self.clip is not None:
            self.norms.append(_norm([self._sum(name, list(self.pending)) for name in self.trained]))
        self._go_on(self.weights)

    def _go_on(self, weights: Weights) -> None:
        self.version += 1
        self.versions[self.version] = weights
        for k in self.pending:
            del self.reached[k]
        self.pending.clear()
        self.samples.clear()

    def _rate(self, rate: float, share: list[int] | None) -> float:
        if share is not None:
            rate = rate * share[0] / share[1]
        return rate if self.pipemare is None else self.pipemare.rate(rate, self.steps)


def autocast(dtype: torch.dtype | None) -> torch.autocast:
    return torch.autocast("cpu", dtype or torch.bfloat16, dtype is not None)


def filled(like: Tensor, number: float) -> Tensor:
    """Infinity, where the number is too large for the type."""
    return torch.full(like.shape, number, dtype=torch.float64).to(like.dtype)


def _norm(gradients: list[Tensor]) -> float:
    """That of the flat buffer: each parameter begins at a multiple of 64 bytes, zeros between."""
    pieces = []
    for gradient in gradients:
        step = 64 // gradient.element_size()
        pieces.append(torch.nn.functional.pad(gradient.reshape(-1), (0, -gradient.numel() % step)))
    return float(torch.linalg.vector_norm(torch.cat(pieces)))
