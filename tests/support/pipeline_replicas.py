"""Pipelines side by side, and limits on their gradients; these run inside workers."""

from __future__ import annotations

from typing import Any

import pipeline_failures
import pipelines as p
import torch

import ddip


def clipped(schedule: str, clipping: str, stages: int = 2, placement: list[int] | None = None) -> float:
    """How far a pipeline whose gradients are clipped ends from one process that clips the whole model's."""
    batches = p.data(6, 12, 7)
    options = {"clip": 0.05, "clipping": clipping, "placement": placement or [s * 2 // stages for s in range(stages)]}
    pipe = p.pipe_of(p.mlp(stages), schedule, **options)
    pipe.run(batches[:3])
    pipe.run(batches[3:])
    return p.furthest(p.in_one_process(p.mlp(stages), batches, clip=0.05), pipe.state_dict())


def replicated(
    schedule: str, staleness: str, world: int, replicas: int, last: int = 12, **options: Any
) -> tuple[float, bool, list[float]]:
    """Pipelines side by side, each on its part of the batches, beside one process, or the simulator, on whole ones: how far they
    are from each other, whether the replicas have the same bits, and by how much the losses differ from one process's first."""
    from ddip.pipeline.simulate import simulate
    from ddip.replicas import gather_objects

    whole, stages, synchronous = (
        p.data(6, 12 * replicas, last * replicas),
        world // replicas,
        schedule in ("gpipe", "1f1b"),
    )
    pipe = p.pipe_of(p.mlp(stages), schedule, staleness=staleness, replicas=replicas, **options)

    def share(tensor: torch.Tensor) -> torch.Tensor:
        """Micro-batch k of the whole is micro-batch k of each replica, one after the other."""
        return torch.cat([part.tensor_split(replicas)[pipe.replica] for part in tensor.tensor_split(4)])

    mine = [(share(x), share(y)) for x, y in whole]
    losses = pipe.run(mine[:4]).losses + pipe.run(mine[4:]).losses if synchronous else pipe.run(mine).losses
    weights = pipe.state_dict()
    here = {index: pipe.stage_state_dict(index) for index in pipe.mine}
    same = all(
        torch.equal(tensor, theirs[index][name])
        for theirs in gather_objects(here, pipe.ranks)
        for index, state in here.items()
        if index in theirs
        for name, tensor in state.items()
    )
    loss = torch.nn.functional.mse_loss
    before = float(loss(torch.nn.Sequential(*p.mlp(stages))(whole[0][0]), whole[0][1]))
    if synchronous:
        expected = p.in_one_process(p.mlp(stages), whole, clip=options.get("clip"))
        return p.furthest(expected, weights), same, [losses[0] - before]
    found = simulate(
        p.mlp(stages), loss, whole, schedule=schedule, staleness=staleness, optimizer=p.sgd, micro_batches=4,
        accumulate=options.get("accumulate", 1), recompute=options.get("recompute", False),
    )  # fmt: skip
    simulated = {f"{i}.{name}": tensor for i, one in enumerate(found.weights) for name, tensor in one.items()}
    return p.furthest(simulated, weights), same, [0.0]


def replicas_resumed(path: str) -> tuple[float, bool]:
    """How far replicas with batch norm, saved and loaded, end from those that went on; and whether their statistics differ."""

    def make() -> ddip.Pipeline:
        torch.manual_seed(3)
        stages = [torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8)), torch.nn.Linear(8, 3)]
        return p.pipe_of([stage.double() for stage in stages], "1f1b", replicas=2, micro_batches=2)

    whole = make()
    mine = p.data(4, 12)[whole.replica :: 2] + [(x + whole.replica, y) for x, y in p.data(2, 12)]
    whole.run(mine)
    whole.save(path)
    again = make()
    again.load(path)
    # Evaluation uses the running statistics, each replica its own.
    expected, found = whole.evaluate(mine).losses, again.evaluate(mine).losses
    away = max(abs(a - b) for a, b in zip(expected, found, strict=True))
    everybody = ddip.gather_objects([whole.stage_state_dict(index) for index in whole.mine if index == 0])
    means = [one[0]["1.running_mean"] for one in everybody if one]
    return away, bool((means[0] - means[1]).abs().max() > 1e-3)


def replica_that_fails() -> tuple[str, float]:
    def parts(at: int) -> list[torch.nn.Module]:
        return [p.mlp(2)[0], pipeline_failures.FailsAt(at if ddip.rank() // 2 == 1 else 10**9)]

    torch.manual_seed(0)
    pipe = p.pipe_of(parts(7), "1f1b", replicas=2)
    try:
        pipe.run(p.data(4, 12))
        said = ""
    except Exception as error:  # noqa: BLE001 - whatever a rank is told
        said = str(error)
    return said, pipe.run(p.data(2, 12)).losses[-1]
