"""Weights that two stages share; these run inside workers."""

from __future__ import annotations

from typing import Any

import pipelines as p
import torch


class Head(torch.nn.Module):
    """A hidden layer of its own, then the weight that another stage owns."""

    def __init__(self, table: torch.nn.Parameter) -> None:
        super().__init__()
        self.hidden = torch.nn.Linear(8, 8)
        self.out = torch.nn.Linear(8, 6, bias=False)
        self.out.weight = table

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        p.SEEN.append(self.out.weight.detach().clone())
        return self.out(torch.tanh(self.hidden(x)))  # type: ignore[no-any-return]


class Table(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(6, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        p.SEEN.append(self.weight.detach().clone())
        return torch.tanh(x @ self.weight)


def tied(stages: int, dtype: torch.dtype = torch.float64) -> list[torch.nn.Module]:
    torch.manual_seed(3)
    first = Table()
    between = [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(stages - 2)]
    parts = torch.nn.ModuleList([first, *between, Head(first.weight)]).to(dtype)
    assert parts[-1].out.weight is parts[0].weight
    return list(parts)


def tied_data(dtype: torch.dtype = torch.float64) -> list[Any]:
    return [(x, x.flip(0)) for x, _ in p.data(5, 12, 9, dtype)]


def tied_in_one_process(schedule: str, stages: int) -> float:
    batches, parts = tied_data(), tied(stages)
    placement = [stage * 2 // stages for stage in range(stages)]
    pipe = p.pipe_of(parts, schedule, placement=placement, accumulate=2)
    pipe.run(batches)
    assert parts[-1].out.weight is parts[0].weight and parts[-1](torch.zeros(2, 8).double()).shape == (2, 6)
    found = pipe.state_dict()
    assert torch.equal(found["0.weight"], found[f"{stages - 1}.out.weight"])
    return p.furthest(p.in_one_process(tied(stages), batches, accumulate=2), found)


def tied_replayed(
    path: str, schedule: str, staleness: str, stages: int, **options: Any
) -> tuple[str, list[torch.Tensor]]:
    """And the tied weight, as each forward saw it."""
    from ddip.pipeline.replay import replay

    torch.set_num_threads(1)
    batches, parts = tied_data(torch.float32), tied(stages, torch.float32)
    p.SEEN.clear()
    pipe = p.pipe_of(
        parts,
        schedule,
        staleness=staleness,
        ledger=path,
        placement=[stage * 2 // stages for stage in range(stages)],
        **options,
    )
    pipe.run(batches)
    seen = list(p.SEEN)
    weights = pipe.state_dict()
    pipe.save(path + ".saved")
    other = p.pipe_of(tied(stages, torch.float32), schedule, staleness=staleness, placement=pipe.placement, **options)
    other.load(path + ".saved")
    assert p.furthest(other.state_dict(), weights) == 0
    found = replay(path, tied(stages, torch.float32), torch.nn.functional.mse_loss, batches)
    assert found.difference or torch.equal(found.weights[0]["weight"], weights["0.weight"])
    return found.difference or "identical", seen


def tied_simulated(schedule: str, staleness: str) -> float:
    """How far the simulator's weights are from the pipeline's."""
    from ddip.pipeline.simulate import simulate

    torch.set_num_threads(1)
    batches = tied_data(torch.float32)
    pipe = p.pipe_of(tied(2, torch.float32), schedule, staleness=staleness)
    pipe.run(batches)
    found = simulate(
        tied(2, torch.float32), torch.nn.functional.mse_loss, batches, schedule=schedule, staleness=staleness, optimizer=p.sgd,
        micro_batches=4,
    )  # fmt: skip
    simulated = {
        f"{stage}.{name}": tensor for stage, weights in enumerate(found.weights) for name, tensor in weights.items()
    }
    return p.furthest(simulated, {name: tensor for name, tensor in pipe.state_dict().items() if name != "1.out.weight"})
