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
