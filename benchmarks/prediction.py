"""Bytes that each staleness policy's prediction moves per second, beside torch's copy_ of as many bytes, in turn. Says
first whether code of our own serves the device, and if not, why.

python benchmarks/prediction.py [--device cuda] [--count 16777216] [--rounds 20]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from table import Table

from ddip import _engine as engine

# What a policy needs of memory: its optimizer, and how many tensors are read or written once.
POLICIES = {
    "msnag": ("sgd", {"momentum": 0.9}, 3),
    "msnag, weight decay": ("sgd", {"momentum": 0.9, "weight_decay": 0.01}, 3),
    "aggmsnag": ("sgd", {"momentum": 0.9}, 4),
    "lwp": ("sgd", {"momentum": 0.9}, 3),
    "adam": ("adam", {}, 4),
    "adamw": ("adamw", {"weight_decay": 0.01}, 4),
    "nadam": ("nadam", {}, 4),
    "aggmsnag of Adam": ("adam", {}, 5),
    "adam, L2 decay": ("adam", {"weight_decay": 0.01}, 4),
    "nadam, L2 decay": ("nadam", {"weight_decay": 0.01}, 4),
    "gap_aware": ("sgd", {"momentum": 0.9}, 5),
}
TARGET = 0.7


def prediction(name: str, count: int, device: str) -> Callable[[], Any]:
    rule, settings, _ = POLICIES[name]
    policy = engine.make_policy(name.split()[0].rstrip(","))
    group = engine.StageGroup(begin=0, end=count, rate=0.1, **settings)
    weights, velocity, second, pending, out = (torch.rand(count, device=device) for _ in range(5))
    stage = engine.StageOptimizer(
        rule=engine.rule_of(rule), groups=[group], steps=9, weights=weights, velocity=velocity, second=second
    )
    moment = engine.StageMoment(
        staleness=3, rates=[[0.1, 0.1, 0.1]], pending=pending, pending_micro_batches=1, pending_samples=8, accumulate=2
    )
    if name == "gap_aware":
        policy.after_step(stage, engine.StageStep(rates=[0.1], gradient=pending))
        return lambda: policy.after_backward(stage, second, out)
    return lambda: policy.before_forward(stage, moment, out)


def copy_of(count: int, device: str) -> Callable[[], Any]:
    source, target = (torch.rand(count, device=device) for _ in range(2))
    return lambda: target.copy_(source)


def seconds_of(call: Callable[[], Any], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    call()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--count", type=int, default=1 << 24, help="weights of a stage")
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    why = engine.why_unfused(torch.ones(1, device=asked.device))
    print(f"Predictions by {f'torch operations: {why}' if why else 'code of our own'}.")
    table = Table()
    for name, (_, _, tensors) in POLICIES.items():
        ours = prediction(name, asked.count, asked.device)
        copying = copy_of(asked.count * tensors // 2, asked.device)
        times: tuple[list[float], list[float]] = ([], [])
        for turn in range(asked.rounds + 2):
            for seconds, call in zip(times, (ours, copying), strict=True):
                took = seconds_of(call, asked.device)
                if turn >= 2:
                    seconds.append(took)
        moved = tensors * asked.count * 4
        speeds = [moved / median(seconds) / 1e9 for seconds in times]
        table.say(
            name, f"{speeds[0]:.1f} GB/s", f"{speeds[1]:.1f} GB/s", f"{speeds[0] / speeds[1]:.2f}×", f"≥ {TARGET}×"
        )
    print(table.text())


if __name__ == "__main__":
    main()
