"""Models and data that a pipeline and one process train alike; both run inside workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import ddip


def mlp(stages: int, dtype: torch.dtype = torch.float64) -> list[torch.nn.Module]:
    torch.manual_seed(0)
    parts = [torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh())]
    parts += [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(stages - 2)]
    parts += [torch.nn.Linear(8, 3)]
    return [part.to(dtype) for part in parts[:stages]] if stages > 1 else [torch.nn.Linear(6, 3).to(dtype)]


def data(
    batches: int, size: int, last: int | None = None, dtype: torch.dtype = torch.float64
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(7)
    sizes = [size] * (batches - 1) + [last or size]
    return [
        (torch.randn(n, 6, generator=generator, dtype=dtype), torch.randn(n, 3, generator=generator, dtype=dtype))
        for n in sizes
    ]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.05, momentum=0.9)


def in_one_process(
    parts: list[torch.nn.Module],
    batches: list[Any],
    make: Callable[..., Any] = sgd,
    accumulate: int = 1,
    clip: float | None = None,
) -> dict[str, torch.Tensor]:
    """Plain PyTorch: one step for each `accumulate` batches, the mean over all their samples."""
    model = torch.nn.Sequential(*parts)
    optimizer = make(list(model.parameters()))
    for begin in range(0, len(batches), accumulate):
        group = batches[begin : begin + accumulate]
        x, y = torch.cat([x for x, _ in group]), torch.cat([y for _, y in group])
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def furthest(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    assert sorted(a) == sorted(b), (sorted(a), sorted(b))
    return max(float((a[name] - b[name]).abs().max()) for name in a)


def synchronous(schedule: str, stages: int, micro_batches: int, last: int | None = None, **options: Any) -> float:
    """How far a pipeline ends from one process; and, so that it says something, how far the training went."""
    batches = data(5, 12, last)
    pipe = ddip.Pipeline(
        mlp(stages),
        loss=torch.nn.functional.mse_loss,
        optimizer=sgd,
        schedule=schedule,
        micro_batches=micro_batches,
        **options,
    )
    report = pipe.run(batches)
    expected = in_one_process(mlp(stages), batches, accumulate=options.get("accumulate", 1))
    assert len(report.losses) == 5 and report.losses[-1] > 0
    assert furthest(expected, {k: v for k, v in torch.nn.Sequential(*mlp(stages)).state_dict().items()}) > 1e-3
    return furthest(expected, pipe.state_dict())


RULES: dict[str, Callable[..., Any]] = {
    "sgd": sgd,
    "sgd with decay": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, 0.01),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, 0.01),
}


def replayed(
    path: str,
    schedule: str,
    staleness: str,
    rule: str = "sgd",
    stages: int = 2,
    runs: int = 1,
    size: int = 12,
    **options: Any,
) -> str:
    """Trains a pipeline that writes a ledger, and computes it again in one process: "identical", or what differs."""
    from ddip.pipeline.replay import replay

    batches = data(6, size, 7, torch.float32)
    torch.set_num_threads(1)
    pipe = ddip.Pipeline(
        mlp(stages, torch.float32), loss=torch.nn.functional.mse_loss, optimizer=RULES[rule], schedule=schedule,
        staleness=staleness, ledger=path, seed=5, **{"micro_batches": 4, **options},
    )  # fmt: skip
    for _ in range(runs):
        pipe.run(batches)
    weights = pipe.state_dict()
    if ddip.rank() != 0:
        return "identical"
    found = replay(path, mlp(stages, torch.float32), torch.nn.functional.mse_loss, batches * runs)
    if found.difference is not None:
        return found.difference
    for name, tensor in weights.items():
        stage, _, inner = name.partition(".")
        if not torch.equal(found.weights[int(stage)][inner], tensor):
            return f"{name} is not what the ledger says"
    return "identical"


def gaps_and_replays(path: str, staleness: str, **options: Any) -> tuple[list[Any], list[tuple[float, float]], str]:
    """What a run's report says of each stage, what its ledger's replay says, and the report."""
    from ddip.pipeline.replay import replay

    torch.set_num_threads(1)
    batches = data(6, 12, 7, torch.float32)
    pipe = pipe_of(
        mlp(2, torch.float32),
        "async_1f1b",
        staleness=staleness,
        ledger=path,
        gaps=True,
        **{"micro_batches": 4, "window": [3, 0], **options},
    )
    report = pipe.run(batches)
    found = replay(path, mlp(2, torch.float32), torch.nn.functional.mse_loss, batches, gaps=True)
    assert found.difference is None, found.difference
    means = []
    for index in range(2):
        mine = [gap for gap in found.gaps if gap.stage == index]
        ratios = [gap.ratio for gap in mine if gap.ratio is not None]
        means.append((sum(gap.moved for gap in mine) / len(mine), sum(ratios) / len(ratios) if ratios else 0.0))
    again = pipe.run(batches[:1]).stages  # a run of its own
    assert again[0].gap != report.stages[0].gap and pipe.evaluate(batches).stages[0].gap is None
    return [(one.gap.moved, one.gap.error) for one in report.stages], means, str(report)  # type: ignore[union-attr]


def pipe_of(parts: list[torch.nn.Module], schedule: str = "async_1f1b", **options: Any) -> ddip.Pipeline:
    usual = {"loss": torch.nn.functional.mse_loss, "optimizer": sgd, "micro_batches": 4}
    return ddip.Pipeline(parts, schedule=schedule, **{**usual, **options})


def resumed(path: str, schedule: str, staleness: str, rule: str) -> float:
    """How far a run that was saved, thrown away and loaded ends from one that went on."""
    batches = data(6, 12)

    def make() -> ddip.Pipeline:
        return pipe_of(mlp(2), schedule, staleness=staleness) if rule == "sgd" else ddip.Pipeline(
            mlp(2), loss=torch.nn.functional.mse_loss, optimizer=RULES[rule], schedule=schedule, staleness=staleness,
            micro_batches=4, scheduler=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.97),
        )  # fmt: skip

    whole = make()
    whole.run(batches[:3])
    whole.save(path)
    middle = whole.state_dict()
    whole.run(batches[3:])
    again = make()
    again.load(path)
    assert furthest(middle, again.state_dict()) == 0
    again.run(batches[3:])
    assert furthest(middle, whole.state_dict()) > 1e-4
    return furthest(whole.state_dict(), again.state_dict())


def on_backend(name: str) -> float:
    """The same over another communicator."""
    batches = data(4, 12, 7)
    pipe = pipe_of(mlp(2), "1f1b", ranks=ddip.comm(name))
    pipe.run(batches)
    return furthest(in_one_process(mlp(2), batches), pipe.state_dict())


def mixed(staleness: str) -> tuple[list[str], float, float]:
    """bf16 autocast: (notes, first loss, last loss)."""
    batches = data(1, 12, dtype=torch.float32) * 60
    pipe = pipe_of(mlp(2, torch.float32), staleness=staleness, precision="bf16")
    losses = pipe.run(batches).losses
    return pipe.notes, losses[0], losses[-1]


SEEN: list[torch.Tensor] = []  # the tied weight, as each forward on this rank saw it


class Mean(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean(1)


def of_any_length() -> list[torch.nn.Module]:
    torch.manual_seed(2)
    first = torch.nn.Sequential(torch.nn.Linear(6, 40), torch.nn.Tanh())
    last = torch.nn.Sequential(torch.nn.Linear(40, 3), Mean())
    return [first.double(), last.double()]


def changing_shapes(schedule: str, **options: Any) -> float:
    """Sequences whose length changes from batch to batch: shorter and longer than the first."""
    generator = torch.Generator().manual_seed(8)
    batches = [
        (
            torch.randn(8, length, 6, generator=generator, dtype=torch.float64),
            torch.randn(8, 3, generator=generator, dtype=torch.float64),
        )
        for length in (5, 1, 60, 7, 200, 5)
    ]
    pipe = pipe_of(of_any_length(), schedule, **options)
    expected = torch.nn.Sequential(*of_any_length())
    optimizer = sgd(list(expected.parameters()))
    pipe.run(batches)
    for x, y in batches:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(expected(x), y).backward()
        optimizer.step()
    return furthest(expected.state_dict(), pipe.state_dict())


def bytes_with_targets_of(width: int) -> list[int]:
    """Bytes that each stage sends."""
    batches = [(x, torch.nn.functional.pad(y, (0, width - 3))) for x, y in data(3, 12)]
    pipe = ddip.Pipeline(
        mlp(2),
        loss=lambda out, y: torch.nn.functional.mse_loss(out, y[:, :3]),
        optimizer=sgd,
        schedule="1f1b",
        micro_batches=4,
    )
    return [stage.bytes_sent for stage in pipe.run(batches).stages]


def stepping_rarely(path: str, schedule: str, staleness: str) -> str:
    """One step in eight batches, which a plan of few batches would take for a synchronous run."""
    from ddip.pipeline.replay import replay

    torch.set_num_threads(1)
    batches = data(40, 4, dtype=torch.float32)

    def parts() -> list[torch.nn.Module]:
        torch.manual_seed(2)
        first = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Tanh())
        return [first, torch.nn.Linear(8, 3)]

    loss = torch.nn.functional.mse_loss
    pipe = ddip.Pipeline(
        parts(), loss=loss, optimizer=sgd, schedule=schedule, staleness=staleness, micro_batches=1, accumulate=8, ledger=path
    )  # fmt: skip
    report = pipe.run(batches)
    if ddip.rank() != 0:
        return "identical"
    assert max(report.stages[0].staleness) > 0
    return replay(path, parts(), loss, batches).difference or "identical"


def kept_after_small_batches(schedule: str, **options: Any) -> list[int]:
    """Copies of weights that are there after runs whose last batch has fewer samples than micro-batches."""
    pipe = pipe_of(mlp(2), schedule, micro_batches=4, **options)
    for _ in range(3):
        pipe.run(data(4, 8, 2))
    return [versions.kept for versions in pipe.versions.values()]


def next_words() -> tuple[float, float]:
    """A language model, whose labels are its own inputs one word later: (how far from one process, how far it came)."""
    torch.manual_seed(3)
    texts = torch.randint(11, (4, 12, 7))

    def parts() -> list[torch.nn.Module]:
        torch.manual_seed(4)
        made = [torch.nn.Sequential(torch.nn.Embedding(11, 8), torch.nn.Linear(8, 8)), torch.nn.Linear(8, 11)]
        return [part.double() for part in made]

    def loss(out: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(out[:, :-1].flatten(0, 1), words[:, 1:].flatten())

    pipe = ddip.Pipeline(parts(), loss=loss, optimizer=sgd, schedule="1f1b", micro_batches=4)
    pipe.run([(text, text) for text in texts])
    model = torch.nn.Sequential(*parts())
    begun = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = sgd(model.parameters())
    for text in texts:
        optimizer.zero_grad()
        loss(model(text), text).backward()
        optimizer.step()
    ended = pipe.state_dict()
    return furthest(model.state_dict(), ended), furthest(begun, ended)


def scheduled(path: str) -> str:
    """Rates that a scheduler changes at every step."""
    return replayed(
        path,
        "async_1f1b",
        "msnag",
        window=[3, 0],
        scheduler=lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 40),
    )


def replay_again(path: str, stages: int, runs: int) -> str | None:
    from ddip.pipeline.replay import replay

    batches = data(6, 12, 7, torch.float32)
    return replay(path, mlp(stages, torch.float32), torch.nn.functional.mse_loss, batches * runs).difference
