"""What each staleness policy computes, beside torch.optim's own steps and the formulas written out in torch."""

from __future__ import annotations

import copy
import itertools
import math
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
if (Path(__file__).parent.parent / ".setup" / "without_engine").exists():
    pytest.skip(
        "make setup left the data plane out: it does not compile with this machine's torch", allow_module_level=True
    )

import ddip  # noqa: E402
from ddip import _engine as engine  # noqa: E402

SIZES = [5, 40, 1000]  # two borders between groups that no vector register meets
RULES = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "nadam": torch.optim.NAdam,
}
# The optimizer each policy is tried with, and the settings of its groups.
SGD = {"lr": 0.1, "momentum": 0.9}
FITTING = [
    ("none", "sgd", SGD),
    ("stash", "sgd", SGD),
    ("msnag", "sgd", SGD),
    ("msnag", "sgd", {**SGD, "weight_decay": 0.01}),
    ("msnag+stash", "sgd", SGD),
    ("aggmsnag", "sgd", {**SGD, "weight_decay": 0.01}),
    ("aggmsnag", "adamw", {"lr": 0.01, "weight_decay": 0.1}),
    ("aggmsnag", "nadam", {"lr": 0.01, "weight_decay": 0.1}),
    ("lwp", "sgd", SGD),
    ("spectrain", "sgd", SGD),
    ("adam", "adam", {"lr": 0.01}),
    ("adam", "adam", {"lr": 0.01, "weight_decay": 0.1}),
    ("adamw", "adamw", {"lr": 0.01, "weight_decay": 0.1}),
    ("nadam", "nadam", {"lr": 0.01}),
    ("nesterov", "nadam", {"lr": 0.01}),
    ("pipemare", "sgd", SGD),
    ("spike", "sgd", SGD),
    ("spike+lwp", "sgd", SGD),
    ("gap_aware", "sgd", SGD),
    ("gap_aware", "adam", {"lr": 0.01}),
    ("gap_aware+msnag", "sgd", SGD),
]


@pytest.fixture(autouse=True)
def few_threads() -> Any:
    """Small tensors gain nothing from threads, and on a busy machine wait for them; the large ones ask for two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Lab:
    """A real optimizer of torch's over one parameter per group, after some steps with random gradients."""

    def __init__(self, rule: str, steps: int, dtype: Any = torch.float64, sizes: list[int] = SIZES, **settings: Any):
        generator = torch.Generator().manual_seed(7)
        self.random = lambda size: torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)
        self.rule = rule
        self.parameters = [torch.nn.Parameter(self.random(size)) for size in sizes]
        # Each group has a rate of its own.
        rates = [settings["lr"] / (1 + index) for index in range(len(sizes))]
        groups = [{"params": [p], "lr": rate} for p, rate in zip(self.parameters, rates, strict=True)]
        self.optimizer = RULES[rule](groups, foreach=False, **settings)
        for _ in range(steps):
            self.step([self.random(size) for size in sizes])

    def step(self, gradients: list[Any], rates: list[float] | None = None) -> None:
        for index, (parameter, gradient) in enumerate(zip(self.parameters, gradients, strict=True)):
            parameter.grad = gradient.clone()
            if rates:
                self.optimizer.param_groups[index]["lr"] = rates[index]
        self.optimizer.step()

    def ahead(self, rates: list[list[float]], first: list[Any] | None = None) -> Any:
        """The weights after a step with each of the rates: the first with these gradients, the others with none."""
        future = copy.deepcopy(self)
        for k in range(len(rates[0])):
            nothing = [torch.zeros_like(parameter) for parameter in self.parameters]
            future.step(first if first and k == 0 else nothing, [of_group[k] for of_group in rates])
        return future.flat()

    def flat(self) -> Any:
        return torch.cat([parameter.detach() for parameter in self.parameters])

    def state(self, name: str) -> Any:
        parts = [self.optimizer.state[parameter].get(name) for parameter in self.parameters]
        return None if any(part is None for part in parts) else torch.cat(parts)

    def stage(self) -> Any:
        groups, begin = [], 0
        for parameter, settings in zip(self.parameters, self.optimizer.param_groups, strict=True):
            betas = settings.get("betas", (0.9, 0.999))
            same = {name: settings[name] for name in ("dampening", "nesterov", "momentum", "eps") if name in settings}
            same |= {n: settings[n] for n in ("weight_decay", "maximize", "momentum_decay") if n in settings}
            if self.rule == "nadam":
                same["decoupled_weight_decay"] = settings["decoupled_weight_decay"]
            end = begin + parameter.numel()
            groups.append(
                engine.StageGroup(begin=begin, end=end, rate=settings["lr"], beta1=betas[0], beta2=betas[1], **same)
            )
            begin = end
        state = self.optimizer.state[self.parameters[0]]
        return engine.StageOptimizer(
            rule=engine.rule_of(self.rule),
            groups=groups,
            steps=int(state["step"]) if "step" in state else getattr(self, "steps_done", 0),
            mu_products=[float(state["mu_product"])] * len(groups) if "mu_product" in state else [],
            weights=self.flat(),
            velocity=self.state("momentum_buffer" if self.rule == "sgd" else "exp_avg"),
            second=self.state("exp_avg_sq"),
        )

    def rates(self, n: int, change: float = 0.8) -> list[list[float]]:
        """As a scheduler would change them; at least one each."""
        return [[g["lr"] * change**k for k in range(max(n, 1))] for g in self.optimizer.param_groups]


def predicted(policy: Any, stage: Any, moment: Any, *, backward: bool = False) -> Any:
    policy = engine.make_policy(policy) if isinstance(policy, str) else policy
    out = torch.full_like(stage.weights, math.nan)
    used = (policy.before_backward if backward else policy.before_forward)(stage, moment, out)
    return out if used else None


def ulps(a: Any, b: Any, *scales: Any) -> float:
    """The largest difference, in units in the last place of the largest number that took part."""
    largest = torch.stack([a.abs(), b.abs(), *[s.abs() for s in scales]]).amax(0)
    unit = torch.nextafter(largest, torch.full_like(largest, math.inf)) - largest
    return float(((a - b).abs() / unit).max())


def same_bits(a: Any, b: Any) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


# Momentum: n real steps


SGD_SETTINGS = [
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True},
    {"momentum": 0.9, "weight_decay": 0.05},
    {"momentum": 0.9, "weight_decay": 0.05, "nesterov": True, "maximize": True},
    {"momentum": 0.5, "dampening": 0.3, "weight_decay": 0.05},
    {"momentum": 0.5, "dampening": 0.3, "maximize": True},
    {"weight_decay": 0.05},
]


@pytest.mark.parametrize("settings", SGD_SETTINGS, ids=str)
@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_msnag_is_n_real_steps_without_gradients(settings: dict[str, Any], n: int, dtype: Any) -> None:
    lab = Lab("sgd", 5, dtype, lr=0.1, **settings)
    moment = engine.StageMoment(staleness=n, rates=lab.rates(n))
    found = predicted("msnag", lab.stage(), moment)
    assert not torch.equal(found, lab.flat())
    assert ulps(found, lab.ahead(moment.rates), lab.flat()) <= 4 * n


@pytest.mark.parametrize("settings", [*SGD_SETTINGS, {}], ids=str)
@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("steps", [0, 1, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_aggmsnag_is_n_real_steps_of_which_the_first_has_what_is_there(
    settings: dict[str, Any], n: int, steps: int, dtype: Any
) -> None:
    lab = Lab("sgd", steps, dtype, lr=0.1, **settings)
    # Three of four micro-batches, 24 samples and a loss scale of 16: a raw sum, as the executor has it.
    parts = [lab.random(size) * 100 for size in SIZES]
    moment = engine.StageMoment(
        staleness=n, rates=lab.rates(n), pending=torch.cat(parts), pending_micro_batches=3, pending_samples=24,
        accumulate=4, loss_scale=16,
    )  # fmt: skip
    gradient = [part * 3 / (4 * 24) / 16 for part in parts]
    real = lab.ahead(moment.rates, gradient)
    found = predicted("aggmsnag", lab.stage(), moment)
    assert ulps(found, real, lab.flat(), torch.cat(gradient)) <= 4 * n + 4
    without = predicted("aggmsnag", lab.stage(), engine.StageMoment(staleness=n, rates=lab.rates(n)))
    assert without is None or not torch.equal(without, found)


def test_aggmsnag_without_a_part_and_msnag_are_the_same() -> None:
    for settings in SGD_SETTINGS:
        lab = Lab("sgd", 5, lr=0.1, **settings)
        moment = engine.StageMoment(staleness=3, rates=lab.rates(3))
        apart = predicted("msnag", lab.stage(), moment) - predicted("aggmsnag", lab.stage(), moment)
        assert apart.abs().max() < 1e-14


def sutskever_steps(w: Any, v: Any, gradients: list[Any], rates: list[float], g: Any) -> Any:
    for gradient, rate in zip(gradients, rates, strict=True):
        gradient = (-gradient if g.maximize else gradient) + g.weight_decay * w
        v = rate * gradient if v is None else g.momentum * v + rate * (1 - g.dampening) * gradient
        w = w - (rate * gradient + g.momentum * v if g.nesterov else v)
    return w


@pytest.mark.parametrize("settings", SGD_SETTINGS[:-1], ids=str)
@pytest.mark.parametrize("n", [1, 2, 7])
def test_sutskevers_form_is_n_of_its_own_steps(settings: dict[str, Any], n: int) -> None:
    w, v, phi = (torch.randn(50, dtype=torch.float64) for _ in range(3))
    group = engine.StageGroup(begin=0, end=50, **settings)
    stage = engine.StageOptimizer(rule=engine.Rule.sutskever, groups=[group], steps=3, weights=w, velocity=v)
    rates = [0.1 * 0.8**k for k in range(n)]
    moment = engine.StageMoment(staleness=n, rates=[rates])
    none = [torch.zeros_like(w)] * n
    assert torch.allclose(
        predicted("msnag", stage, moment), sutskever_steps(w, v, none, rates, group), rtol=0, atol=1e-13
    )
    moment = engine.StageMoment(staleness=n, rates=[rates], pending=phi, pending_micro_batches=1, pending_samples=1)
    for first in (v, None):
        stage.velocity = first
        real = sutskever_steps(w, first, [phi, *none[1:]], rates, group)
        assert torch.allclose(predicted("aggmsnag", stage, moment), real, rtol=0, atol=1e-13)


def test_lwp_and_spectrain_are_as_defined() -> None:
    lab = Lab("sgd", 4, lr=0.1, momentum=0.9)
    stage, n = lab.stage(), 3
    rates = lab.rates(n)

    def by(steps: list[float]) -> Any:
        parts = torch.split(stage.velocity, SIZES)
        return stage.weights - torch.cat([part * step for part, step in zip(parts, steps, strict=True)])

    moment = engine.StageMoment(staleness=n, rates=rates)
    assert torch.allclose(predicted("lwp", stage, moment), by([sum(of) for of in rates]), rtol=0, atol=1e-14)
    distances = {(4, 0): (3, 0), (4, 1): (2, 0), (4, 2): (2, 1), (4, 3): (1, 1), (8, 5): (4, 2), (2, 1): (0, 0)}
    for ((stages, number), (forward, backward)), se in itertools.product(distances.items(), (1, 2)):
        # The staleness at hand does not matter, nor does a later rate.
        moment = engine.StageMoment(staleness=0, rates=rates, stage=number, stages=stages, accumulate=se)
        for s, is_backward in ((forward, False), (backward, True)):
            found = predicted("spectrain", stage, moment, backward=is_backward)
            if s == 0:
                assert found is None
            else:
                expected = by([of[0] * math.ceil(s / se) for of in rates])
                assert torch.allclose(found, expected, rtol=0, atol=1e-14)
    stage.rule = engine.Rule.sutskever
    moment = engine.StageMoment(staleness=n, rates=rates, stage=0, stages=4)
    for policy in ("lwp", "spectrain"):
        assert torch.allclose(predicted(policy, stage, moment), by([3.0] * 3), rtol=0, atol=1e-14)


# Adam and its kin


ADAPTIVE = [
    ("adam", {"lr": 0.01}),
    ("adam", {"lr": 0.01, "weight_decay": 0.1}),
    ("adam", {"lr": 0.01, "weight_decay": 0.1, "maximize": True, "betas": (0.8, 0.95)}),
    ("adamw", {"lr": 0.01, "weight_decay": 0.3}),
    ("adamw", {"lr": 0.01, "weight_decay": 0.0, "eps": 1e-3}),
    ("nadam", {"lr": 0.01}),
    ("nadam", {"lr": 0.01, "weight_decay": 0.3, "decoupled_weight_decay": True}),
    ("nadam", {"lr": 0.01, "weight_decay": 0.1, "momentum_decay": 0.1}),
]


@pytest.mark.parametrize(("rule", "settings"), ADAPTIVE, ids=str)
@pytest.mark.parametrize("n", [1, 2, 7])
def test_adam_with_a_decaying_second_moment_is_n_real_steps_without_gradients(
    rule: str, settings: dict[str, Any], n: int
) -> None:
    lab = Lab(rule, 5, **settings)
    moment = engine.StageMoment(staleness=n, rates=lab.rates(n))
    # L2 decay is a gradient, which the second moment does not see: then it is near and not equal.
    through_moments = settings.get("weight_decay", 0) and not (
        rule == "adamw" or settings.get("decoupled_weight_decay")
    )
    found = predicted(engine.make_policy(rule, second_decays=True), lab.stage(), moment)
    real, moved = lab.ahead(moment.rates), lab.ahead(moment.rates) - lab.flat()
    near = 0.1 if through_moments else 1e-6 if rule == "nadam" else 1e-12  # torch has NAdam's Π μ in fp32
    assert (found - real).norm() <= near * moved.norm()


@pytest.mark.parametrize(
    ("beta2", "steps", "apart"), [(0.999, 10_000, 0.002), (0.999, 200, 0.015), (0.95, 10_000, 0.11)]
)
def test_a_second_moment_that_stays_is_only_a_little_off(beta2: float, steps: int, apart: float) -> None:
    lab = Lab("adam", 5, lr=0.01, betas=(0.9, beta2))
    stage, moment = lab.stage(), engine.StageMoment(staleness=7, rates=lab.rates(7, 1.0))
    stage.steps = steps
    real = predicted(engine.make_policy("adam", second_decays=True), stage, moment)
    error = float((predicted("adam", stage, moment) - real).norm() / (real - lab.flat()).norm())
    assert apart / 3 < error < apart


def mu(i: int, g: Any) -> float:
    return float(g.beta1 * (1.0 - 0.5 * math.pow(0.96, i * g.momentum_decay)))


def adaptive_by_formula(lab: Lab, moment: Any, *, with_pending: bool) -> Any:
    """The prediction written out in torch's operations, in their order: to be met bit by bit."""
    stage, parts = lab.stage(), []
    for index, g in enumerate(stage.groups):
        w, m, u = (t[g.begin : g.end].clone() for t in (stage.weights, stage.velocity, stage.second))
        t, rates, product = stage.steps, moment.rates[index], (stage.mu_products or [1.0] * (index + 1))[index]
        s = 0.0
        if moment.pending is not None:
            phi = moment.pending[g.begin : g.end]
            s = (-1.0 if g.maximize else 1.0) * moment.pending_micro_batches
            s = s / (moment.accumulate * moment.pending_samples)
        denominator = u.double().sqrt().float().mul_(math.sqrt(1.0 / (1.0 - math.pow(g.beta2, t)))).add_(g.eps)
        decoupled = lab.rule == "adamw" or (lab.rule == "nadam" and g.decoupled_weight_decay)
        factors, gradient_factors = [], []
        for k in range(1, moment.staleness + 1):
            if lab.rule == "nadam":
                product = product * mu(t + k, g)
                factors.append(rates[k - 1] * mu(t + k + 1, g) / (1.0 - product * mu(t + k + 1, g)))
                gradient_factors.append(rates[k - 1] * (1.0 - mu(t + k, g)) / (1.0 - product))
            else:
                factors.append(rates[k - 1] / (1.0 - math.pow(g.beta1, t + k)))
        if g.weight_decay and not decoupled:
            for k, factor in enumerate(factors, 1):
                before = w.clone()
                m.mul_(g.beta1).add_(before, alpha=(1.0 - g.beta1) * g.weight_decay)
                if with_pending and k == 1 and s:
                    m.add_(phi, alpha=(1.0 - g.beta1) * s)
                if lab.rule == "nadam":
                    w.addcdiv_(before, denominator, value=-(g.weight_decay * gradient_factors[k - 1]))
                w.addcdiv_(m, denominator, value=-factor)
            parts.append(w)
            continue
        if with_pending:
            m = torch.mul(m, g.beta1)
            if s:
                m.add_(phi, alpha=(1.0 - g.beta1) * s)
        kept, moved, power = 1.0, 0.0, 1.0
        for k, factor in enumerate(factors, 1):
            f = 1.0 - rates[k - 1] * g.weight_decay if decoupled else 1.0
            kept = kept * f
            if not with_pending or k > 1:
                power = power * g.beta1
            moved = moved * f + factor * power
        parts.append(torch.mul(w, kept).addcdiv_(m, denominator, value=-moved))
    return torch.cat(parts)


# Below, at and above a register and a thread's share; groups begin in mid-register.
ODD_SIZES = [[1, 7, 8], [0, 9, 2], [9, 31, 1003], [40_003, 3, 5]]
LARGE = [1_100_007, 11]  # written past the caches


@pytest.mark.parametrize("sizes", ODD_SIZES, ids=str)
@pytest.mark.parametrize(("rule", "settings"), ADAPTIVE, ids=str)
@pytest.mark.parametrize("policy", ["own", "aggmsnag"])
def test_adam_predictions_have_the_bits_of_the_stated_operations(
    rule: str, settings: dict[str, Any], policy: str, sizes: list[int]
) -> None:
    lab = Lab(rule, 3, torch.float32, sizes, **settings)
    assert engine.runs_fused(lab.flat()) or torch.backends.cpu.get_cpu_capability() == "DEFAULT"
    parts = torch.cat([lab.random(size) for size in sizes])
    for pending in (None, parts):
        moment = engine.StageMoment(staleness=3, rates=lab.rates(3), pending=pending, pending_micro_batches=3)
        moment.pending_samples, moment.accumulate = 24, 4
        found = predicted(rule if policy == "own" else policy, lab.stage(), moment)
        assert same_bits(found, adaptive_by_formula(lab, moment, with_pending=policy == "aggmsnag"))


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize(
    ("policy", "rule"), [("adam", "adam"), ("adamw", "adamw"), ("nadam", "nadam"), ("aggmsnag", "nadam")]
)
def test_large_adam_predictions_have_the_same_bits_too(policy: str, rule: str, decay: float) -> None:
    torch.set_num_threads(2)
    lab = Lab(rule, 1, torch.float32, LARGE, lr=0.01, weight_decay=decay)
    moment = engine.StageMoment(staleness=2, rates=lab.rates(2), pending=lab.flat(), pending_micro_batches=1)
    moment.pending_samples, moment.accumulate = 3, 2
    found = predicted(policy, lab.stage(), moment)
    assert same_bits(found, adaptive_by_formula(lab, moment, with_pending=policy == "aggmsnag"))


def linear_by_formula(stage: Any, moment: Any, group: Any, rates: list[float], policy: str) -> Any:
    w, v = stage.weights[group.begin : group.end], stage.velocity[group.begin : group.end]
    if policy == "lwp":
        return torch.add(w, v, alpha=-sum(rates, 0.0))
    if policy == "msnag" and not group.weight_decay:
        power, total = 1.0, 0.0
        for rate in rates:
            power = power * group.momentum
            total = total + rate * (power * group.momentum if group.nesterov else power)
        return torch.add(w, v, alpha=-total)
    of_w, of_v, s = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], 0.0
    if policy == "aggmsnag" and moment.pending is not None:
        s = (-1.0 if group.maximize else 1.0) * moment.pending_micro_batches
        s = s / (moment.accumulate * moment.pending_samples)
    for i, rate in enumerate(rates):
        d = [group.weight_decay * x for x in of_w]
        if i == 0:
            d[2] = d[2] + s
        of_v = [group.momentum * x + (1 - group.dampening) * y for x, y in zip(of_v, d, strict=True)]
        x = [y + group.momentum * z for y, z in zip(d, of_v, strict=True)] if group.nesterov else of_v
        of_w = [a - rate * b for a, b in zip(of_w, x, strict=True)]
    found = torch.mul(w, of_w[0]).add_(v, alpha=of_w[1])
    return found.add_(moment.pending[group.begin : group.end], alpha=of_w[2]) if s else found


@pytest.mark.parametrize("sizes", ODD_SIZES, ids=str)
@pytest.mark.parametrize("settings", SGD_SETTINGS[:-1], ids=str)
@pytest.mark.parametrize("policy", ["msnag", "aggmsnag", "lwp"])
def test_momentum_predictions_have_the_bits_of_the_stated_operations(
    settings: dict[str, Any], policy: str, sizes: list[int]
) -> None:
    lab = Lab("sgd", 3, torch.float32, sizes, lr=0.1, **settings)
    stage = lab.stage()
    for pending in (None, torch.cat([lab.random(size) for size in sizes])):
        moment = engine.StageMoment(staleness=3, rates=lab.rates(3), pending=pending, pending_micro_batches=3)
        moment.pending_samples, moment.accumulate = 24, 4
        expected = [
            linear_by_formula(stage, moment, g, of, policy) for g, of in zip(stage.groups, moment.rates, strict=True)
        ]
        assert same_bits(predicted(policy, stage, moment), torch.cat(expected))


@pytest.mark.parametrize("policy", ["msnag", "aggmsnag"])
def test_large_momentum_predictions_have_the_same_bits_too(policy: str) -> None:
    torch.set_num_threads(2)
    lab = Lab("sgd", 1, torch.float32, LARGE, lr=0.1, momentum=0.9)
    stage = lab.stage()
    moment = engine.StageMoment(staleness=2, rates=lab.rates(2), pending=lab.flat(), pending_micro_batches=1)
    moment.pending_samples, moment.accumulate = 3, 2
    expected = [
        linear_by_formula(stage, moment, g, of, policy) for g, of in zip(stage.groups, moment.rates, strict=True)
    ]
    assert same_bits(predicted(policy, stage, moment), torch.cat(expected))


# What every policy keeps


@pytest.mark.parametrize(("policy", "rule", "settings"), FITTING, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nothing_but_the_result_is_written(policy: str, rule: str, settings: dict[str, Any], dtype: Any) -> None:
    lab = Lab(rule, 3, dtype, **settings)
    made, stage = engine.make_policy(policy), lab.stage()
    needs = made.needs(stage)
    before = lab.flat()
    gradient = torch.randn_like(before)
    made.after_step(
        stage, engine.StageStep(rates=[0.1] * 3, gradient=gradient, weights_before=before + 0.1, mean_staleness=2.0)
    )
    tensors = {"weights": stage.weights, "velocity": stage.velocity, "second": stage.second, "gradient": gradient}
    copies = {name: tensor.clone() for name, tensor in tensors.items() if tensor is not None}
    moment = engine.StageMoment(
        staleness=2, rates=lab.rates(2), pending=gradient, pending_micro_batches=1, pending_samples=2, stage=1, stages=4,
        accumulate=2, mean_staleness=2.0,
    )  # fmt: skip
    forward, backward = predicted(made, stage, moment), predicted(made, stage, moment, backward=True)
    assert (forward is not None) == needs.forward_weights
    assert backward is None or needs.backward_weights
    for found in (forward, backward):
        assert found is None or bool(torch.isfinite(found).all())
    for name, kept in copies.items():
        assert torch.equal(tensors[name], kept), name


@pytest.mark.parametrize(("policy", "rule", "settings"), FITTING, ids=str)
def test_nothing_is_predicted_for_a_micro_batch_that_is_not_stale(
    policy: str, rule: str, settings: dict[str, Any]
) -> None:
    lab = Lab(rule, 3, **settings)
    moment = engine.StageMoment(staleness=0, rates=lab.rates(0), stage=3, stages=4)
    if policy == "spectrain":
        moment.stage, moment.stages = 1, 2  # by distance, whatever the staleness: none only at the end of two
    assert predicted(policy, lab.stage(), moment) is None


@pytest.mark.parametrize(("policy", "rule", "settings"), FITTING, ids=str)
def test_nothing_is_predicted_before_the_first_step(policy: str, rule: str, settings: dict[str, Any]) -> None:
    lab = Lab(rule, 0, **{**settings, "weight_decay": 0.0})
    moment = engine.StageMoment(staleness=2, rates=lab.rates(2), stage=0, stages=4)
    assert predicted(policy, lab.stage(), moment) is None
    assert predicted(policy, lab.stage(), moment, backward=True) is None


@pytest.mark.parametrize("policy", ["msnag", "aggmsnag", "lwp", "adam", "adamw", "nadam"])
def test_rates_are_the_schedulers_and_one_too_few_is_said(policy: str) -> None:
    rule = policy if policy in RULES else "sgd"
    lab = Lab(rule, 3, lr=0.01, **({"momentum": 0.9} if rule == "sgd" else {}))
    rates = lab.rates(3, 1.0)
    plain = predicted(policy, lab.stage(), engine.StageMoment(staleness=3, rates=rates))
    for k in range(3):
        other = [[rate * (2 if index == k else 1) for index, rate in enumerate(of)] for of in rates]
        changed = predicted(policy, lab.stage(), engine.StageMoment(staleness=3, rates=other))
        assert float((changed - plain).abs().min()) > 0
    with pytest.raises(ddip.ConfigError, match="staleness 4: the rate of step 4 from now was expected for group 0"):
        predicted(policy, lab.stage(), engine.StageMoment(staleness=4, rates=rates))
