"""What crosses the borders between stages: tuples, skips, several consumers; these run inside workers."""

from __future__ import annotations

from typing import Any

import pipelines as p
import torch

import ddip


class Residual(torch.nn.Module):
    """Takes and gives a tuple; works in place on what it receives; has a batch norm and dropout."""

    def __init__(self, first: bool = False) -> None:
        super().__init__()
        self.first = first
        self.linear = torch.nn.Linear(6, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.drop = torch.nn.Dropout(0.3)

    def forward(self, given: Any) -> Any:
        x, skip, times, nothing = (given, given * 0.5, 3, None) if self.first else given
        assert times == 3 and nothing is None
        x = x.relu_() if not self.first else x
        x = self.drop(self.norm(self.linear(x)))
        return (x + skip, skip.mul_(1.5) if not self.first else skip, times, nothing)


class Last(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(6, 3)

    def forward(self, given: Any) -> Any:
        x, skip, _, _ = given
        return self.linear(x.add_(skip))


def borders(stages: int) -> list[torch.nn.Module]:
    torch.manual_seed(3)
    return [Residual(index == 0) if index < stages - 1 else Last() for index in range(stages)]


def borders_replayed(path: str, schedule: str, staleness: str, **options: Any) -> str:
    """Tuples, None, numbers, in-place operators at borders, batch norm and dropout, beside the replay."""
    from ddip.pipeline.replay import replay

    torch.set_num_threads(1)
    batches = p.data(5, 12, 9, torch.float32)
    stages = ddip.world_size()
    pipe = ddip.Pipeline(
        borders(stages), loss=torch.nn.functional.mse_loss, optimizer=p.sgd, schedule=schedule, staleness=staleness,
        ledger=path, seed=5, **{"micro_batches": 3, **options},
    )  # fmt: skip
    pipe.run(batches)
    weights = pipe.state_dict()
    if ddip.rank() != 0:
        return "identical"
    found = replay(path, borders(stages), torch.nn.functional.mse_loss, batches)
    if found.difference is not None:
        return found.difference
    for index, buffers in enumerate(found.buffers):
        for name, tensor in buffers.items():
            if not torch.equal(weights[f"{index}.{name}"], tensor):
                return f"buffer {index}.{name}: {weights[f'{index}.{name}']} and {tensor}"
    assert int(weights["0.norm.num_batches_tracked"]) == 15, "each micro-batch counts once"
    return "identical"


class AllToLast(torch.nn.Module):
    """Every layer is connected to the last one, besides the next."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(6, 6) for _ in range(layers)])
        self.last = torch.nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = x
        for layer in self.layers:
            x = torch.tanh(layer(x))
            total = total + x
        return self.last(total)  # type: ignore[no-any-return]


def skipping(layers: int, cut: list[int]) -> Any:
    """`cut`: how many of the traced layers each stage has; -1: the rest."""
    from ddip.pipeline.split import split
    from ddip.pipeline.trace import trace

    torch.manual_seed(4)
    traced = trace(AllToLast(layers))
    names = [layer.name for layer in traced.layers]
    stages, begin = [], 0
    for count in cut:
        end = len(names) if count < 0 else begin + count
        stages.append(names[begin:end])
        begin = end
    return split(traced, stages)


def skips_replayed(
    path: str, schedule: str, staleness: str, cut: list[int], placement: list[int], **options: Any
) -> str:
    """Skips to the last stage, and stages that share a rank, beside the replay."""
    from ddip.pipeline.replay import replay

    torch.set_num_threads(1)
    batches = p.data(5, 12, 9, torch.float32)
    loss = torch.nn.functional.mse_loss
    pipe = ddip.Pipeline(
        skipping(4, cut), loss=loss, optimizer=p.sgd, schedule=schedule, staleness=staleness, ledger=path, seed=5,
        placement=placement, **{"micro_batches": 4, **options},
    )  # fmt: skip
    report = pipe.run(batches)
    weights = pipe.state_dict()
    evaluated = pipe.evaluate(batches)
    if ddip.rank() != 0:
        return "identical"
    torch.manual_seed(4)
    plain = AllToLast(4)
    assert sorted(weights) == sorted(plain.state_dict()), "the model's own names"
    plain.load_state_dict(weights)
    expected = [float(loss(plain(x), y)) for x, y in batches]
    assert all(abs(a - b) < 1e-5 for a, b in zip(expected, evaluated.losses, strict=True)), (expected, evaluated.losses)
    assert report.losses != evaluated.losses
    found = replay(path, skipping(4, cut).modules, loss, batches)
    return found.difference or "identical"


def skips_in_one_process(schedule: str, cut: list[int], placement: list[int], **options: Any) -> float:
    batches = p.data(5, 12, 9, torch.float32)
    pipe = ddip.Pipeline(
        skipping(4, cut), loss=torch.nn.functional.mse_loss, optimizer=p.sgd, schedule=schedule, placement=placement,
        **{"micro_batches": 4, **options},
    )  # fmt: skip
    pipe.run(batches)
    torch.manual_seed(4)
    expected = p.in_one_process([AllToLast(4)], batches)
    return p.furthest({name.removeprefix("0."): tensor for name, tensor in expected.items()}, pipe.state_dict())
