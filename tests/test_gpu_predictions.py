"""Predictions of weights on a real GPU, by our kernels: beside the stated operations of torch there, and the processor's.

The same bits are meant as of torch's operations on the GPU, but which products torch's kernels contract is their
compiler's choice: so two units in the last place are allowed, of the largest number that took part. Four beside the
processor, whose addcdiv multiplies before it divides (3 were seen between the two orders, on the processor).
"""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
DEVICE = "cuda"
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")

import test_staleness as by_hand  # noqa: E402

from ddip import _engine as engine  # noqa: E402

MOST_ULPS, MOST_ULPS_FROM_PROCESSOR = 2, 4
# Where each tensor begins, in floats after a multiple of 16 bytes: together, and each elsewhere.
PLACES = [(0, 0, 0, 0, 0), (1, 1, 1, 1, 1), (3, 3, 3, 3, 3), (0, 1, 2, 3, 1)]
SIZES = [[1, 7, 8], [0, 9, 2], [4, 1024], [1_000_003, 3, 5]]


def placed(tensor: Any, place: int) -> Any:
    if tensor is None:
        return None
    whole = torch.full((tensor.numel() + 8,), 77.0, dtype=tensor.dtype, device=DEVICE)
    part = whole[4 + place : 4 + place + tensor.numel()]
    return part.copy_(tensor)


def on_gpu(stage: Any, places: tuple[int, ...]) -> Any:
    return engine.StageOptimizer(
        rule=stage.rule,
        groups=stage.groups,
        steps=stage.steps,
        mu_products=stage.mu_products,
        weights=placed(stage.weights, places[0]),
        velocity=placed(stage.velocity, places[1]),
        second=placed(stage.second, places[2]),
    )


def moment_of(lab: Any, pending: Any) -> Any:
    moment = engine.StageMoment(staleness=3, rates=lab.rates(3), pending=pending, pending_micro_batches=3)
    moment.pending_samples, moment.accumulate = 24, 4
    return moment


def predicted(policy: Any, stage: Any, moment: Any, place: int) -> Any:
    out = placed(torch.full_like(stage.weights, float("nan")), place)
    assert policy.before_forward(stage, moment, out)
    around = torch.cat([out._base[: 4 + place], out._base[4 + place + out.numel() :]])
    assert bool((around == 77).all()), "it wrote outside its tensor"
    return out


def near(found: Any, expected: Any, *scales: Any) -> None:
    most = MOST_ULPS if expected.device == found.device else MOST_ULPS_FROM_PROCESSOR
    assert by_hand.ulps(found.cpu(), expected.cpu(), *[scale.cpu() for scale in scales]) <= most


def test_it_is_our_kernels_that_run() -> None:
    assert engine.why_unfused(torch.ones(5, device=DEVICE)) == ""
    assert engine.why_unfused(torch.ones(5, device=DEVICE, dtype=torch.float64)) == "it is not fp32"


@pytest.mark.parametrize("places", PLACES, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("settings", by_hand.SGD_SETTINGS[:-1], ids=str)
@pytest.mark.parametrize("policy", ["msnag", "aggmsnag", "lwp"])
def test_momentum_predictions(policy: str, settings: dict[str, Any], sizes: list[int], places: tuple[int, ...]) -> None:
    lab = by_hand.Lab("sgd", 3, torch.float32, sizes, lr=0.1, **settings)
    here, there = lab.stage(), on_gpu(lab.stage(), places)
    for pending in (None, torch.cat([lab.random(size) for size in sizes])):
        moment, same = moment_of(lab, placed(pending, places[3])), moment_of(lab, pending)
        found = predicted(engine.make_policy(policy), there, moment, places[4])
        rates = zip(there.groups, moment.rates, strict=True)
        stated = torch.cat([by_hand.linear_by_formula(there, moment, g, of, policy) for g, of in rates])
        near(found, stated, here.weights)
        near(found, by_hand.predicted(policy, here, same), here.weights)


@pytest.mark.parametrize("places", PLACES, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize(("rule", "settings"), by_hand.ADAPTIVE, ids=str)
@pytest.mark.parametrize("policy", ["own", "aggmsnag"])
def test_adam_predictions(
    policy: str, rule: str, settings: dict[str, Any], sizes: list[int], places: tuple[int, ...]
) -> None:
    lab = by_hand.Lab(rule, 3, torch.float32, sizes, **settings)
    here, there = lab.stage(), on_gpu(lab.stage(), places)
    name = rule if policy == "own" else policy
    for pending in (None, torch.cat([lab.random(size) for size in sizes])):
        moment, same = moment_of(lab, placed(pending, places[3])), moment_of(lab, pending)
        found = predicted(engine.make_policy(name), there, moment, places[4])
        as_lab: Any = SimpleNamespace(rule=rule, stage=lambda: there)
        near(found, by_hand.adaptive_by_formula(as_lab, moment, with_pending=policy == "aggmsnag"), here.weights)
        near(found, by_hand.predicted(name, here, same), here.weights)


@pytest.mark.parametrize("places", PLACES, ids=str)
@pytest.mark.parametrize(("rule", "settings"), by_hand.ADAPTIVE, ids=str)
@pytest.mark.parametrize("steps", [1, 3, 64, 65])  # the kernel takes 64
def test_adam_predictions_with_a_decaying_second_moment(
    rule: str, settings: dict[str, Any], steps: int, places: tuple[int, ...]
) -> None:
    lab = by_hand.Lab(rule, 3, torch.float32, [5, 1003], **settings)
    here, there = lab.stage(), on_gpu(lab.stage(), places)
    moment = engine.StageMoment(staleness=steps, rates=lab.rates(steps))
    policy = engine.make_policy(rule, second_decays=True)
    found, expected = predicted(policy, there, moment, places[4]), by_hand.predicted(policy, here, moment)
    if steps <= 3:
        near(found, expected, here.weights)
    else:  # every step rounds anew
        assert float((found.cpu() - expected).abs().max()) < 1e-5 * float(expected.abs().max())


@pytest.mark.parametrize("places", PLACES, ids=str)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_gap_aware_gradients(sizes: list[int], places: tuple[int, ...]) -> None:
    lab = by_hand.Lab("sgd", 3, torch.float32, sizes, lr=0.1, momentum=0.9)
    here, there = lab.stage(), on_gpu(lab.stage(), places)
    used, gradient = (torch.cat([lab.random(size) for size in sizes]) for _ in range(2))
    found, expected, policy = placed(gradient, places[4]), gradient.clone(), engine.make_policy("gap_aware")
    policy.after_step(here, engine.StageStep(rates=[0.1] * len(sizes), gradient=gradient))
    policy.after_backward(here, used, expected)
    # Both divide by the same unit: roots are not the matter here.
    unit = policy.state()["unit"].to(DEVICE)
    policy.load_state({**policy.state(), "squares": unit, "unit": unit})
    policy.after_backward(there, placed(used, places[3]), found)
    near(found, expected)
    near(found, gradient.to(DEVICE).div_(torch.sub(there.weights, used.to(DEVICE)).abs_().div_(unit).add_(1)))


def small_prediction() -> tuple[Any, Any, Any]:
    group = engine.StageGroup(begin=0, end=1000, rate=0.1, momentum=0.9)
    weights, velocity = torch.ones(1000, device=DEVICE), torch.zeros(1000, device=DEVICE)
    stage = engine.StageOptimizer(
        rule=engine.rule_of("sgd"), groups=[group], steps=1, weights=weights, velocity=velocity
    )
    return stage, engine.StageMoment(staleness=1, rates=[[0.1]]), torch.zeros(1000, device=DEVICE)


def test_a_prediction_waits_for_the_current_stream_only() -> None:
    stage, moment, out = small_prediction()
    policy = engine.make_policy("msnag")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # cycles: on any other stream the prediction would come first
        stage.velocity.fill_(10)
        policy.before_forward(stage, moment, out)
    stream.synchronize()
    assert torch.allclose(out, torch.full_like(out, 1 - 0.1 * 0.9 * 10))


def test_a_thread_that_has_never_used_the_gpu_predicts_too() -> None:
    stage, moment, out = small_prediction()
    stage.velocity.fill_(10)
    torch.cuda.synchronize()
    thread = threading.Thread(target=lambda: engine.make_policy("msnag").before_forward(stage, moment, out))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert torch.allclose(out, torch.full_like(out, 1 - 0.1 * 0.9 * 10))
    assert engine.why_unfused(out) == ""
