"""Pipelines that write ledgers, and what a replay says of them; both run inside workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pipelines as p
import torch
from ddip.pipeline.replay import replay

import ddip

MakeParts = Callable[[], list[torch.nn.Module]]


def parts() -> list[torch.nn.Module]:
    return p.mlp(2, torch.float32)


def batches_of(sizes: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(n, 6, generator=generator), torch.rand(n, 3, generator=generator)) for n in sizes]


def counting(output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighs each sample by its target, so that counts are no whole numbers; a negative one counts nothing."""
    weight = target[:, :1].clamp(min=0)
    return ((output - target).square() * weight).sum(), weight.sum()


def hidden(batches: list[Any], *which: tuple[int, int, int]) -> list[Any]:
    """The same, with samples `begin` to `end` of some batches masked."""
    for batch, begin, end in which:
        batches[batch][1][begin:end] = -1.0
    return batches


def replays(
    path: str,
    batches: list[Any],
    schedule: str,
    staleness: str,
    runs: Sequence[int] = (),
    make: MakeParts = parts,
    **options: Any,
) -> str:
    """Trains in runs of so many batches (one run of all), and computes the ledger again: "identical", or what differs."""
    torch.set_num_threads(1)
    loss = options.get("loss", torch.nn.functional.mse_loss)
    usual: dict[str, Any] = {"optimizer": p.RULES["sgd"], "micro_batches": 4, "seed": 5, "loss": loss}
    pipe = ddip.Pipeline(make(), schedule=schedule, staleness=staleness, ledger=path, **{**usual, **options})
    rest = iter(batches)
    for count in runs or [len(batches)]:
        pipe.run([next(rest) for _ in range(count)])
    weights = pipe.state_dict()
    if ddip.rank() != 0:
        return "identical"
    found = replay(path, make(), loss, batches)
    if found.difference is not None:
        return found.difference
    for name, tensor in weights.items():
        stage, _, inner = name.partition(".")
        known = {**found.weights[int(stage)], **found.buffers[int(stage)]}
        if not torch.allclose(known[inner], tensor, rtol=0, atol=0, equal_nan=True):
            return f"{name} is not what the ledger says"
    return "identical"
