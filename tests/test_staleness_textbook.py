"""The policies that run in a pipeline (C++) and the textbook that replay computes with: written apart, the same bits."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from ddip.pipeline.textbook_corrections import GapAware, PipeMare, spike_of
from ddip.pipeline.textbook_optimizers import Group, Memory, stepped
from ddip.pipeline.textbook_predictions import PREDICTORS, Partial, predicted
from torch import Tensor

if (Path(__file__).parent.parent / ".setup" / "without_engine").exists():
    pytest.skip(
        "make setup left the data plane out: it does not compile with this machine's torch", allow_module_level=True
    )

from ddip import _engine as engine  # noqa: E402

SIZES = [5, 40, 203]


class Twins:
    """Some steps of training, told to both: a flat optimizer for C++, one parameter per group for the textbook."""

    def __init__(self, name: str, form: str, rng: random.Random, steps: int) -> None:
        self.rng, self.steps = rng, 0
        self.groups = [Group(name, [str(i)], form=form, **settings_of(name, rng)) for i in range(len(SIZES))]
        self.weights = [torch.randn(size) for size in SIZES]
        self.memories = [Memory() for _ in SIZES]
        self.rule = engine.rule_of("sutskever" if form == "sutskever" else name)
        for _ in range(steps):
            self.step()

    def step(
        self, spikes: list[Any] | None = None, rates: list[float] | None = None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """(gradients, weights before)"""
        gradients, before = [torch.randn(size) for size in SIZES], list(self.weights)
        rates = rates or [0.05 * self.rng.random() for _ in SIZES]
        self.steps += 1
        self.weights = [
            stepped(group, w, g, memory, self.steps, rate, spike)
            for group, w, g, memory, rate, spike in zip(
                self.groups, before, gradients, self.memories, rates, spikes or [None] * len(SIZES), strict=True
            )
        ]
        return gradients, before

    def told(self) -> Any:
        def flat(parts: list[Tensor | None]) -> Tensor | None:
            there = [torch.zeros(size) if p is None else p for p, size in zip(parts, SIZES, strict=True)]
            return None if all(part is None for part in parts) else torch.cat(there)

        begin, groups = 0, []
        for group, size in zip(self.groups, SIZES, strict=True):
            keys = (
                "momentum",
                "dampening",
                "weight_decay",
                "nesterov",
                "maximize",
                "eps",
                "momentum_decay",
                "decoupled_weight_decay",
            )
            same = {key: getattr(group, key) for key in keys}
            groups.append(
                engine.StageGroup(begin=begin, end=begin + size, beta1=group.betas[0], beta2=group.betas[1], **same)
            )
            begin += size
        first = [memory.velocity if memory.first is None else memory.first for memory in self.memories]
        optimizer = engine.StageOptimizer(
            rule=self.rule, groups=groups, steps=self.steps, weights=torch.cat(self.weights)
        )
        optimizer.velocity, optimizer.second = flat(first), flat([memory.second for memory in self.memories])
        optimizer.mu_products = [memory.mu_product.item() for memory in self.memories]
        return optimizer


def settings_of(name: str, rng: random.Random) -> dict[str, Any]:
    settings: dict[str, Any] = {"weight_decay": rng.choice([0.0, 0.02]), "maximize": rng.random() < 0.3}
    if name == "sgd":
        nesterov = rng.random() < 0.4
        return {
            **settings,
            "momentum": rng.choice([0.5, 0.9]),
            "nesterov": nesterov,
            "dampening": 0.0 if nesterov else rng.choice([0.0, 0.3]),
        }
    settings |= {"betas": (rng.choice([0.8, 0.9]), rng.choice([0.95, 0.999])), "eps": 1e-8}
    if name == "nadam":
        settings |= {"decoupled_weight_decay": rng.random() < 0.5, "momentum_decay": rng.choice([0.004, 0.1])}
    return settings


CASES = [
    (policy, name, form, decays)
    for policy, names in PREDICTORS.items()
    for name in names
    for form in (("torch", "sutskever") if name == "sgd" else ("torch",))
    for decays in ((False, True) if policy in ("adam", "adamw", "nadam") else (False,))
]


@pytest.mark.parametrize(("policy", "name", "form", "decays"), CASES)
def test_predictions_have_the_same_bits(policy: str, name: str, form: str, decays: bool) -> None:
    rng = random.Random(f"{policy}{name}{form}{decays}")
    torch.manual_seed(1)
    differing = 0
    for _ in range(25):
        twins, n = Twins(name, form, rng, rng.choice([0, 1, 2, 9])), rng.randint(1, 6)
        rates = [[0.1 * rng.random() for _ in range(n)] for _ in SIZES]
        parts, samples, se = rng.choice([0, 1, 3]), 5, 4
        pending = [torch.randn(size) * 9 for size in SIZES]
        moment = engine.StageMoment(staleness=n, rates=rates, version=twins.steps, accumulate=se, stage=1, stages=4)
        with_pending = policy == "aggmsnag" and parts > 0
        if with_pending:
            moment.pending, moment.pending_micro_batches, moment.pending_samples = torch.cat(pending), parts, samples
        optimizer, out = twins.told(), torch.zeros(sum(SIZES))
        made = engine.make_policy(policy, second_decays=decays)
        found = out if made.before_forward(optimizer, moment, out) else optimizer.weights
        expected = []
        for group, w, memory, g, etas in zip(twins.groups, twins.weights, twins.memories, pending, rates, strict=True):
            scale = (-1.0 if group.maximize else 1.0) * parts / (se * samples)
            partial = Partial(g, scale) if with_pending else None
            distance = 1 // 2 + 4 - 1 - 1
            expected.append(predicted(policy, group, w, memory, twins.steps, etas, partial, -(-distance // se), decays))
        assert torch.equal(found, torch.cat(expected)), (twins.groups, n, twins.steps)
        differing += not torch.equal(found, optimizer.weights)
    assert differing > 10


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_gap_aware_and_pipemare_have_the_same_bits(name: str) -> None:
    rng = random.Random(name)
    torch.manual_seed(2)
    for form in ("torch", "sutskever") if name == "sgd" else ("torch",):
        twins = Twins(name, form, rng, 0)
        start = {str(i): w for i, w in enumerate(twins.weights)}
        gap, mare = GapAware(start), PipeMare(start, 1.75, annealing_steps=4, pipemare_decay=0.2)
        policies = (
            engine.make_policy("gap_aware"),
            engine.make_policy("pipemare", annealing_steps=4, pipemare_decay=0.2),
        )
        for step in range(8):
            rates = [0.05 * rng.random() for _ in SIZES]
            told = engine.StageStep(rates=rates, mean_staleness=1.75)
            policies[1].before_step(twins.told(), told)
            assert told.rates == [mare.rate(rate, step) for rate in rates]
            gradients, before = twins.step(rates=rates)
            told = engine.StageStep(
                rates=rates, mean_staleness=1.75, gradient=torch.cat(gradients), weights_before=torch.cat(before)
            )
            optimizer = twins.told()
            for policy in policies:
                policy.after_step(optimizer, told)
            for i, (group, memory) in enumerate(zip(twins.groups, twins.memories, strict=True)):
                gap.follow(group, str(i), memory, before[i], twins.weights[i], rates[i])
                mare.follow(str(i), before[i], twins.weights[i])
            used, fresh = (
                [w + 0.01 * torch.randn_like(w) for w in twins.weights],
                [torch.randn_like(w) for w in twins.weights],
            )
            scaled = torch.cat(fresh)
            policies[0].after_backward(optimizer, torch.cat(used), scaled)
            expected = [
                gap.scaled(group, str(i), fresh[i], twins.weights[i], used[i], twins.steps)
                for i, group in enumerate(twins.groups)
            ]
            assert torch.equal(scaled, torch.cat(expected)) and not torch.equal(scaled, torch.cat(fresh))
            out = torch.zeros(sum(SIZES))
            moment = engine.StageMoment(mean_staleness=1.75, rates=[[0.1]] * len(SIZES))
            assert policies[1].before_backward(optimizer, moment, out)
            corrected = mare.corrected({str(i): w for i, w in enumerate(twins.weights)})
            assert torch.equal(out, torch.cat([corrected[str(i)] for i in range(len(SIZES))]))


def test_spike_has_the_same_bits() -> None:
    rng = random.Random(3)
    torch.manual_seed(3)
    for delay in (0.3, 1.0, 2.5):
        twins = Twins("sgd", "torch", rng, 0)
        for group in twins.groups:
            group.nesterov, group.dampening = False, 0.0
        spikes = [spike_of(group, delay) for group in twins.groups]
        for _ in range(4):
            rates = [0.05 * rng.random() for _ in SIZES]
            gradients, before = twins.step(spikes, rates)
            optimizer = twins.told()
            # What the optimizer itself made of the step; the policy puts its own in place of it.
            plain = [w.add(m.velocity, alpha=-rate) for w, m, rate in zip(before, twins.memories, rates, strict=True)]
            optimizer.weights = torch.cat(plain)
            told = engine.StageStep(
                rates=rates, mean_staleness=delay, gradient=torch.cat(gradients), weights_before=torch.cat(before)
            )
            engine.make_policy("spike").after_step(optimizer, told)
            assert torch.equal(optimizer.weights, torch.cat(twins.weights))
