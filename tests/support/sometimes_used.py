"""Stages with weights that some micro-batches do not use, and one that nobody ever uses; these run inside workers."""

from __future__ import annotations

from typing import Any

import pipelines as p
import torch

import ddip


class Sometimes(torch.nn.Module):
    """Rows whose flag is up go through `extra` too. Without such rows, `extra` has no gradient."""

    def __init__(self, width: int, out: int, last: bool) -> None:
        super().__init__()
        self.extra = torch.nn.Linear(width, out)
        self.body = torch.nn.Linear(width, out)
        self.never = torch.nn.Parameter(torch.ones(3))
        self.last = last

    def forward(self, given: Any) -> Any:
        x, flag = given if isinstance(given, tuple) else (given, given[:, 0])
        y, rows = self.body(x), flag > 0
        if rows.any():
            y = y.index_add(0, rows.nonzero()[:, 0], self.extra(x[rows]))
        return y if self.last else (torch.tanh(y), flag)


def stages(dtype: torch.dtype = torch.float64, count: int = 2) -> list[torch.nn.Module]:
    torch.manual_seed(1)
    made = [Sometimes(6, 3, True)] if count == 1 else [Sometimes(6, 8, False), Sometimes(8, 3, True)]
    return [part.to(dtype) for part in made]


def data(pattern: str, size: int = 12, dtype: torch.dtype = torch.float64) -> list[Any]:
    """A batch for each letter: + all flags are up, - none is, * those of some rows are."""
    batches = p.data(len(pattern), size, size - 5, dtype)
    for (x, _), letter in zip(batches, pattern, strict=True):
        if letter != "*":
            x[:, 0] = x[:, 0].abs() * (1 if letter == "+" else -1)
    return batches


RULES = p.RULES | {
    "momentum with decay": lambda ps: torch.optim.SGD(ps, 0.05, momentum=0.9, weight_decay=0.02),
    "adam with decay": lambda ps: torch.optim.Adam(ps, 0.01, weight_decay=0.01),
    "nadam with decay": lambda ps: torch.optim.NAdam(ps, 0.01, weight_decay=0.01),
    "plain sgd with decay": lambda ps: torch.optim.SGD(ps, 0.05, weight_decay=0.02),
    "nadam in two groups": lambda ps: torch.optim.NAdam(
        [{"params": ps[:2], "betas": (0.8, 0.99)}, {"params": ps[2:], "momentum_decay": 0.1}], 0.01
    ),
}


def beside_one_process(schedule: str, rule: str, pattern: str) -> tuple[float, float, list[float]]:
    """How far a pipeline ends from one process, how far `never` went, and the steps of `extra` and of `body` (0: none)."""
    batches = data(pattern)
    pipe = p.pipe_of(stages(), schedule, optimizer=RULES[rule])
    pipe.run(batches)
    expected = p.in_one_process(stages(), batches, RULES[rule])
    steps = []
    for stepping in pipe.steppings.values():
        of = dict(zip(stepping.names, stepping.masters, strict=True))
        states = [stepping.optimizer.state.get(of[name], {}) for name in ("extra.weight", "body.weight")]  # type: ignore[union-attr]
        steps += [float(state.get("step", 0)) for state in states]
    found = pipe.state_dict()
    return p.furthest(expected, found), float((found["0.never"] - 1).abs().max()), steps


def replayed(path: str, staleness: str, rule: str, schedule: str = "async_1f1b") -> str:
    """A pipeline that writes a ledger, computed again in one process: "identical", or what differs."""
    from ddip.pipeline.replay import replay

    batches = data("--*+-**-+", dtype=torch.float32)
    torch.set_num_threads(1)
    pipe = p.pipe_of(
        stages(torch.float32), schedule, optimizer=RULES[rule], staleness=staleness, ledger=path, window=[3, 0]
    )
    pipe.run(batches)
    weights = pipe.state_dict()
    if ddip.rank() != 0:
        return "identical"
    found = replay(path, stages(torch.float32), torch.nn.functional.mse_loss, batches)
    if found.difference is not None:
        return found.difference
    assert torch.equal(weights["0.never"], torch.ones(3)) and torch.equal(weights["1.never"], torch.ones(3))
    return "identical"


class Watching(Sometimes):
    """Remembers how far `extra` was from its first value in each forward."""

    def forward(self, given: Any) -> Any:
        if not hasattr(self, "begun"):
            self.begun, self.away = self.extra.weight.detach().clone(), []
        self.away.append(float((self.extra.weight.detach() - self.begun).abs().max()))
        return super().forward(given)


def seen_before_the_first_step(staleness: str, rule: str) -> tuple[float, float]:
    """How far a weight seems to be before it has ever stepped, and afterwards."""
    torch.manual_seed(1)
    made = [Watching(6, 8, False).double(), Watching(8, 3, True).double()]
    pipe = p.pipe_of(made, optimizer=RULES[rule], staleness=staleness, window=[3, 0])
    pipe.run(data("------+++"))
    away = made[ddip.rank()].away
    return max(away[: 6 * 4 + 1]), max(away)  # up to the first forward that uses it


def loaded_in_place(path: str, staleness: str, rule: str) -> tuple[float, float]:
    """A pipeline that has gone on loads an older file, of before `extra` was ever used: how far it ends from where it had come
    before, and how far that was."""
    pipe = p.pipe_of(stages(), optimizer=RULES[rule], staleness=staleness, window=[3, 0])
    pipe.run(data("--"))
    pipe.save(path)
    ends = []
    for _ in range(2):
        pipe.run(data("+-**+-"))
        ends.append(pipe.state_dict())
        pipe.load(path)
    return p.furthest(*ends), p.furthest(ends[0], pipe.state_dict())


def in_replicas(pattern: str) -> tuple[float, bool]:
    """Two replicas of one stage, beside one process on the batches of both."""
    batches = data(pattern, 24)
    pipe = p.pipe_of(stages(count=1), "1f1b", optimizer=RULES["adamw"], replicas=2)
    pipe.run([(x.tensor_split(2)[pipe.replica], y.tensor_split(2)[pipe.replica]) for x, y in batches])
    used = [bool((x.tensor_split(2)[0][:, 0] > 0).any()) for x, _ in batches]
    other = [bool((x.tensor_split(2)[1][:, 0] > 0).any()) for x, _ in batches]
    return p.furthest(p.in_one_process(stages(count=1), batches, RULES["adamw"]), pipe.state_dict()), used != other


def one_sided(batches: list[Any]) -> list[Any]:
    """The flags of the first half of each batch are down."""
    for x, _ in batches:
        x[: len(x) // 2, 0] = -x[: len(x) // 2, 0].abs()
    return batches


def resumed(path: str, rule: str) -> float:
    """How far a run that was saved before `extra` was ever used, and loaded, ends from one that went on."""

    def make() -> ddip.Pipeline:
        return p.pipe_of(stages(), "1f1b", optimizer=RULES[rule])

    whole, again = make(), make()
    whole.run(data("--"))
    whole.save(path)
    again.load(path)
    for pipe in (whole, again):
        pipe.run(data("+-+"))
    return p.furthest(whole.state_dict(), again.state_dict())


def never_reached(staleness: str, rule: str) -> tuple[bool, list[str]]:
    """A first stage whose output nobody differentiates."""

    class Cut(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rest = p.mlp(2)[1]

        def forward(self, x: torch.Tensor) -> Any:
            return self.rest(x.detach())

    first = p.mlp(2)[0]
    before = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    pipe = p.pipe_of([first, Cut()], optimizer=RULES[rule], staleness=staleness)
    pipe.run(p.data(4, 12))
    after = pipe.state_dict()
    return all(torch.equal(after[f"0.{name}"], tensor) for name, tensor in before.items()), list(pipe.notes)
