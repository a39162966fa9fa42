"""The one-process simulator, and the replay of its ledgers: what it computes, and that every planted lie is found."""

from __future__ import annotations

import copy
import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ddip.errors import ConfigError
from ddip.pipeline.auxiliary import auxiliary_loss, collected, taken
from ddip.pipeline.ledger import Ledger, Record
from ddip.pipeline.micro_batches import micro_batches_of
from ddip.pipeline.replay import Interpreter, Replay, replay
from ddip.pipeline.replay_stage import Stage, hash_of
from ddip.pipeline.seeds import seed_of, seeded
from ddip.pipeline.simulate import Simulation, simulate
from ddip.pipeline.textbook_corrections import GapAware, PipeMare
from ddip.pipeline.textbook_optimizers import Group, Memory
from torch import Tensor, nn

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "python" / "ddip" / "_bin" / "ddip"
Data = list[tuple[Any, Any]]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def stages_of(kind: str = "plain") -> list[nn.Module]:
    torch.manual_seed(11)
    middle: list[nn.Module] = {
        "plain": [nn.Tanh()],
        "dropout": [nn.Dropout(0.4), nn.Tanh()],
        "batch norm": [nn.BatchNorm1d(9), nn.ReLU(inplace=True)],
    }[kind]
    return [
        nn.Sequential(nn.Linear(5, 9), *copy.deepcopy(middle), nn.Linear(9, 9)),
        nn.Sequential(nn.ReLU(inplace=True), nn.Linear(9, 9), *copy.deepcopy(middle)),  # in place at the border
        nn.Sequential(nn.Linear(9, 9), *copy.deepcopy(middle), nn.Linear(9, 3)),
    ]


def data_of(batches: int = 7, samples: int = 6, last: int = 6) -> Data:
    generator = torch.Generator().manual_seed(12)
    sizes = [samples] * (batches - 1) + [last]
    return [(torch.randn(n, 5, generator=generator), torch.randint(0, 3, (n,), generator=generator)) for n in sizes]


def mean_loss(output: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output, y)


def sgd(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1, momentum=0.9)


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": sgd,
    "decay": lambda p: torch.optim.SGD(p, 0.1, momentum=0.8, weight_decay=0.02, nesterov=True),
    "wild": lambda p: torch.optim.SGD(p, 1e38, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, 0.01, betas=(0.8, 0.95)),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, 0.01, betas=(0.99, 0.999)),
}
POLICIES = [
    ("none", "sgd"), ("stash", "sgd"), ("msnag", "sgd"), ("msnag", "decay"), ("msnag+stash", "sgd"), ("aggmsnag", "sgd"),
    ("aggmsnag", "decay"), ("aggmsnag+stash", "sgd"), ("aggmsnag", "adamw"), ("spectrain", "sgd"), ("spectrain+stash", "sgd"),
    ("lwp", "sgd"), ("spike", "sgd"), ("lwp+spike", "sgd"), ("adam", "adam"), ("adam+stash", "adam"), ("adamw", "adamw"),
    ("adamw+stash", "adamw"), ("nadam", "nadam"), ("nadam+stash", "nadam"), ("nesterov", "nadam"), ("pipemare", "sgd"),
    ("gap_aware", "sgd"), ("gap_aware", "adam"), ("gap_aware+msnag", "sgd"),
]  # fmt: skip
OPTIONS = {"pipemare": {"annealing_steps": 5, "pipemare_decay": 0.2}}


def run(
    policy: str = "none", optimizer: str = "sgd", kind: str = "plain", data: Data | None = None, **more: Any
) -> Simulation:
    settings = {"micro_batches": 2, "accumulate": 2, "window": [4, 2, 0], "options": OPTIONS.get(policy, {}), **more}
    return simulate(
        stages_of(kind), mean_loss, data or data_of(), optimizer=OPTIMIZERS[optimizer], staleness=policy, **settings
    )


def again(ledger: Ledger, tmp_path: Path, kind: str = "plain", data: Data | None = None) -> Replay:
    """Through the file, as another process would do it."""
    ledger.write(tmp_path / "ledger.jsonl")
    return replay(tmp_path / "ledger.jsonl", stages_of(kind), mean_loss, data or data_of())


# ---- against computations that know nothing of stages or ledgers


@pytest.mark.parametrize("kind", ["plain", "dropout", "batch norm"])
@pytest.mark.parametrize("schedule", ["seq", "gpipe", "1f1b"])
def test_synchronous_schedules_are_accumulation_on_one_device(schedule: str, kind: str) -> None:
    """Bit for bit, when the micro-batches are added in the order of the schedule. The last batch is smaller."""
    data = data_of(last=5)
    found = run(schedule=schedule, kind=kind, data=data, accumulate=2, window=None)
    stages = stages_of(kind)
    optimizer = sgd([p for stage in stages for p in stage.parameters()])
    batches = [micro_batches_of([pair], 2) for pair in data]
    k = 0
    for first in range(0, len(batches), 2):
        together = batches[first : first + 2]
        count = sum(len(x) for batch in together for x, _ in batch)
        for batch in together:
            losses = []
            for x, y in batch:
                for index, stage in enumerate(stages):
                    with seeded(seed_of(0, index, k)):
                        x = stage(x.clone())  # stages work in place on what they receive
                losses.append(mean_loss(x, y) * len(y))
                k += 1
            for loss in reversed(losses) if schedule == "gpipe" else losses:
                loss.backward()
        for p in optimizer.param_groups[0]["params"]:
            p.grad /= count
        optimizer.param_groups[0]["lr"] = 0.1 * len(together) / 2  # the leftover batch steps with half the rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    for stage, weights, buffers in zip(stages, found.weights, found.buffers, strict=True):
        assert hash_of(stage, weights) == hash_of(stage, dict(stage.named_parameters()))
        assert all(torch.equal(buffers[name], buffer) for name, buffer in stage.named_buffers())


def msnag_by_hand(weight: Tensor, velocity: Tensor | None, n: int) -> Tensor:
    coefficient = sum(0.1 * 0.9**k for k in range(1, n + 1))
    return weight if velocity is None or n == 0 else weight - coefficient * velocity


# Without stash and without recomputation old activations meet new weights: by hand further down.
@pytest.mark.parametrize("kind", ["plain", "dropout", "batch norm"])
@pytest.mark.parametrize(
    ("policy", "recompute"),
    [("none", True), ("stash", True), ("stash", False), ("msnag", True), ("msnag+stash", True), ("msnag+stash", False)],
)
def test_asynchronous_runs_are_what_a_loop_over_versions_gives(policy: str, kind: str, recompute: bool) -> None:
    """Micro-batch k reads version max(0, k−W)//se of each stage and steps version k//se: one loop over k, whole modules
    copied per version, torch.optim for the steps."""
    data, windows, se = data_of(), [4, 2, 0], 2
    found = run(policy, kind=kind, recompute=recompute)
    live = stages_of(kind)
    optimizers = [sgd(list(stage.parameters())) for stage in live]
    versions: list[list[dict[str, Tensor]]] = [[] for _ in live]
    velocities: list[list[dict[str, Tensor | None]]] = [[] for _ in live]

    def remember() -> None:
        for index, stage in enumerate(live):
            versions[index].append({name: p.detach().clone() for name, p in stage.named_parameters()})
            state = optimizers[index].state
            velocities[index].append(
                {name: copy.deepcopy(state[p].get("momentum_buffer")) for name, p in stage.named_parameters()}
            )

    def with_weights(index: int, weights: dict[str, Tensor]) -> nn.Module:
        module = copy.deepcopy(live[index])
        module.load_state_dict({**module.state_dict(), **weights})
        return module

    remember()
    parts = micro_batches_of(data, 2)
    for k, (x, y) in enumerate(parts):
        inputs, used, h = [], [], x
        for index, stage in enumerate(live):
            version = max(0, k - windows[index]) // se
            weights = versions[index][version]
            if policy.startswith("msnag"):
                n = k // se - version
                weights = {name: msnag_by_hand(w, velocities[index][version][name], n) for name, w in weights.items()}
            module = with_weights(index, weights)
            inputs.append(h.detach().clone())
            used.append(weights)
            with seeded(seed_of(0, index, k)):
                h = module(inputs[-1].clone())
            for name, buffer in module.named_buffers():
                stage.get_buffer(name).copy_(buffer)
        gradient: Tensor | None = None
        for index in reversed(range(3)):
            kept = policy.endswith("stash") or (index == 2)
            module = with_weights(index, used[index] if kept else versions[index][k // se])
            border = inputs[index].requires_grad_(index > 0)
            with seeded(seed_of(0, index, k)):
                output = module(border.clone())
                value = mean_loss(output, y) * len(y) if gradient is None else output
            value.backward(gradient)
            gradient = border.grad
            for mine, p in zip(live[index].parameters(), module.parameters(), strict=True):
                mine.grad = p.grad if mine.grad is None else mine.grad + p.grad
        if (k + 1) % se == 0:
            for index, stage in enumerate(live):
                for p in stage.parameters():
                    p.grad = p.grad / 6  # 2 micro-batches of 3 samples
                optimizers[index].step()
                optimizers[index].zero_grad()
            remember()
    for stage, weights, buffers in zip(live, found.weights, found.buffers, strict=True):
        for name, p in stage.named_parameters():
            if policy.startswith("msnag"):
                torch.testing.assert_close(weights[name], p.detach(), rtol=1e-5, atol=1e-6)
            else:
                assert torch.equal(weights[name], p.detach()), name
        for name, buffer in stage.named_buffers():
            torch.testing.assert_close(buffers[name], buffer, rtol=1e-5, atol=1e-6)


def test_old_activations_meet_new_weights_by_hand() -> None:
    """y = b·(a·x) with scalar stages and a kept graph: da of micro-batch 1 has the forward's a·x and the newest b."""

    class Times(nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.first, self.second = nn.Parameter(torch.tensor([[value]])), nn.Parameter(torch.tensor([[value + 1]]))

        def forward(self, x: Tensor) -> Tensor:
            return (x @ self.first) @ self.second

    data = [(torch.tensor([[float(x)]]), torch.tensor([0.0])) for x in (1, 2, 3)]
    found = simulate([Times(0.5), Times(0.25)], lambda out, y: (out.sum(), 1), data,
                     optimizer=lambda p: torch.optim.SGD(p, 0.1), schedule="async_1f1b", window=[1, 0])  # fmt: skip
    a, b, c, d = 0.5, 1.5, 0.25, 1.25
    old = None
    for x in (1.0, 2.0, 3.0):
        fa, fb = (a, b) if old is None else old  # one step behind
        old = (a, b)
        h = x * fa * fb
        dh = c * d
        c, d = c - 0.1 * h * d, d - 0.1 * h * c
        a, b = a - 0.1 * dh * x * b, b - 0.1 * dh * x * fa  # b: newest in da; a·x: the forward's in db
    assert found.weights[0]["first"].item() == pytest.approx(a, rel=1e-5)
    assert found.weights[0]["second"].item() == pytest.approx(b, rel=1e-5)
    assert found.weights[1]["first"].item() == pytest.approx(c, rel=1e-5)


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_one_stage_is_ordinary_training_with_groups_clipping_and_a_scheduler(
    optimizer: type[torch.optim.Optimizer],
) -> None:
    def made(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        groups = [
            {"params": parameters[1:], "lr": 0.05, "maximize": True},
            {"params": parameters[:1], "weight_decay": 0.1},
        ]
        more: dict[str, Any] = {"momentum": 0.9} if optimizer is torch.optim.SGD else {}
        return optimizer(groups, lr=0.2, foreach=False, **more)  # type: ignore[call-arg]

    torch.manual_seed(3)
    model, data = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)), data_of(last=6)
    found = simulate([model], mean_loss, data, optimizer=made, schedule="seq", clip=0.3, rate=lambda step: 0.9**step)
    real = made(list(model.parameters()))
    scheduler = torch.optim.lr_scheduler.LambdaLR(real, lambda step: 0.9**step)
    clipped = 0
    for x, y in data:
        real.zero_grad()
        mean_loss(model(x), y).backward()
        clipped += nn.utils.clip_grad_norm_(model.parameters(), 0.3).item() > 0.3
        real.step()
        scheduler.step()
    assert clipped > 3
    for name, p in model.named_parameters():
        torch.testing.assert_close(found.weights[0][name], p.detach(), rtol=1e-5, atol=1e-6)


# ---- order and staleness


def staleness_in(found: Simulation, stage: int) -> list[int]:
    return [r.values["weights"]["n"] for r in found.ledger.records if r.kind == "forward" and r.stage == stage]


def test_staleness_is_counted_as_the_formula_says() -> None:
    stages = [nn.Linear(2, 2) for _ in range(8)]
    data = [(torch.randn(1, 2), torch.zeros(1, 2)) for _ in range(40)]
    found = simulate(stages, nn.functional.mse_loss, data, optimizer=sgd, accumulate=4)
    for stage in range(8):
        depth = 7 - stage
        for k, n in enumerate(staleness_in(found, stage)):
            done = max(0, k - depth)
            assert n == sum(1 for y in range(done, k) if y % 4 == 3)
    assert staleness_in(found, 0)[12:20] == [2, 2, 2, 1, 2, 2, 2, 1]
    assert {gap.staleness for gap in found.gaps if gap.stage == 7} == {0}


def test_presets_and_caps() -> None:
    two = run(schedule="2bw", accumulate=4)
    for record in two.ledger.records:
        if record.kind in ("forward", "backward"):
            assert record.values["weights"]["version"] == max(0, record.values["micro_batch"] // 4 - 1)
    assert max(staleness_in(run(schedule="paci", accumulate=4), 0)) == 1
    capped = run(schedule="virtual_async", accumulate=1, max_staleness=1, window=None)
    assert [max(staleness_in(capped, stage)) for stage in range(3)] == [1, 0, 0]


def test_what_a_plan_tells_its_predictions() -> None:
    found = run("spectrain", accumulate=1)
    for kind, distances in (("forward", [2, 1, 1]), ("backward", [0, 0, 1])):
        seen = {(r.stage, r.values["weights"]["distance"]) for r in of(found.ledger, kind)}
        assert seen == set(enumerate(distances))
    assert {r.values["weights"]["distance"] for r in of(run("spectrain").ledger, "forward")} == {1}  # in steps of two

    found = run("msnag", rate=lambda step: 0.5**step)
    for record in of(found.ledger, "forward", lambda r: r.values["weights"]["kind"] == "predicted"):
        seen = record.values["weights"]
        assert seen["rates"] == [[0.1 * 0.5 ** (seen["version"] + ahead) for ahead in range(seen["n"])]]
    steps = of(found.ledger, "step", lambda r: r.stage == 1)
    assert [r.values["rates"] for r in steps] == [[0.1 * 0.5**step] for step in range(7)]


def test_gaps_say_whether_a_prediction_helps() -> None:
    none, predicted = run("none"), run("msnag")
    assert all(gap.ratio == 1 for gap in none.gaps if gap.moved > 0)
    ratios = [gap.ratio for gap in predicted.gaps if gap.ratio is not None and gap.staleness > 0]
    assert sum(ratios) / len(ratios) < 0.9
    assert all(gap.moved == 0 for gap in none.gaps if gap.staleness == 0)


def test_the_leftover_steps_with_its_share() -> None:
    found = run(accumulate=4, data=data_of(batches=3))  # 6 micro-batches
    steps = [r.values for r in found.ledger.records if r.kind == "step" and r.stage == 0]
    assert [step.get("share") for step in steps] == [None, [2, 4]]
    assert [step["count"] for step in steps] == [12, 6]


@pytest.mark.parametrize(("wrong", "says"), [
    ({"schedule": "async_1f2b"}, "did you mean async_1f1b?"),
    ({"staleness": "msnagg"}, "did you mean msnag?"),
    ({"staleness": "msnag+lwp"}, "at most one prediction"),
    ({"schedule": "2bw", "staleness": "msnag"}, "expected none"),
    ({"schedule": "2bw", "accumulate": 2}, "expected at least"),
    ({"window": [1]}, "one per stage"),
    ({"optimizer": lambda p: torch.optim.RMSprop(p)}, "optimizer RMSprop"),
    ({"optimizer": lambda p: torch.optim.Adam(p, amsgrad=True)}, "amsgrad"),
    ({"staleness": "msnag", "optimizer": OPTIMIZERS["adam"]}, "msnag"),
    ({"staleness": "spike", "optimizer": OPTIMIZERS["decay"]}, "spike"),
    ({"schedule": "paci", "accumulate": 1}, "accumulate 1; expected at least 2"),
    ({"batches": []}, "no batches"),
    ({"accumulate": 0}, "accumulate 0; expected a whole number from 1 on"),
    ({"micro_batches": 0}, "micro_batches 0; expected a whole number from 1 on"),
    ({"seed": -1}, "seed is -1; expected a whole number from 0 on"),
    ({"precision": "fp16"}, "precision 'fp16' is not simulated"),
    ({"precision": "fp8"}, "precision 'fp8'; expected fp32 or bf16 or fp16"),
    ({"form": "sutskever", "optimizer": OPTIMIZERS["adam"]}, "form 'sutskever' of adam; expected torch or libtorch"),
    ({"schedule": "1f1b", "staleness": "spectrain"}, "staleness 'spectrain' with schedule 1f1b"),
    ({"staleness": "nesterov"}, "staleness 'nesterov' with optimizer sgd; expected nadam"),
])  # fmt: skip
def test_wrong_requests_are_refused_in_one_line(wrong: dict[str, Any], says: str) -> None:
    settings: dict[str, Any] = {
        "batches": data_of(), "optimizer": sgd, "micro_batches": 2, "accumulate": 2, **wrong,
    }  # fmt: skip
    with pytest.raises(ConfigError) as error:
        simulate(stages_of(), mean_loss, **settings)
    assert says in str(error.value) and "\n" not in str(error.value)


# ---- properties of single policies


def stage_of(policy: str, **settings: float) -> Stage:
    torch.manual_seed(1)
    module = nn.Linear(4, 4)
    described = {"name": "sgd", "groups": [{"parameters": ["weight", "bias"], "momentum": 0.9, **settings}]}
    header = {"stages": 1, "seed": 0, "accumulate": 1, "clip": None, "precision": "fp32", "optimizer": [described],
              "staleness": policy, "options": {}, "mean_staleness": [1.5]}  # fmt: skip
    stage = Stage(0, module, lambda y, _: (y.square().sum(), 1), header)
    for k in range(3):
        one_round(stage, k, {"kind": "true", "version": k, "n": 0})
    return stage


def one_round(stage: Stage, k: int, seen: dict[str, Any]) -> None:
    stage.forward(seen, k, (torch.ones(2, 4),), None, 2)
    _, stage.pending[k] = stage.backward({"kind": "forward"}, k, False, None, 1)
    stage.samples[k] = 2
    stage.step([k], 2.0, [0.1], None)


def test_true_weights_are_the_same_bits_after_predict_forward_restore() -> None:
    stage = stage_of("msnag")
    before = hash_of(stage.module, stage.weights)
    stage.forward({"kind": "predicted", "version": 3, "n": 2, "rates": [[0.1, 0.1]]}, 9, (torch.ones(2, 4),), None, 2)
    assert not torch.equal(stage.flights[9].used["weight"], stage.weights["weight"])
    assert hash_of(stage.module, stage.weights) == before
    stage.backward({"kind": "true", "version": 3}, 9, False, None, 1)
    assert hash_of(stage.module, stage.weights) == before


def test_gap_aware_leaves_fresh_gradients_and_is_linear_in_the_gap() -> None:
    stage = stage_of("gap_aware")
    gradient = {name: torch.ones_like(w) for name, w in stage.weights.items()}
    fresh = stage.scaled_by_gap(gradient, stage.weights)
    assert all(torch.equal(fresh[name], gradient[name]) for name in gradient)
    step = {name: torch.rand_like(w) * 0.1 for name, w in stage.weights.items()}
    penalties = []
    for factor in (1.0, 2.0):
        used = {name: w - factor * step[name] for name, w in stage.weights.items()}
        penalties.append({name: 1 / g.double() - 1 for name, g in stage.scaled_by_gap(gradient, used).items()})
    for name in gradient:
        assert (penalties[0][name] > 0.1).sum() > penalties[0][name].numel() / 2
        torch.testing.assert_close(penalties[1][name], 2 * penalties[0][name], rtol=1e-4, atol=1e-5)


def test_gap_aware_measures_the_gap_in_usual_steps() -> None:
    """One weight that always moves by the same step: a gap of one step doubles π, whatever the size of the step."""
    group, memory, one = Group("sgd", ["w"], momentum=0.9), Memory(velocity=torch.full((3,), 2.0)), torch.ones(3)
    for size in (1.0, 100.0):
        remedy, memory.velocity = GapAware({"w": one}), torch.full((3,), 2.0 * size)
        for _ in range(3):
            remedy.follow(group, "w", memory, one, one, 0.1)
        scaled = remedy.scaled(group, "w", one, one, one - 0.1 * 2 * size, 3)
        assert torch.allclose(scaled, torch.tensor(0.5), rtol=1e-4)
    remedy = GapAware({"w": one})
    for _ in range(3):
        remedy.follow(Group("adam", ["w"]), "w", Memory(), one, one + 0.2, 0.1)
    assert torch.allclose(
        remedy.scaled(Group("adam", ["w"]), "w", one, one, one - 0.2, 3), torch.tensor(0.5), rtol=1e-4
    )


def test_pipemare_goes_back_by_the_mean_motion() -> None:
    weights = {"w": torch.zeros(3)}
    remedy = PipeMare(weights, 1.5, annealing_steps=4)
    for _ in range(200):
        remedy.follow("w", weights["w"], weights["w"] + 0.5)
    assert torch.allclose(remedy.corrected(weights)["w"], torch.tensor(-1.5 * 0.5), rtol=1e-3)
    assert [remedy.rate(1.0, step) for step in (0, 2, 4, 8)] == pytest.approx([1 / 1.5, 1 / math.sqrt(1.5), 1, 1])
    still = PipeMare(weights, 0.0)
    still.follow("w", weights["w"], weights["w"] + 0.5)
    assert still.corrected(weights) is weights and still.rate(1.0, 0) == 1.0


# ---- replay


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("policy", "optimizer"), POLICIES)
def test_a_ledger_replays_identically(policy: str, optimizer: str, recompute: bool, tmp_path: Path) -> None:
    found = run(policy, optimizer, recompute=recompute, data=data_of(last=5), rate=lambda step: 1 / (1 + 0.1 * step))
    result = again(found.ledger, tmp_path, data=data_of(last=5))
    assert result.identical, result.difference
    assert result.steps == 3 * 7 and result.losses == found.losses
    assert all(
        hash_of(m, a) == hash_of(m, b) for m, a, b in zip(stages_of(), result.weights, found.weights, strict=True)
    )


@pytest.mark.parametrize("kind", ["dropout", "batch norm"])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "async_1f1b", "2bw"])
def test_dropout_and_batch_norm_replay_identically(schedule: str, kind: str, tmp_path: Path) -> None:
    found = run(kind=kind, schedule=schedule, accumulate=4, recompute=True, clip=0.5)
    assert again(found.ledger, tmp_path, kind).identical


def test_lower_precision_replays_identically(tmp_path: Path) -> None:
    lower, full = run("msnag", recompute=True, precision="bf16"), run("msnag", recompute=True)
    assert again(lower.ledger, tmp_path).identical
    assert lower.losses != full.losses and lower.losses == pytest.approx(full.losses, rel=0.05)


@pytest.mark.parametrize("policy", ["none", "aggmsnag", "gap_aware"])
def test_a_loss_scale_of_a_power_of_two_changes_no_bit(policy: str, tmp_path: Path) -> None:
    ledger = run(policy).ledger
    for record in of(ledger, "backward"):
        record.values["loss_scale"] = 1024.0
    assert again(ledger, tmp_path).identical
    of(ledger, "backward", lambda r: r.stage == 1)[3].values["loss_scale"] = 512.0
    assert "loss scale" in (again(ledger, tmp_path).difference or "")


def test_a_drain_says_that_nothing_is_in_flight(tmp_path: Path) -> None:
    found = run()
    ledger = found.ledger
    for stage in range(3):
        end = hash_of(stages_of()[stage], found.weights[stage])
        last = max(i for i, r in enumerate(ledger.records) if r.stage == stage)
        ledger.records.insert(last + 1, Record(0, {"kind": "drain", "stage": stage, "version": 7, "sha256": end}))
    assert again(ledger, tmp_path).identical
    drain = of(ledger, "drain")[0]
    drain.values["version"] = 6
    assert "version is 7, the ledger says 6" in (again(ledger, tmp_path).difference or "")
    drain.values["version"] = 7
    ledger.records.remove(drain)
    ledger.records.insert(2, drain)
    assert "still in flight" in (again(ledger, tmp_path).difference or "")


def test_samples_may_be_named_instead_of_counted(tmp_path: Path) -> None:
    ledger = run().ledger
    for record in of(ledger, "forward"):
        k = record.values["micro_batch"]
        del record.values["count"]
        record.values["samples"] = [3 * k, 3 * k + 1, 3 * k + 2]
    assert again(ledger, tmp_path).identical
    of(ledger, "forward")[4].values["samples"].pop()
    assert "3 samples, the ledger says 2" in (again(ledger, tmp_path).difference or "")


def test_versions_that_nobody_will_read_are_forgotten() -> None:
    ledger = run("stash").ledger
    interpreter = Interpreter(ledger, stages_of(), mean_loss, data_of())
    most = [0, 0, 0]
    step = interpreter._step

    def counting(record: Record, stage: Stage) -> None:
        step(record, stage)
        most[stage.index] = max(most[stage.index], len(stage.versions))

    interpreter._step = counting  # type: ignore[method-assign]
    assert interpreter.run().identical
    assert max(most) <= 3 and not interpreter.values and not interpreter.gradients


def test_policies_differ() -> None:
    """Else a replay that ignores the policy would pass."""
    ends = {(p, o): run(p, o).ledger.records[-1].values["sha256"] for p, o in POLICIES}
    # On the last stage nothing is stale; its inputs differ all the same.
    assert len(set(ends.values())) == len(POLICIES)


def test_recomputation_of_a_stash_changes_nothing() -> None:
    kept, again_ = run("msnag+stash", kind="dropout"), run("msnag+stash", kind="dropout", recompute=True)
    hashes = [[r.values["sha256"] for r in found.ledger.records if r.kind == "step"] for found in (kept, again_)]
    assert hashes[0] == hashes[1]
    assert hashes[0] != [r.values["sha256"] for r in run("msnag", kind="dropout").ledger.records if r.kind == "step"]


def test_a_split_backward_adds_when_its_second_half_comes(tmp_path: Path) -> None:
    ledger = run().ledger
    for index in [i for i, r in enumerate(ledger.records) if r.kind == "backward"][::-1]:
        record = ledger.records[index]
        record.values["split"] = True
        later = {"kind": "weight_gradient", "stage": record.stage, "micro_batch": record.values["micro_batch"]}
        ledger.records.insert(index + 1, Record(0, later))
    assert again(ledger, tmp_path).identical
    steps = [i for i, r in enumerate(ledger.records) if r.kind == "weight_gradient"]
    del ledger.records[steps[3]]
    assert not again(ledger, tmp_path).identical


def test_a_weight_gradient_that_never_comes_is_found(tmp_path: Path) -> None:
    """Also where everything behind it was computed without it."""
    ledger = run("stash", schedule="1f1b", window=None).ledger
    backward = of(ledger, "backward", lambda r: r.stage == 0)[1]
    backward.values["split"] = True
    assert Interpreter(ledger, stages_of(), mean_loss, data_of(), fill=True).run().difference is not None
    difference = again(ledger, tmp_path).difference
    assert difference == (
        "the ledger ends: the weight gradient of micro-batch 1 of stage 0, whose backward was split, never comes"
    )


def test_stages_may_be_interleaved_in_any_way(tmp_path: Path) -> None:
    ledger = run("msnag").ledger
    rng = random.Random(1)
    queues = [[r for r in ledger.records if r.stage == stage] for stage in range(3)]
    ledger.records = []
    while any(queues):
        ledger.records.append(rng.choice([queue for queue in queues if queue]).pop(0))
    assert again(ledger, tmp_path).identical


class Border(nn.Module):
    """Gives a tuple with a number, None and integers among its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, None, int, dict[str, Tensor]]:
        return self.linear(x), None, 2, {"skip": x * 2, "sign": x.sign().long()}


class AfterBorder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, border: tuple[Tensor, None, int, dict[str, Tensor]]) -> Tensor:
        h, nothing, times, more = border
        assert nothing is None
        return self.linear(h.relu_()) * times + more["skip"] * more["sign"]


def test_tuples_cross_borders_and_unused_parameters_stay(tmp_path: Path) -> None:
    torch.manual_seed(1)
    stages: list[nn.Module] = [Border(), AfterBorder()]
    stages[1].register_parameter("unused", nn.Parameter(torch.ones(2)))
    stages[1].register_parameter("frozen", nn.Parameter(torch.ones(2), requires_grad=False))
    data = [(torch.randn(4, 4), torch.randn(4, 4)) for _ in range(4)]
    found = simulate(stages, lambda out, y: ((out - y).square().sum(), 4), data, optimizer=sgd, micro_batches=2)
    found.ledger.write(tmp_path / "l")
    assert replay(tmp_path / "l", stages, lambda out, y: ((out - y).square().sum(), 4), data).identical
    assert torch.equal(found.weights[1]["unused"], torch.ones(2))


class OwnLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x)
        auxiliary_loss(h.square().sum(1).mean())
        return torch.tanh(h)


@pytest.mark.parametrize("recompute", [False, True])
def test_a_stage_may_have_a_loss_of_its_own(recompute: bool, tmp_path: Path) -> None:
    torch.manual_seed(6)
    stages: list[nn.Module] = [OwnLoss(), OwnLoss(), nn.Linear(4, 2)]
    data = [(torch.randn(6, 4), torch.randn(6, 2)) for _ in range(4)]
    settings: dict[str, Any] = {"optimizer": sgd, "micro_batches": 2, "schedule": "1f1b", "recompute": recompute}
    found = simulate(stages, nn.functional.mse_loss, data, **settings)
    found.ledger.write(tmp_path / "l")
    assert replay(tmp_path / "l", stages, nn.functional.mse_loss, data).identical
    model = nn.Sequential(*copy.deepcopy(stages))
    optimizer = sgd(list(model.parameters()))
    for x, y in data:
        optimizer.zero_grad()
        with collected():
            output = model(x)
        (nn.functional.mse_loss(output, y) + sum(taken())).backward()
        optimizer.step()
    for stage, weights in zip(model, found.weights, strict=True):
        for name, p in stage.named_parameters():
            torch.testing.assert_close(weights[name], p.detach(), rtol=1e-5, atol=1e-6)


class Skips(nn.Module):
    """A stage with several values in and out, as a cut of a U-Net gives them."""

    def __init__(self, gives: list[str]) -> None:
        super().__init__()
        self.linear, self.gives = nn.Linear(4, 4), gives

    def forward(self, *values: Tensor) -> Any:
        h = torch.tanh(self.linear(sum(v * (i + 1) for i, v in enumerate(values))))
        return {name: h * (i + 1) for i, name in enumerate(self.gives)} if len(self.gives) > 1 else h


TAKES = [["x"], ["a"], ["b", "skip"], ["c", "skip"], ["d", "skip", "b"]]
GIVES = [["a", "skip"], ["b"], ["c"], ["d"], ["output"]]


def skipping() -> list[nn.Module]:
    torch.manual_seed(5)
    return [Skips(gives) for gives in GIVES]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "async_1f1b"])
def test_skips_that_several_stages_take(schedule: str, tmp_path: Path) -> None:
    data = [(torch.randn(4, 4, generator=torch.Generator().manual_seed(k)), torch.ones(4, 4)) for k in range(5)]

    def loss(out: Tensor, y: Tensor) -> tuple[Tensor, int]:
        return (out - y).square().sum(), len(y)

    settings: dict[str, Any] = {"optimizer": sgd, "micro_batches": 2, "takes": TAKES, "gives": GIVES}
    found = simulate(skipping(), loss, data, schedule=schedule, **settings)
    found.ledger.write(tmp_path / "l")
    assert replay(tmp_path / "l", skipping(), loss, data).identical
    if schedule == "async_1f1b":
        assert max(staleness_in(found, 0)) == 4
        return
    stages = skipping()
    optimizer = sgd([p for stage in stages for p in stage.parameters()])
    for x, y in data:
        optimizer.zero_grad()
        values = {"x": x}
        for stage, takes, gives in zip(stages, TAKES, GIVES, strict=True):
            output = stage(*(values[name] for name in takes))
            values |= output if len(gives) > 1 else {gives[0]: output}
        (loss(values["output"], y)[0] / 4).backward()
        optimizer.step()
    for stage, weights in zip(stages, found.weights, strict=True):
        for name, p in stage.named_parameters():
            torch.testing.assert_close(weights[name], p.detach(), rtol=1e-5, atol=1e-6)


def test_routes_that_lead_nowhere_are_refused() -> None:
    for takes, gives, says in (
        ([["x"], ["b"]], [["a"], ["output"]], "stage 1 takes 'b', which no earlier stage gives"),
        ([["x"], ["a"]], [["a", "b"], ["output"]], "stage 0 gives 'b', which no stage takes"),
    ):
        with pytest.raises(ConfigError, match=says):
            simulate(skipping()[:2], mean_loss, data_of(), optimizer=sgd, takes=takes, gives=gives)


# ---- batches with few samples, and samples that do not count


def short() -> Data:
    whole = data_of(batches=6)
    return [(x[:n], y[:n]) for (x, y), n in zip(whole, (6, 1, 6, 2, 6, 1), strict=True)]


@pytest.mark.parametrize("schedule", ["seq", "gpipe", "1f1b", "async_1f1b", "2bw"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_empty_micro_batches_keep_their_numbers(schedule: str, accumulate: int, tmp_path: Path) -> None:
    accumulate = 4 if schedule == "2bw" else accumulate
    found = run(data=short(), micro_batches=3, schedule=schedule, accumulate=accumulate, window=[2, 1, 0])
    result = again(found.ledger, tmp_path, data=short())
    assert result.identical, result.difference
    assert found.ledger.header["micro_batches"] == 18
    forwards = [r.values["micro_batch"] for r in of(found.ledger, "forward", lambda r: r.stage == 0)]
    assert forwards == [0, 1, 2, 3, 6, 7, 8, 9, 10, 12, 13, 14, 15]
    skipped = of(found.ledger, "step", lambda r: r.stage == 0 and r.values["count"] == 0)
    assert len(skipped) == {"async_1f1b": 5 if accumulate == 1 else 2, "2bw": 1}.get(schedule, 0)


def masked(output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    weight = (y > 0).float() * 0.75
    return (nn.functional.cross_entropy(output, y, reduction="none") * weight).sum(), weight.sum()


@pytest.mark.parametrize(
    ("policy", "optimizer"), [("none", "sgd"), ("stash", "sgd"), ("aggmsnag", "sgd"), ("adam", "adam")]
)
def test_a_step_that_counts_nothing_makes_a_version_and_no_more(policy: str, optimizer: str, tmp_path: Path) -> None:
    data = data_of()
    for batch, part in ((2, slice(None)), (4, slice(0, 3))):
        data[batch][1][part] = 0
    settings: dict[str, Any] = {"optimizer": OPTIMIZERS[optimizer], "staleness": policy, "micro_batches": 2}
    found = simulate(stages_of(), masked, data, accumulate=1, window=[4, 2, 0], **settings)
    found.ledger.write(tmp_path / "l")
    result = replay(tmp_path / "l", stages_of(), masked, data)
    assert result.identical, result.difference
    steps = [r.values for r in of(found.ledger, "step", lambda r: r.stage == 1)]
    assert [step["count"] for step in steps[4:6]] == [0, 0] and 0 < steps[6]["count"] % 1
    assert steps[3]["sha256"] == steps[4]["sha256"] == steps[5]["sha256"] != steps[6]["sha256"]
    assert result.steps == 3 * 14 - 3 * 3 and sum(math.isnan(loss) for loss in result.losses) == 3
    steps[4]["rates"] = [0.1]
    found.ledger.write(tmp_path / "l")
    assert "rates" in (replay(tmp_path / "l", stages_of(), masked, data).difference or "")


@pytest.mark.parametrize("schedule", ["1f1b", "async_1f1b", "2bw"])
@pytest.mark.parametrize("stage", [0, 1])
def test_a_stage_with_nothing_to_train_is_simulated_and_replayed(schedule: str, stage: int, tmp_path: Path) -> None:
    def made() -> list[nn.Module]:
        stages = stages_of()
        stages[stage].requires_grad_(False)
        return stages

    settings: dict[str, Any] = {"optimizer": sgd, "micro_batches": 2, "accumulate": 4, "schedule": schedule}
    found = simulate(made(), mean_loss, data_of(), **settings)
    found.ledger.write(tmp_path / "l")
    result = replay(tmp_path / "l", made(), mean_loss, data_of())
    assert result.identical, result.difference
    assert hash_of(made()[stage], result.weights[stage]) == found.ledger.header["initial"][stage]
    assert {r.kind for r in found.ledger.records if r.stage == stage} == {"forward", "backward"}


def test_batches_may_be_dictionaries() -> None:
    x = {"image": torch.arange(5.0), "scale": torch.tensor(2.0), "name": "a"}
    parts = micro_batches_of([(x, (torch.arange(5),))], 3)
    assert [(len(a["image"]), a["scale"].item(), a["name"], len(b[0])) for a, b in parts] == [
        (2, 2.0, "a", 2), (2, 2.0, "a", 2), (1, 2.0, "a", 1)
    ]  # fmt: skip


# ---- planted lies


def of(ledger: Ledger, kind: str, where: Callable[[Record], bool] = lambda r: True) -> list[Record]:
    return [r for r in ledger.records if r.kind == kind and where(r)]


def is_predicted(record: Record) -> bool:
    return record.values["weights"]["kind"] == "predicted" and record.values["weights"]["version"] > 1


def swap_versions(ledger: Ledger) -> None:
    a, b = of(ledger, "forward", lambda r: r.stage == 0)[6:8], of(ledger, "forward", lambda r: r.stage == 0)[8:10]
    a[0].values["weights"], b[0].values["weights"] = b[0].values["weights"], a[0].values["weights"]


def change_n(by: int) -> Callable[[Ledger], None]:
    def change(ledger: Ledger) -> None:
        seen = of(ledger, "forward", is_predicted)[0].values["weights"]
        seen["n"] += by
        seen["rates"] = [[*rates, rates[-1]][: seen["n"]] for rates in seen["rates"]]

    return change


def say_other_n(ledger: Ledger) -> None:
    of(ledger, "forward")[5].values["weights"]["n"] += 1


def drop_partial(ledger: Ledger) -> None:
    of(ledger, "forward", lambda r: bool(r.values["weights"].get("partial")))[2].values["weights"]["partial"] = []


def change_rate(ledger: Ledger) -> None:
    seen = of(ledger, "forward", is_predicted)[1].values["weights"]
    seen["rates"][0][0] *= 1.01


def change_distance(ledger: Ledger) -> None:
    of(ledger, "forward", is_predicted)[0].values["weights"]["distance"] += 1


def change_distance_of_backward(ledger: Ledger) -> None:
    of(ledger, "backward", lambda r: r.stage == 1)[4].values["weights"]["distance"] += 1


def swap_sums(ledger: Ledger) -> None:
    of(ledger, "step")[1].values["micro_batches"].reverse()


def swap_backwards(ledger: Ledger) -> None:
    """The order of sums as it would be if two backwards had come the other way round; the hash stays. Of three, because
    a + b is b + a."""
    a, b = of(ledger, "backward", lambda r: r.stage == 0)[4:6]
    a.values, b.values = b.values, a.values
    order = of(ledger, "step", lambda r: r.stage == 0)[1].values["micro_batches"]
    order[1], order[2] = order[2], order[1]


def wrong_count(ledger: Ledger) -> None:
    of(ledger, "step")[2].values["count"] += 1


def step_rate(ledger: Ledger) -> None:
    of(ledger, "step")[2].values["rates"][0] *= 1 + 1e-6


def wrong_share(ledger: Ledger) -> None:
    of(ledger, "step")[2].values["share"] = [1, 2]


def drop(kind: str) -> Callable[[Ledger], None]:
    return lambda ledger: ledger.records.remove(of(ledger, kind)[3])


def drop_last_step(ledger: Ledger) -> None:
    ledger.records.remove(of(ledger, "step", lambda r: r.stage == 1)[-1])


def twice(kind: str) -> Callable[[Ledger], None]:
    def change(ledger: Ledger) -> None:
        record = of(ledger, kind)[3]
        ledger.records.insert(ledger.records.index(record), Record(0, dict(record.values)))

    return change


def other_recomputation(ledger: Ledger) -> None:
    record = of(ledger, "backward", lambda r: r.stage == 0)[8]
    record.values["recomputed"] = not record.values["recomputed"]


def other_backward(ledger: Ledger) -> None:
    record = of(ledger, "backward", lambda r: r.stage == 0)[8]
    now = {"kind": "true", "version": record_version(ledger, record)}
    record.values["weights"] = now if record.values["weights"]["kind"] == "forward" else {"kind": "forward"}


def record_version(ledger: Ledger, record: Record) -> int:
    before = ledger.records[: ledger.records.index(record)]
    return sum(r.kind == "step" and r.stage == record.stage for r in before)


def in_header(*path: Any, value: Any) -> Callable[[Ledger], None]:
    def change(ledger: Ledger) -> None:
        place = ledger.header
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


GROUP = ("optimizer", 0, "groups", 0)
LIES: list[tuple[str, str, str, Callable[[Ledger], None]]] = [
    ("none", "sgd", "two versions swapped", swap_versions),
    ("stash", "sgd", "two versions swapped", swap_versions),
    ("msnag", "sgd", "two versions swapped", swap_versions),
    *((p, o, f"n {by:+}, by the bits", change_n(by)) for p, o in (
        ("msnag", "sgd"), ("aggmsnag", "sgd"), ("lwp", "sgd"), ("adam", "adam"), ("adamw", "adamw"), ("nadam", "nadam"),
    ) for by in (1, -1)),
    ("none", "sgd", "n of a forward that predicts nothing", say_other_n),
    ("aggmsnag", "sgd", "φ dropped", drop_partial),
    ("aggmsnag", "adamw", "φ dropped", drop_partial),
    ("aggmsnag", "sgd", "accumulate", in_header("accumulate", value=3)),
    ("msnag", "sgd", "a rate of a prediction", change_rate),
    ("spectrain", "sgd", "distance", change_distance),
    ("spectrain", "sgd", "distance of a backward", change_distance_of_backward),
    ("stash", "sgd", "order of sums said otherwise", swap_sums),
    ("stash", "sgd", "order of backwards", swap_backwards),
    ("none", "sgd", "count", wrong_count),
    ("none", "sgd", "a rate of a step", step_rate),
    ("none", "sgd", "share", wrong_share),
    *(("none", "sgd", f"a {kind} dropped", drop(kind)) for kind in ("forward", "backward", "step")),
    *(("none", "sgd", f"a {kind} twice", twice(kind)) for kind in ("forward", "backward", "step")),
    ("none", "sgd", "the last step dropped", drop_last_step),
    ("none", "sgd", "recomputation", other_recomputation),
    ("stash", "sgd", "newest for stashed", other_backward),
    ("none", "sgd", "stashed for newest", other_backward),
    ("none", "sgd", "momentum", in_header(*GROUP, "momentum", value=0.91)),
    ("none", "sgd", "decay", in_header(*GROUP, "weight_decay", value=1e-4)),
    ("none", "sgd", "nesterov", in_header(*GROUP, "nesterov", value=True)),
    ("none", "sgd", "Sutskever's form", in_header("optimizer", 0, "form", value="sutskever")),
    ("none", "adam", "beta2", in_header(*GROUP, "betas", value=[0.8, 0.951])),
    ("none", "sgd", "clip", in_header("clip", value=0.01)),
    ("none", "sgd", "precision", in_header("precision", value="bf16")),
    ("none", "sgd", "seed", in_header("seed", value=1)),
    ("none", "sgd", "initial weights", in_header("initial", 1, value="0" * 64)),
    ("spike", "sgd", "mean staleness", in_header("mean_staleness", 0, value=0.4)),
    ("pipemare", "sgd", "mean staleness", in_header("mean_staleness", 0, value=1.0)),
    ("pipemare", "sgd", "warm-up", in_header("options", "annealing_steps", value=6)),
    ("gap_aware", "sgd", "policy", in_header("staleness", value="stash")),
    ("gap_aware", "sgd", "smoothing", in_header("options", "gap_decay", value=0.9)),
    ("adam", "adam", "second moment", in_header("options", "second_decays", value=True)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("policy", "optimizer", "lie", "change"), LIES, ids=[f"{p}-{o}-{lie}" for p, o, lie, _ in LIES]
)
def test_a_planted_lie_is_found(
    policy: str,
    optimizer: str,
    lie: str,
    change: Callable[[Ledger], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "by the bits" in lie:  # so that the count alone does not betray it
        monkeypatch.setattr(Interpreter, "_compare_staleness", lambda *_: None)
    ledger = run(policy, optimizer, accumulate=3 if change is swap_backwards else 2).ledger
    change(ledger)
    result = again(ledger, tmp_path)
    assert not result.identical and result.difference is not None
    assert "line" in result.difference or "ends" in result.difference
    assert "\n" not in result.difference


def change_version(kind: str) -> Callable[[Ledger], None]:
    def change(ledger: Ledger) -> None:
        of(ledger, kind, lambda r: r.stage == 1)[8].values["weights"]["version"] -= 1

    return change


def true_for_predicted(ledger: Ledger) -> None:
    seen = of(ledger, "forward", is_predicted)[0].values["weights"]
    seen["kind"] = "true"
    del seen["rates"]


def predicted_for_true(ledger: Ledger) -> None:
    seen = of(ledger, "forward", lambda r: r.stage == 2)[6].values["weights"]
    seen |= {"kind": "predicted", "rates": [[]]}


def recomputed_on(stage: int) -> Callable[[Ledger], None]:
    return lambda ledger: of(ledger, "backward", lambda r: r.stage == stage)[4].values.update(recomputed=True)


# Of a run whose rates are so small that no weight moves: no bit depends on what was read.
STILL: list[tuple[str, str, Callable[[Ledger], None], str]] = [
    ("none", "version of a forward", change_version("forward"), "reads version"),
    ("none", "version of a backward", change_version("backward"), "reads version"),
    ("none", "stashed for newest", other_backward, "weights of kind 'forward'"),
    ("stash", "newest for stashed", other_backward, "weights of kind 'true'"),
    ("none", "recomputation", other_recomputation, "recomputed"),
    ("none", "recomputation on the last stage", recomputed_on(2), "recomputed"),
    ("msnag", "true for predicted", true_for_predicted, "msnag predicts them"),
    ("msnag", "a prediction of nothing", predicted_for_true, "n from 1 on"),
    ("none", "a schedule without staleness", in_header("schedule", value="1f1b"), "in 1f1b no weights are stale"),
    ("none", "a policy that keeps", in_header("staleness", value="stash"), "weights of kind 'true'"),
    ("stash", "a policy that does not keep", in_header("staleness", value="none"), "weights of kind 'forward'"),
    ("none", "a policy that corrects", in_header("staleness", value="pipemare"), "expected corrected"),
    ("none", "more to a step", in_header("accumulate", value=3), "expected [2, 3]"),
    ("none", "less to a step", in_header("accumulate", value=1), "the header's accumulate is 1"),
    ("spike", "mean staleness", in_header("mean_staleness", 1, value=0.9), "mean_staleness is"),
]


@pytest.mark.parametrize(
    ("policy", "lie", "change", "says"), STILL, ids=[f"{policy}-{lie}" for policy, lie, _, _ in STILL]
)
def test_a_lie_is_found_also_where_no_bit_depends_on_it(
    policy: str, lie: str, change: Callable[[Ledger], None], says: str, tmp_path: Path
) -> None:
    ledger = run(policy, rate=lambda step: 1e-30).ledger
    assert again(ledger, tmp_path).identical
    change(ledger)
    difference = again(ledger, tmp_path).difference or ""
    assert says in difference and difference.startswith("line ")


@pytest.mark.parametrize(("change", "says"), [
    (in_header("schedule", value="async_1f2b"), "schedule 'async_1f2b'; expected seq, gpipe, 1f1b, interleaved"),
    (in_header("staleness", value="nesterov"), "staleness 'nesterov' with optimizer sgd; expected nadam"),
    (in_header("schedule", value="paci"), "schedule paci with staleness 'stash'; expected none"),
])  # fmt: skip
def test_a_header_that_contradicts_itself_is_refused(
    change: Callable[[Ledger], None], says: str, tmp_path: Path
) -> None:
    ledger = run("stash").ledger
    change(ledger)
    with pytest.raises(ConfigError, match="^[^\n]*$") as error:
        again(ledger, tmp_path)
    assert says in str(error.value)


def test_steps_that_never_are_as_large_as_the_header_says_get_a_note(tmp_path: Path) -> None:
    ledger = run(schedule="1f1b", window=None).ledger
    assert again(ledger, tmp_path).notes == []
    ledger.header["accumulate"] = 6
    assert again(ledger, tmp_path).notes == ["no step has as many micro-batches as the header's accumulate, 6"]


@pytest.mark.parametrize(("policy", "optimizer"), [("aggmsnag", "adamw"), ("pipemare", "sgd"), ("gap_aware", "sgd")])
def test_whatever_stands_in_a_ledger_the_answer_is_a_difference_or_one_line(
    policy: str, optimizer: str, tmp_path: Path
) -> None:
    """Values of the right kind, but wild: never a traceback, and never 'identical' if what is computed with was changed."""
    text = [json.dumps(line) for line in lines_of(run(policy, optimizer, data=data_of(batches=3)).ledger)]
    rng = random.Random(policy)
    for _ in range(120):
        lines = [json.loads(line) for line in text]
        where = 0 if rng.random() < 0.3 else rng.randrange(len(lines))
        place: Any = lines[where]
        key = rng.choice(list(place))
        while isinstance(place[key], (dict, list)) and place[key]:
            place = place[key]
            key = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
        old = place[key]
        if isinstance(old, bool) or not isinstance(old, (int, float, list, dict)):
            continue
        wild: list[Any] = (
            [[], [0]] if isinstance(old, list) else [{}] if isinstance(old, dict) else [0, 1, 2, 7, 10**12]
        )
        place[key] = rng.choice([*wild, 0.5, -1.5, 1e30] if isinstance(old, float) else wild)
        ledger = tmp_path / "wild.jsonl"
        ledger.write_text("\n".join(map(json.dumps, lines)) + "\n")
        try:
            result = replay(ledger, stages_of(), mean_loss, data_of(batches=3))
        except ConfigError as error:
            assert "\n" not in str(error)
        else:
            assert result.identical or "\n" not in (result.difference or "")


def lines_of(ledger: Ledger) -> list[dict[str, Any]]:
    return [ledger.header, *(record.values for record in ledger.records)]


def test_a_run_that_diverges_replays_too(tmp_path: Path) -> None:
    found = run("msnag", optimizer="wild")
    assert not math.isfinite(found.losses[-1])
    assert again(found.ledger, tmp_path).identical


def test_other_data_and_other_weights_are_found(tmp_path: Path) -> None:
    ledger = run().ledger
    other = data_of()
    other[3][0][0, 0] += 1e-3
    assert "loss" in (again(ledger, tmp_path, data=other).difference or "")
    with pytest.raises(ConfigError, match="14 micro-batches, the program 12"):
        again(ledger, tmp_path, data=other[:6])
    assert "stage 1, version 0" in (
        replay(tmp_path / "ledger.jsonl", with_other_stage(), mean_loss, data_of()).difference or ""
    )


def test_a_ledger_that_ends_before_the_program_is_compared_as_far_as_it_goes(tmp_path: Path) -> None:
    ledger = run(data=data_of(batches=4)).ledger
    result = again(ledger, tmp_path, data=data_of(batches=4) + data_of(batches=1))
    assert result.identical and result.steps == 3 * 4
    assert result.notes == ["the ledger ends after 8 micro-batches, and the program has more: not compared"]


def with_other_stage() -> list[nn.Module]:
    stages = stages_of()
    with torch.no_grad():
        next(stages[1].parameters()).view(-1)[0] += 1e-6
    return stages
