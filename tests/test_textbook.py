"""The textbook updates of replay against torch.optim, and the textbook predictions against real steps."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from ddip.pipeline.textbook_optimizers import Group, Memory, Spike, stepped
from ddip.pipeline.textbook_predictions import Partial, predicted
from torch import Tensor

OPTIMIZERS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "nadam": torch.optim.NAdam}
SHAPES = [(1,), (7,), (33,), (16, 5), (3, 4, 3, 3)]


def drawn(name: str, rng: random.Random) -> dict[str, Any]:
    """Settings of an optimizer, as torch and Group both take them."""
    settings: dict[str, Any] = {"weight_decay": rng.choice([0.0, 0.0, 0.01, 0.3]), "maximize": rng.random() < 0.3}
    if name == "sgd":
        nesterov = rng.random() < 0.4
        momentum = rng.choice([0.5, 0.9, 0.99]) if nesterov else rng.choice([0.0, 0.5, 0.9, rng.random()])
        return {
            **settings,
            "momentum": momentum,
            "nesterov": nesterov,
            "dampening": 0.0 if nesterov else rng.choice([0.0, 0.3]),
        }
    settings |= {
        "betas": (rng.choice([0.0, 0.9, 0.99, rng.random()]), rng.choice([0.95, 0.999])),
        "eps": rng.choice([1e-8, 1e-3]),
    }
    if name == "nadam":
        settings |= {"momentum_decay": rng.choice([0.004, 0.1]), "decoupled_weight_decay": rng.random() < 0.5}
    return settings


def real(name: str, weight: Tensor, rate: float, settings: dict[str, Any]) -> tuple[Tensor, torch.optim.Optimizer]:
    parameter = weight.clone().requires_grad_()
    return parameter, OPTIMIZERS[name]([parameter], lr=rate, foreach=False, **settings)


def step_with(optimizer: torch.optim.Optimizer, parameter: Tensor, gradient: Tensor, rate: float) -> None:
    parameter.grad = gradient.clone()
    optimizer.param_groups[0]["lr"] = rate
    optimizer.step()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_torch_bit_for_bit(name: str) -> None:
    rng = random.Random(name)
    torch.manual_seed(1)
    for _ in range(60):
        settings, shape = drawn(name, rng), rng.choice(SHAPES)
        weight = torch.randn(shape)
        group, memory = Group(name, ["w"], **settings), Memory()
        parameter, optimizer = real(name, weight, 0.1, settings)
        for step in range(1, 7):
            rate, gradient = rng.choice([0.1, 1e-3, rng.random()]), torch.randn(shape) * rng.choice([1.0, 1e-3])
            step_with(optimizer, parameter, gradient, rate)
            weight = stepped(group, weight, gradient, memory, step, rate)
            assert torch.equal(weight, parameter.detach()), (settings, step)


def test_sutskevers_form_with_a_constant_rate_is_torchs() -> None:
    """v is η times torch's, so w is the same but for rounding; when the rate changes, it is not."""
    rng = random.Random(2)
    torch.manual_seed(2)
    for _ in range(40):
        settings = drawn("sgd", rng)
        start = torch.randn(20)
        ends = []
        gradients = [torch.randn(20) for _ in range(6)]
        for form in ("torch", "sutskever"):
            weight, memory = start, Memory()
            for step, gradient in enumerate(gradients, 1):
                weight = stepped(Group("sgd", ["w"], form=form, **settings), weight, gradient, memory, step, 0.05)
            ends.append(weight)
        torch.testing.assert_close(ends[0], ends[1], rtol=1e-5, atol=1e-5)
    momentum = Group("sgd", ["w"], momentum=0.5, form="sutskever")
    memory = Memory()
    weight = stepped(momentum, torch.zeros(1), torch.ones(1), memory, 1, 1.0)
    weight = stepped(momentum, weight, torch.zeros(1), memory, 2, 100.0)
    assert weight.item() == -1.5  # the old velocity does not feel the new rate


# ---- predictions: n real steps without new gradients


def ulp(value: Tensor) -> Tensor:
    return torch.nextafter(value.abs(), torch.tensor(math.inf)) - value.abs()


def warmed(
    name: str, settings: dict[str, Any], rng: random.Random, steps: int, form: str = "torch"
) -> tuple[Group, Tensor, Memory]:
    group, memory, weight = Group(name, ["w"], form=form, **settings), Memory(), torch.randn(40)
    for step in range(1, steps + 1):
        weight = stepped(group, weight, torch.randn(40), memory, step, 0.05 * rng.random())
    return group, weight, memory


def copy_of(memory: Memory) -> Memory:
    return Memory(
        **{key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in vars(memory).items()}
    )


def really(
    group: Group, weight: Tensor, memory: Memory, steps: int, rates: list[float], first: Tensor | None = None
) -> Tensor:
    """Real steps; the first with the gradient that has come so far."""
    memory = copy_of(memory)
    for k, rate in enumerate(rates):
        gradient = first if k == 0 and first is not None else torch.zeros_like(weight)
        weight = stepped(group, weight, gradient, memory, steps + 1 + k, rate)
    return weight


@pytest.mark.parametrize("form", ["torch", "sutskever"])
@pytest.mark.parametrize("policy", ["msnag", "aggmsnag"])
def test_sgd_predictions_are_real_steps_without_new_gradients(policy: str, form: str) -> None:
    rng = random.Random(policy + form)
    torch.manual_seed(3)
    for _ in range(150):
        settings, done, n = drawn("sgd", rng), rng.choice([0, 1, 5]), rng.randint(1, 7)
        group, weight, memory = warmed("sgd", settings, rng, done, form)
        rates = [0.1 * rng.random() for _ in range(n)]
        partial = first = None
        if policy == "aggmsnag" and rng.random() < 0.7:
            total, scale = torch.randn(40) * 12, 1 / 32  # the sum of r micro-batches, and what it weighs in the step
            partial = Partial(total, -scale if group.maximize else scale)
            first = total * scale
        kept = weight.clone()
        ahead = predicted(policy, group, weight, memory, done, rates, partial)
        assert torch.equal(weight, kept)
        expected = really(group, weight, memory, done, rates, first)
        largest = torch.stack([weight.abs(), expected.abs(), (expected - weight).abs()]).amax(0)
        assert ((ahead - expected).abs() <= 4 * n * ulp(largest)).all(), (settings, n, done)


@pytest.mark.parametrize("name", ["adam", "adamw", "nadam"])
def test_adams_predictions_with_a_fading_second_moment_are_real_steps(name: str) -> None:
    rng = random.Random(name)
    torch.manual_seed(4)
    for _ in range(100):
        settings = {**drawn(name, rng), "eps": 1e-8}
        if not Group(name, ["w"], **settings).decays_weights_apart:
            settings["weight_decay"] = 0.0  # with decay inside, the second moment would see the decay
        group, weight, memory = warmed(name, settings, rng, done := rng.randint(1, 6))
        rates = [0.01 * rng.random() for _ in range(rng.randint(1, 7))]
        ahead = predicted(name, group, weight, memory, done, rates, decayed=True)
        expected = really(group, weight, memory, done, rates)
        moved = (expected - weight).abs()
        assert ((ahead - expected).abs() <= 4 * len(rates) * ulp(weight) + 1e-5 * moved).all(), settings


def test_how_far_the_frozen_second_moment_is_off() -> None:
    torch.manual_seed(5)
    for beta2, n, low, high in ((0.999, 1, 1e-4, 2e-3), (0.95, 7, 0.04, 0.12)):
        group, weight, memory = warmed("adam", {"betas": (0.9, beta2)}, random.Random(1), 3000)
        ahead = predicted("adam", group, weight.double(), as_double(memory), 3000, [0.01] * n)
        expected = really(group, weight.double(), as_double(memory), 3000, [0.01] * n)
        off = ((ahead - expected).norm() / (expected - weight).norm()).item()
        assert low < off < high


def as_double(memory: Memory) -> Memory:
    return Memory(
        **{key: value.double() if isinstance(value, torch.Tensor) else value for key, value in vars(memory).items()}
    )


@pytest.mark.parametrize("name", ["adam", "nadam"])
def test_decay_inside_the_gradient_is_foreseen(name: str) -> None:
    """The prediction with decay is much nearer to the real steps than the one that forgets it."""
    torch.manual_seed(6)
    rates = [0.01] * 4
    group, weight, memory = warmed(name, {"weight_decay": 0.3}, random.Random(1), 50)
    without = Group(name, ["w"])
    weight, memory = weight.double(), as_double(memory)
    expected = really(group, weight, memory, 50, rates)
    off = [(predicted(name, g, weight, memory, 50, rates, decayed=True) - expected).norm() for g in (group, without)]
    assert off[0] < 0.1 * off[1]


@pytest.mark.parametrize("name", ["adam", "adamw", "nadam"])
def test_nothing_is_predicted_before_the_first_step_of_adam(name: str) -> None:
    weight = torch.randn(5)
    assert torch.equal(predicted(name, Group(name, ["w"]), weight, Memory(), 0, [0.1, 0.1]), weight)


def test_aggregated_adam_takes_the_gradient_that_has_come() -> None:
    torch.manual_seed(7)
    group, weight, memory = warmed("adamw", {"weight_decay": 0.01}, random.Random(1), 100)
    gradient, rates = torch.randn(40).double() * 8, [0.01, 0.01]
    weight, memory = weight.double(), as_double(memory)
    expected = really(group, weight, memory, 100, rates, gradient / 8)
    off = [
        (predicted("aggmsnag", group, weight, memory, 100, rates, partial) - expected).norm()
        / (expected - weight).norm()
        for partial in (Partial(gradient, 1 / 8), None)
    ]
    assert off[0] < 0.02 < 0.2 < off[1]


def test_linear_prediction_by_hand() -> None:
    group, memory = Group("sgd", ["w"], momentum=0.9), Memory(velocity=torch.tensor([2.0]))
    weight = torch.tensor([10.0])
    assert predicted("lwp", group, weight, memory, 1, [0.5, 0.25]).item() == 10 - 0.75 * 2
    assert predicted("spectrain", group, weight, memory, 1, [0.5], distance=3).item() == 10 - 1.5 * 2
    assert predicted("msnag", group, weight, memory, 1, []).item() == 10
    sutskever = Group("sgd", ["w"], momentum=0.5, form="sutskever")
    assert predicted("lwp", sutskever, weight, memory, 1, [0.5, 0.25]).item() == 10 - 2 * 2
    assert predicted("spectrain", sutskever, weight, memory, 1, [0.5], distance=3).item() == 10 - 3 * 2
    assert predicted("msnag", sutskever, weight, memory, 1, [9.0, 9.0]).item() == 10 - (0.5 + 0.25) * 2
    with pytest.raises(ValueError):
        predicted("msnag", Group("adam", ["w"]), weight, memory, 1, [0.5])


def test_spikes_step_sums_to_the_momentum_it_replaces() -> None:
    """a·v + b·g: the first gradient's whole weight after D steps is what D+1 steps of momentum would have given it."""
    group, delay = Group("sgd", ["w"], momentum=0.5), 3
    a = 0.5**delay
    spike = Spike(a, (1 - a) / (1 - 0.5))
    memory, weight = Memory(), torch.zeros(1)
    weight = stepped(group, weight, torch.ones(1), memory, 1, 1.0, spike)
    assert weight.item() == -(1 + 0.5 + 0.25 + 0.125)
    weight = stepped(group, weight, torch.zeros(1), memory, 2, 1.0, spike)
    assert weight.item() == -(1 + 0.5 + 0.25 + 0.125 + 0.0625)
