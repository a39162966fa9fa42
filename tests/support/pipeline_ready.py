"""Pipelines whose stages do what has come first; these run inside workers."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pipelines as p
import torch
from ddip.replicas import gather_objects

import ddip


class Waits(torch.nn.Module):
    """A layer whose n-th forward begins when `path` has as many bytes as `bytes_before` says of n."""

    def __init__(self, path: str, bytes_before: Callable[[int], int], patience: float) -> None:
        super().__init__()
        self.path, self.bytes_before, self.patience, self.forwards = path, bytes_before, patience, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        deadline = time.monotonic() + self.patience
        while os.path.getsize(self.path) < self.bytes_before(self.forwards):
            if time.monotonic() > deadline:
                raise TimeoutError(f"forward {self.forwards} was to wait for {self.bytes_before(self.forwards)} steps")
            time.sleep(0.001)
        self.forwards += 1
        return x


def counted_by(path: str, rank: int) -> Callable[[Any], torch.optim.Optimizer]:
    """SGD that adds a byte to the file with each step of that rank's stage."""

    def make(parameters: Any) -> torch.optim.Optimizer:
        optimizer = p.sgd(parameters)

        def note(*_: Any) -> None:
            with open(path, "ab") as file:
                file.write(b".")

        if ddip.rank() == rank:
            optimizer.register_step_post_hook(note)
        return optimizer

    return make


def held_back(
    path: str, stages: int, rank: int, bytes_before: Callable[[int], int], patience: float = 60, **options: Any
) -> ddip.Pipeline:
    """The first stage waits in its forwards for steps of another rank."""
    Path(path).touch()
    first, *others = p.mlp(stages)
    parts = [torch.nn.Sequential(Waits(path, bytes_before, patience), *first), *others]
    return p.pipe_of(parts, "async_1f1b", optimizer=counted_by(path, rank), **{"micro_batches": 4, **options})


def order_of(plan: Any, rank: int) -> str:
    """F and B as they come."""
    names = {"forward": "F", "backward": "B"}
    return " ".join(f"{names[one.kind]}{one.micro_batch}" for one in plan.ranks[rank] if one.kind in names)


def check_without(pipe: ddip.Pipeline, rank: int, kind: str) -> str:
    """What is said of the last run if one action of a rank had not been done."""
    done = gather_objects(pipe._done.lines, pipe.ranks)
    done[rank].remove([line for line in done[rank] if line.startswith(kind)][3])
    return str(pipe.plan.as_done(done).check().error)


def steps_between(path: str) -> list[tuple[int, int]]:
    """Of each forward in a ledger: the n that it says, and the steps that came until its backward."""
    steps: dict[int, int] = {}
    began: dict[tuple[int, int], tuple[int, int]] = {}
    found = []
    for line in Path(path).read_text().splitlines()[1:]:
        one = json.loads(line)
        stage, key = one["stage"], (one["stage"], one.get("micro_batch", -1))
        if one["kind"] == "step":
            steps[stage] = one["step"]
        elif one["kind"] == "forward":
            began[key] = one["weights"]["n"], steps.get(stage, 0)
        elif one["kind"] == "backward":
            said, before = began.pop(key)
            found.append((said, steps.get(stage, 0) - before))
    return found


def growing(ranks: Any) -> tuple[str, int]:
    """Sequences that become longer and longer: a message is larger than any before it. What is wrong with the order, and how many
    micro-batches there were."""
    parts = p.of_any_length()
    parts = [parts[0], torch.nn.Sequential(torch.nn.Linear(40, 40), torch.nn.Tanh()).double(), *parts[1:]]
    batches = [
        (torch.zeros(8, length, 6, dtype=torch.float64), torch.zeros(8, 3, dtype=torch.float64))
        for length in range(20, 500, 80)
    ]
    pipe = p.pipe_of(parts, "async_1f1b", order="ready", staleness="msnag", ranks=ranks)
    pipe.run(batches)
    done = pipe.done_plan()
    return done.check().error, len([one for one in done.ranks[1] if one.kind == "backward"])
