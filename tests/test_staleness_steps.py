"""Policies that change the backward, the gradient or the step; who goes with whom; a policy written in Python."""

from __future__ import annotations

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

SIZE = 37


def flat(seed: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(SIZE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


class Stage:
    """SGD, or anything else of torch.optim, on one flat parameter, with a policy around its steps as the executor has it."""

    def __init__(
        self, policy: str, rule: str = "sgd", mean_staleness: float = 0.0, dtype: Any = torch.float32, **settings: Any
    ):
        options = {name: settings.pop(name) for name in ("annealing_steps", "pipemare_decay") if name in settings}
        self.policy = engine.make_policy(policy, **options)
        self.parameter = torch.nn.Parameter(flat(1, dtype))
        made = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}[rule]
        self.optimizer = made([self.parameter], foreach=False, **settings)
        self.mean_staleness, self.steps, self.rule, self.settings = mean_staleness, 0, rule, settings
        self.rates: list[float] = []

    def view(self) -> Any:
        state = self.optimizer.state[self.parameter]
        betas = self.settings.get("betas", (0.9, 0.999))
        same = {n: self.settings[n] for n in ("momentum", "weight_decay", "maximize") if n in self.settings}
        return engine.StageOptimizer(
            rule=engine.rule_of(self.rule),
            groups=[
                engine.StageGroup(begin=0, end=SIZE, rate=self.settings["lr"], beta1=betas[0], beta2=betas[1], **same)
            ],
            steps=self.steps,
            weights=self.parameter.detach(),
            velocity=state.get("momentum_buffer" if self.rule == "sgd" else "exp_avg"),
            second=state.get("exp_avg_sq"),
        )

    def step(self, gradient: Any, rate: float | None = None) -> None:
        before = self.parameter.detach().clone()
        step = engine.StageStep(
            rates=[rate or self.settings["lr"]], gradient=gradient, mean_staleness=self.mean_staleness
        )
        self.policy.before_step(self.view(), step)
        self.rates.append(step.rates[0])
        self.optimizer.param_groups[0]["lr"] = step.rates[0]
        self.parameter.grad = gradient.clone()
        self.optimizer.step()
        self.steps += 1
        if self.policy.needs(self.view()).weights_before_step:
            step.weights_before = before
        self.policy.after_step(self.view(), step)

    def backward_weights(self) -> Any:
        out = torch.full_like(self.parameter.detach(), math.nan)
        moment = engine.StageMoment(rates=[[self.settings["lr"]]], mean_staleness=self.mean_staleness)
        return out if self.policy.before_backward(self.view(), moment, out) else None


# pipemare


def test_pipemare_begins_with_a_small_rate_and_ends_with_the_schedulers() -> None:
    stage = Stage("pipemare", mean_staleness=3.5, lr=0.1, momentum=0.9, annealing_steps=4)
    for k in range(7):
        stage.step(flat(k))
    assert stage.rates == [0.1 / 3.5 ** (1 - min(k / 4, 1)) for k in range(7)]
    last = Stage("pipemare", mean_staleness=0.0, lr=0.1, momentum=0.9, annealing_steps=4)
    unannealed = Stage("pipemare", mean_staleness=3.5, lr=0.1, momentum=0.9)
    for stage in (last, unannealed):
        stage.step(flat(1))
        assert stage.rates == [0.1]


def test_pipemares_backward_goes_back_by_the_mean_change() -> None:
    stage = Stage("pipemare", mean_staleness=2.5, lr=0.1, momentum=0.9, pipemare_decay=0.2)
    assert stage.backward_weights() is None
    kept, delta = 0.2 ** (1 / 2.5), torch.zeros(SIZE)
    for k in range(5):
        before = stage.parameter.detach().clone()
        stage.step(flat(k))
        after = stage.parameter.detach()
        delta.mul_(kept).add_(torch.sub(after, before), alpha=1.0 - kept)
        assert torch.equal(stage.backward_weights(), torch.add(after, delta, alpha=-2.5))
    # A change that stays the same is undone wholly, after a while.
    for _ in range(60):
        stage.policy.after_step(
            stage.view(),
            engine.StageStep(rates=[0.1], weights_before=stage.parameter.detach() - 0.01, mean_staleness=2.5),
        )
    assert torch.allclose(stage.backward_weights(), stage.parameter.detach() - 2.5 * 0.01, atol=1e-5)
    fresh = Stage("pipemare", lr=0.1, momentum=0.9)
    fresh.step(flat(1))
    assert fresh.backward_weights() is None


# spike


@pytest.mark.parametrize("settings", [{}, {"weight_decay": 0.1}, {"weight_decay": 0.1, "maximize": True}], ids=str)
def test_spike_takes_a_and_b_of_the_rounded_delay(settings: dict[str, Any]) -> None:
    for mean, delay in ((0.49, 0), (2.5, 3), (3.4, 3)):
        stage = Stage("spike", mean_staleness=mean, lr=0.1, momentum=0.8, **settings)
        w, v = flat(1), None
        a = math.pow(0.8, delay)
        b = (1.0 - a) / (1.0 - 0.8)
        for k in range(4):
            gradient = flat(10 + k)
            stage.step(gradient)
            g = -gradient if settings.get("maximize") else gradient
            if settings:
                g = g.add(w, alpha=0.1)
            v = g.clone() if v is None else v.mul(0.8).add_(g)
            w = torch.add(w, v if delay == 0 else torch.mul(v, a).add_(g, alpha=b), alpha=-0.1)
            assert torch.equal(stage.parameter.detach(), w)


def test_spike_gives_a_gradient_at_once_what_momentum_would_have_given_it() -> None:
    """One gradient, then none: after D more steps a plain run is where spike is after its first one."""
    delay = 3
    late = Stage("spike", mean_staleness=delay, lr=0.1, momentum=0.8, dtype=torch.float64)
    plain = Stage("none", lr=0.1, momentum=0.8, dtype=torch.float64)
    gradient, nothing = flat(3, torch.float64), torch.zeros(SIZE, dtype=torch.float64)
    late.step(gradient)
    for k in range(delay + 1):
        plain.step(gradient if k == 0 else nothing)
    assert torch.allclose(late.parameter, plain.parameter, rtol=0, atol=1e-14)


# gap_aware


def gap_unit(rule: str, stage: Stage, history: list[Any], rates: list[float]) -> Any:
    """C by its definition: history has the velocities (SGD) or the changes of the weights (Adam)."""
    decay, t = (0.999 if rule == "sgd" else 0.99), len(history)
    rho = torch.zeros(SIZE)
    for x in history:
        rho.mul_(decay).addcmul_(x, x, value=1.0 - decay)
    unit = rho.sqrt().mul_(math.sqrt(1.0 / (1.0 - math.pow(decay, t)))).add_(1e-8)
    return unit.mul_(max(rates)) if rule == "sgd" else unit


@pytest.mark.parametrize(
    ("rule", "settings"),
    [
        ("sgd", {"lr": 0.1, "momentum": 0.9}),
        ("sgd", {"lr": 0.1, "weight_decay": 0.1}),
        ("adam", {"lr": 0.01, "betas": (0.9, 0.99)}),
    ],
    ids=str,
)
def test_gap_aware_divides_by_one_and_the_gap_in_steps(rule: str, settings: dict[str, Any]) -> None:
    stage, history = Stage("gap_aware", rule, **settings), []
    gradient = flat(50)
    stage.policy.after_backward(stage.view(), flat(51), gradient)
    assert torch.equal(gradient, flat(50))  # no step yet: there is nothing to measure the gap by
    for k, rate in enumerate([settings["lr"], settings["lr"] * 2, settings["lr"] / 2]):
        before = stage.parameter.detach().clone()
        stage.step(flat(60 + k), rate)
        if rule == "adam":
            history.append(torch.sub(stage.parameter.detach(), before))
        elif "momentum" in settings:
            history.append(stage.optimizer.state[stage.parameter]["momentum_buffer"].clone())
        else:
            history.append(flat(60 + k).add(before, alpha=0.1))
    now, unit = stage.parameter.detach().clone(), gap_unit(rule, stage, history, stage.rates)

    def scaled(used: Any) -> Any:
        gradient = flat(50)
        stage.policy.after_backward(stage.view(), used, gradient)
        return gradient

    assert torch.equal(scaled(now.clone()), flat(50))  # no gap, no change
    used = now + flat(70) * 0.03
    assert torch.equal(scaled(used), flat(50).div(torch.sub(now, used).abs_().div_(unit).add_(1.0)))
    once, twice = (flat(50).double() / scaled(now + flat(70) * gap).double() - 1 for gap in (0.5, 1.0))
    assert torch.allclose(twice, 2 * once, rtol=1e-3)
    assert torch.equal(stage.parameter.detach(), now)


def test_gap_aware_waits_for_the_first_rate_that_is_not_zero() -> None:
    stage = Stage("gap_aware", lr=0.0, momentum=0.9)
    stage.step(flat(2))
    gradient = flat(50)
    stage.policy.after_backward(stage.view(), flat(51), gradient)
    assert torch.equal(gradient, flat(50))


@pytest.mark.parametrize("policy", ["pipemare", "gap_aware", "gap_aware+spike"])
def test_what_a_policy_remembers_can_be_saved_and_loaded(policy: str) -> None:
    old, new, twin = (Stage(policy, mean_staleness=2.0, lr=0.1, momentum=0.9) for _ in range(3))
    for k in range(3):
        old.step(flat(k))
    state = old.policy.state()
    assert state
    twin.policy.load_state({name: tensor.clone() for name, tensor in state.items()})
    new.policy.load_state(state)
    fixed = engine.StageOptimizer(rule=engine.Rule.sgd, groups=old.view().groups, steps=3, weights=flat(9))

    def use(stage: Stage) -> Any:
        gradient, out = flat(50), torch.zeros(SIZE)
        stage.policy.after_backward(fixed, flat(51), gradient)
        stage.policy.before_backward(fixed, engine.StageMoment(rates=[[0.1]], mean_staleness=2.0), out)
        return torch.cat([gradient, out])

    kept = use(old)
    for k in range(3):
        old.step(flat(20 + k) * 3)  # that it goes on does not reach what was loaded from it
    assert not torch.equal(use(old), kept)
    assert torch.equal(use(new), kept)
    assert torch.equal(use(twin), kept)
    for stage in (new, twin):
        stage.step(flat(30))
    assert torch.equal(use(new), use(twin))
    assert not torch.equal(use(new), kept)


def test_gap_figures_tell_how_far_and_whether_it_helped() -> None:
    forward, backward = flat(1), flat(2)
    moved, error = engine.gap_figures(forward, forward, backward)
    assert moved == pytest.approx(float((backward.double() - forward.double()).norm()), rel=1e-6) and error == 1
    half_way = forward + (backward - forward) / 2
    assert engine.gap_figures(forward, half_way, backward)[1] == pytest.approx(0.5, rel=1e-5)
    assert engine.gap_figures(forward, backward, backward)[1] == 0
    assert engine.gap_figures(forward, backward, forward) == (0, 0)
    assert engine.cosine(forward, forward * 3) == pytest.approx(1, rel=1e-6)
    assert engine.cosine(forward, -forward) == pytest.approx(-1, rel=1e-6)
    expected = torch.nn.functional.cosine_similarity(forward.double(), backward.double(), dim=0)
    assert engine.cosine(forward, backward) == pytest.approx(float(expected), rel=1e-5)
    assert engine.cosine(forward, torch.zeros(SIZE)) == 0


def test_tensors_that_do_not_lie_flat_are_refused() -> None:
    group = engine.StageGroup(begin=0, end=SIZE, momentum=0.9)
    wide = torch.zeros(2 * SIZE)
    for wrong in (wide[::2], flat(1).double()):
        stage = engine.StageOptimizer(groups=[group], steps=1, weights=flat(1), velocity=wrong)
        moment = engine.StageMoment(staleness=1, rates=[[0.1]])
        with pytest.raises(ddip.ConfigError, match="of one type, on one device and contiguous"):
            engine.make_policy("msnag").before_forward(stage, moment, torch.zeros(SIZE))


# Combinations, names, matrix


def test_a_combination_needs_what_its_parts_need() -> None:
    stage = Stage("none", lr=0.1, momentum=0.9).view()
    fields = ("forward_weights", "backward_weights", "stash", "pending", "own_gradient", "weights_before_step", "step")

    def of(policy: str) -> set[str]:
        needs = engine.make_policy(policy).needs(stage)
        return {field for field in fields if getattr(needs, field)}

    assert of("none") == set()
    assert of("stash") == of("nesterov") == {"stash"}
    assert of("msnag") == {"forward_weights"}
    assert of("aggmsnag") == {"forward_weights", "pending"}
    assert of("spectrain") == {"forward_weights", "backward_weights"}
    assert of("spectrain+stash") == {"forward_weights", "stash"}
    assert of("pipemare") == {"backward_weights", "weights_before_step", "step"}
    assert of("spike+lwp") == {"forward_weights", "weights_before_step", "step"}
    assert of("gap_aware") == {"stash", "own_gradient", "step"}
    assert of("gap_aware+msnag") == {"forward_weights", "stash", "own_gradient", "step"}


def test_with_a_stash_spectrain_leaves_the_backward_alone() -> None:
    stage = Stage("spectrain", lr=0.1, momentum=0.9)
    stage.step(flat(1))
    moment = engine.StageMoment(rates=[[0.1]], stage=2, stages=4)
    out = torch.zeros(SIZE)
    assert stage.policy.before_backward(stage.view(), moment, out)
    assert not engine.make_policy("spectrain+stash").before_backward(stage.view(), moment, out)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("msnga", "policy \"msnga\": \"msnga\" is unknown, one of none, stash, .* was expected; did you mean msnag?"),
        ("msnag+stahs", "\"stahs\" is unknown.*; did you mean stash?"),
        ("", "policy \"\": \"\" is unknown"),
        ("msnag+", "\"\" is unknown"),
        ("msnag+lwp", "msnag and lwp both predict the forward's weights, one of them was expected"),
        ("stash+stash", "has stash twice"),
        ("none+stash", "none goes with no other"),
        ("pipemare+stash", "pipemare corrects the backward's weights, stash replaces them"),
        ("pipemare+gap_aware", "pipemare corrects the backward's weights, gap_aware replaces them"),
        ("spike+pipemare", "both change the step"),
        ("spectrain+pipemare", "both give the backward its weights"),
    ],
)  # fmt: skip
def test_a_policy_that_cannot_be_is_refused_in_one_line(name: str, message: str) -> None:
    with pytest.raises(ddip.ConfigError, match=message.replace("?", r"\?").replace("+", r"\+")) as caught:
        engine.make_policy(name)
    assert "\n" not in str(caught.value)


SYNCHRONOUS = ["seq", "gpipe", "1f1b", "interleaved", "zb1", "zbv"]
ASYNCHRONOUS = ["async_1f1b", "virtual_async"]


def test_every_cell_of_schedules_and_policies() -> None:
    policies = engine.policy_names()
    assert policies == [
        "none", "stash", "msnag", "aggmsnag", "spectrain", "lwp", "adam", "adamw", "nadam", "nesterov", "pipemare",
        "spike", "gap_aware",
    ]  # fmt: skip
    for policy in [*policies, "msnag+stash", "spike+lwp"]:
        for schedule in SYNCHRONOUS:
            fit, why = engine.schedule_takes(schedule, policy)
            expected = {"none": engine.Fit.valid, "spectrain": engine.Fit.refused}.get(policy, engine.Fit.no_op)
            assert fit == expected, (schedule, policy)
            assert (schedule in why and "no weights are stale" in why) or policy == "none"
        for schedule in ASYNCHRONOUS:
            assert engine.schedule_takes(schedule, policy) == (engine.Fit.valid, "")
        fit, why = engine.schedule_takes("2bw", policy)
        expected = {"none": engine.Fit.valid, "stash": engine.Fit.no_op}.get(policy, engine.Fit.refused)
        assert fit == expected and bool(why) == (policy != "none")
        fit, why = engine.schedule_takes("paci", policy)
        assert fit == (engine.Fit.valid if policy == "none" else engine.Fit.refused) and bool(why) == (policy != "none")
    with pytest.raises(ddip.ConfigError, match='schedule "gpip" is unknown, one of seq, .*; did you mean gpipe'):
        engine.schedule_takes("gpip", "none")


KNOWS = {
    "sgd": {"none", "stash", "msnag", "aggmsnag", "spectrain", "lwp", "pipemare", "spike", "gap_aware"},
    "sutskever": {"none", "stash", "msnag", "aggmsnag", "spectrain", "lwp", "pipemare", "gap_aware"},
    "adam": {"none", "stash", "aggmsnag", "adam", "pipemare", "gap_aware"},
    "adamw": {"none", "stash", "aggmsnag", "adamw", "pipemare", "gap_aware"},
    "nadam": {"none", "stash", "aggmsnag", "nadam", "nesterov", "pipemare", "gap_aware"},
    "rmsprop": {"none", "stash", "pipemare"},
}


@pytest.mark.parametrize("rule", KNOWS)
def test_a_policy_takes_the_optimizers_that_it_knows(rule: str) -> None:
    group = engine.StageGroup(begin=0, end=SIZE, momentum=0.9)
    optimizer = engine.StageOptimizer(rule=engine.rule_of(rule), groups=[group])
    for policy in engine.policy_names():
        fit, why = engine.optimizer_takes(optimizer, policy)
        assert fit == (engine.Fit.valid if policy in KNOWS[rule] else engine.Fit.refused), policy
        assert (policy in why) == (policy not in KNOWS[rule])
    assert engine.auto_policy(optimizer.rule) in KNOWS[rule]


def test_settings_that_a_policy_cannot_serve_are_refused_or_noted() -> None:
    def verdict(policy: str, rule: str = "sgd", *more: Any, **settings: Any) -> Any:
        groups = [engine.StageGroup(begin=0, end=SIZE, **settings), *more]
        return engine.optimizer_takes(engine.StageOptimizer(rule=engine.rule_of(rule), groups=groups), policy)

    assert verdict("adam", "Adam", amsgrad=True) == (engine.Fit.refused, "adam does not know amsgrad")
    assert verdict("stash", "Adam", amsgrad=True)[0] == engine.Fit.valid
    assert verdict("msnag")[0] == engine.Fit.no_op
    assert "without momentum" in verdict("msnag")[1]
    assert verdict("msnag", weight_decay=0.1)[0] == engine.Fit.valid
    assert verdict("msnag", "sgd", engine.StageGroup(begin=0, end=SIZE, momentum=0.9))[0] == engine.Fit.valid
    assert verdict("msnag+stash")[0] == engine.Fit.valid
    assert verdict("spike")[0] == engine.Fit.refused
    assert verdict("spike", momentum=0.9, nesterov=True)[0] == engine.Fit.refused
    assert verdict("spike", momentum=0.9, dampening=0.1)[0] == engine.Fit.refused
    assert verdict("spike+lwp", momentum=0.9)[0] == engine.Fit.valid
    # One group that it cannot serve is enough.
    assert verdict("spike", "sgd", engine.StageGroup(begin=0, end=SIZE), momentum=0.9)[0] == engine.Fit.refused


def test_auto_chooses_by_the_optimizer() -> None:
    chosen = {rule: engine.auto_policy(engine.rule_of(rule)) for rule in ("SGD", "Adam", "AdamW", "NAdam", "RMSprop")}
    assert chosen == {"SGD": "msnag", "Adam": "adam", "AdamW": "adamw", "NAdam": "nadam", "RMSprop": "stash"}


def test_nesterovs_beta_grows_with_the_versions() -> None:
    assert engine.nesterov_beta1(0.9, 1, 8) == 0.9
    assert engine.nesterov_beta1(0.9, 5, 8) == 0.9 + 4 * (0.99 - 0.9) / 8
    # A window wider than the textbook's keeps more versions than there are stages; a beta of 1 would never forget.
    assert [engine.nesterov_beta1(0.9, versions, 2) for versions in (3, 9)] == [0.99, 0.99]


# In Python


class HalfWay(engine.StalenessPolicy):  # type: ignore[misc]
    """A policy of one's own: half of the way that momentum would go, and half of the rate."""

    def before_forward(self, optimizer: Any, moment: Any, out: Any) -> bool:
        if optimizer.velocity is None:
            return False
        torch.add(optimizer.weights, optimizer.velocity, alpha=-0.5 * sum(moment.rates[0]), out=out)
        return True

    def before_step(self, optimizer: Any, step: Any) -> None:
        step.rates = [rate / 2 for rate in step.rates]


def test_a_policy_is_one_class_in_python() -> None:
    stage = Stage("none", lr=0.1, momentum=0.9)
    stage.policy = HalfWay()
    base = engine.StalenessPolicy  # as C++ calls it: through the base class
    needs = base.needs(stage.policy, stage.view())
    assert needs.forward_weights and needs.step and not (needs.stash or needs.backward_weights or needs.own_gradient)
    out, moment = torch.zeros(SIZE), engine.StageMoment(staleness=2, rates=[[0.1, 0.2]])
    assert not base.before_forward(stage.policy, stage.view(), moment, out)
    step = engine.StageStep(rates=[0.1])
    base.before_step(stage.policy, stage.view(), step)
    assert step.rates == [0.05]
    stage.step(flat(2))
    assert base.before_forward(stage.policy, stage.view(), moment, out)
    velocity = stage.view().velocity
    assert torch.equal(out, torch.add(stage.parameter.detach(), velocity, alpha=-0.5 * (0.1 + 0.2)))
    assert not base.before_backward(stage.policy, stage.view(), moment, out)


def test_an_error_in_a_policy_of_python_comes_out() -> None:
    class Broken(engine.StalenessPolicy):  # type: ignore[misc]
        def after_step(self, optimizer: Any, step: Any) -> None:
            raise KeyError("mine")

    stage = Stage("none", lr=0.1)
    with pytest.raises(KeyError, match="mine"):
        engine.StalenessPolicy.after_step(Broken(), stage.view(), engine.StageStep(rates=[0.1]))
