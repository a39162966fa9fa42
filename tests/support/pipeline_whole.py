"""Whole models that a pipeline cuts by itself; these run inside workers."""

from __future__ import annotations

import copy
from typing import Any

import pipeline_borders
import pipelines as p
import torch

import ddip


def whole(dtype: torch.dtype = torch.float64) -> pipeline_borders.AllToLast:
    torch.manual_seed(4)
    return pipeline_borders.AllToLast(4).to(dtype)


def whole_pipe(**options: Any) -> ddip.Pipeline:
    return p.pipe_of(whole(), **{"schedule": "1f1b", "example": p.data(1, 3)[0][0], **options})  # type: ignore[arg-type]


def whole_in_one_process(schedule: str, stages: int) -> tuple[float, str, int]:
    batches = p.data(5, 12, 9)
    pipe = whole_pipe(schedule=schedule, stages=stages)
    pipe.run(batches)
    expected = p.in_one_process([whole()], batches)
    away = p.furthest({name.removeprefix("0."): tensor for name, tensor in expected.items()}, pipe.state_dict())
    return away, str(pipe.cut.plan) if pipe.cut else "", len(pipe.mine)


class Pair(torch.nn.Sequential):
    """Two layers that are one to whoever says so."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__(torch.nn.Linear(inside, inside), torch.nn.Tanh(), torch.nn.Linear(inside, outside))


def pairs(leaves: list[Any]) -> tuple[list[list[str]], float]:
    """Three of them, in two stages: which layers each has, and how far the training is from one process's."""
    torch.manual_seed(2)
    model = torch.nn.Sequential(Pair(6, 6), Pair(6, 6), Pair(6, 3)).double()
    batches = p.data(4, 12)
    pipe = p.pipe_of(copy.deepcopy(model), "1f1b", example=batches[0][0][:3], leaves=leaves)  # type: ignore[arg-type]
    pipe.run(batches)
    expected = p.in_one_process([model], batches)
    away = p.furthest({name.removeprefix("0."): tensor for name, tensor in expected.items()}, pipe.state_dict())
    return pipe.cut.plan.stages if pipe.cut else [], away


class TwiceUsed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.middle, self.head = (torch.nn.Linear(6, 6, bias=False) for _ in range(3))
        self.head.weight = self.table.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.middle(torch.tanh(self.table(x)))))  # type: ignore[no-any-return]


def whole_and_tied() -> float:
    torch.manual_seed(2)
    model = TwiceUsed().double()
    batches = [(x, x.flip(0)) for x, _ in p.data(4, 12)]
    pipe = p.pipe_of(copy.deepcopy(model), "1f1b", example=batches[0][0][:3])  # type: ignore[arg-type]
    pipe.run(batches)
    expected = p.in_one_process([model], batches)
    return p.furthest({name.removeprefix("0."): tensor for name, tensor in expected.items()}, pipe.state_dict())


class ChangesInPlace(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.a, self.b, self.c = (torch.nn.Linear(6, 6) for _ in range(4))
        self.up, self.relu, self.last = torch.nn.Tanh(), torch.nn.ReLU(inplace=True), torch.nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.a(self.first(x))
        skip = self.up(h)
        return self.last(self.c(self.b(self.relu(h)) + skip))  # type: ignore[no-any-return]


def whole_and_in_place(partition: str) -> tuple[str, float]:
    """The plan, and how far the training is from one process's."""
    batches = p.data(4, 12)
    pipe = p.pipe_of(  # type: ignore[arg-type]
        ChangesInPlace().double(), "interleaved", example=batches[0][0][:3], stages=4, partition=partition or None
    )
    pipe.run(batches)
    expected = p.in_one_process([ChangesInPlace().double()], batches)
    away = p.furthest({name.removeprefix("0."): tensor for name, tensor in expected.items()}, pipe.state_dict())
    return str(pipe.cut.plan) if pipe.cut else "", away


def limited_rows() -> list[float]:
    """Each forward of an embedding may limit its rows; making a pipeline may not."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(10, 6, max_norm=0.1), torch.nn.Linear(6, 3))
    p.pipe_of(model, "1f1b", example=torch.arange(6).view(2, 3), replicas=2, stages=1)  # type: ignore[arg-type]
    return [float(parameter.detach().abs().sum()) for parameter in model.parameters()]
