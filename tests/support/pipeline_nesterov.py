"""The preset nesterov: what it makes of each stage's NAdam."""

from __future__ import annotations

from typing import Any

import pipelines as p
import torch
from ddip.replicas import gather_objects

import ddip


def nadam(beta1: float) -> Any:
    return lambda parameters: torch.optim.NAdam(parameters, 0.01, betas=(beta1, 0.99), momentum_decay=0.1)


def betas(beta1: float, **options: Any) -> tuple[list[float], list[str]]:
    """The first beta of each stage's optimizer, and the notes."""
    pipe = p.pipe_of(
        p.mlp(4), "async_1f1b", staleness="nesterov", optimizer=nadam(beta1), placement=[0, 1, 0, 1], **options
    )
    pipe.run(p.data(2, 12))
    mine = {index: stepping.groups[0]["betas"] for index, stepping in pipe.steppings.items()}
    everybody = {index: beta for theirs in gather_objects(mine, ddip.comm()) for index, beta in theirs.items()}
    assert all(beta2 == 0.99 for _, beta2 in everybody.values())
    return [everybody[index][0] for index in range(4)], pipe.notes


def momenta(steps: int) -> tuple[list[float], list[float], str]:
    """What a look at the last stage says of each next step's momentum, and by what torch's own product of them grew in it."""
    pipe = p.pipe_of(p.mlp(2), "1f1b", optimizer=nadam(0.9))
    said, products = [], [1.0]
    for batch in p.data(steps, 12):
        said.append(pipe.stage(1).momenta[0])
        pipe.run([batch])
        if 1 in pipe.steppings:
            products.append(float(next(iter(pipe.steppings[1].optimizer.state.values()))["mu_product"]))
    grown = [after / before for before, after in zip(products, products[1:], strict=False)]
    return said, max(gather_objects(grown, ddip.comm()), key=len), str(pipe.stage(1)).splitlines()[0]


def simulated() -> float:
    """How far the simulator ends from a pipeline, both with betas by stage."""
    from ddip.pipeline.simulate import simulate

    options = {"nesterov_by_stage": True}
    pipe = p.pipe_of(
        p.mlp(2), "async_1f1b", staleness="nesterov", optimizer=nadam(0.8), window=[3, 0], staleness_options=options
    )
    pipe.run(p.data(4, 12))
    found = simulate(
        p.mlp(2), torch.nn.functional.mse_loss, p.data(4, 12), optimizer=nadam(0.8), schedule="async_1f1b", window=[3, 0],
        staleness="nesterov", micro_batches=4, options=options,
    )  # fmt: skip
    theirs = {f"{i}.{name}": tensor for i, weights in enumerate(found.weights) for name, tensor in weights.items()}
    return p.furthest(theirs, pipe.state_dict())
