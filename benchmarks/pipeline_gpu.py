"""Two stages that share one GPU, beside one process that has it alone: the same model, the same batches, in turn.

16 × (Linear 4096 → 4096, GELU), 8 micro-batches of 1024, SGD with momentum, one step a batch (asynchronous: accumulate=8), fp32 with
TF32 allowed. One GPU has no second one's work to give, so the pipeline cannot win; what is asked is what its messages cost, which go
through the host's memory (on one rank there are none, and what is left is our own work). The one process is a plain loop: forwards and backwards of 8 micro-batches, one step.

Shares are of a rank's time in the last run, as its report has them. A GPU computes behind the caller's back: a send waits for the
kernels that make what it sends, so its share has their time in it.
"""

from __future__ import annotations

import sys
from statistics import median

from table import Table

import ddip

SETUP = """
import time, torch, ddip
device = ddip.device()
torch.backends.cuda.matmul.allow_tf32 = True
M, SIZE, WIDTH, LAYERS, TOGETHER = 8, 1024, 4096, 16, 10
STAGES = 2
PLACES = None if ddip.world_size() == STAGES else [0] * STAGES

def layers(count):
    torch.manual_seed(0)
    parts = [part for _ in range(count) for part in (torch.nn.Linear(WIDTH, WIDTH, device=device), torch.nn.GELU())]
    return torch.nn.Sequential(*parts)

def loss(out, y):
    return torch.nn.functional.mse_loss(out, y)

def sgd(parameters):
    return torch.optim.SGD(parameters, 1e-3, momentum=0.9)

torch.manual_seed(1)
x, y = (torch.randn(M * SIZE, WIDTH, device=device) for _ in range(2))
reports = {}

HOST = [tensor.cpu() for tensor in (x, y)]

def alone(x, y):
    # Rank 0 does everything; the others wait at the barrier.
    if ddip.rank() != 0:
        return lambda: None
    model = layers(LAYERS)
    optimizer = sgd(model.parameters())
    def batch():
        optimizer.zero_grad()
        for own, wanted in zip(x.chunk(M), y.chunk(M)):
            (loss(model(own.to(device)), wanted.to(device)) / M).backward()
        optimizer.step()
    return lambda: [batch() for _ in range(TOGETHER)]

def pipeline(schedule, x, y, **options):
    stages = [layers(LAYERS // STAGES) for _ in range(STAGES)]
    pipe = ddip.Pipeline(stages, loss=loss, optimizer=sgd, schedule=schedule, micro_batches=M,
                         placement=PLACES, **options)
    def run():
        reports[schedule] = pipe.run([(x, y)] * TOGETHER)
    return run

def finished():
    if device.type == "cuda":
        torch.cuda.synchronize()
    ddip.comm().barrier()

def in_turn(sides, repeats):
    times = [[] for _ in sides]
    for turn in range(repeats + 2):
        for call, seconds in zip(sides, times):
            finished()
            begun = time.perf_counter()
            call()
            finished()
            if turn >= 2:
                seconds.append((time.perf_counter() - begun) / TOGETHER)
    return times

def shares(schedule):
    return [(one.communication / one.total, one.wait / one.total) for one in reports[schedule].stages]
"""


def measure(table: Table, quick: bool) -> None:
    import torch

    if torch.cuda.is_available():
        measure_on(table, 3 if quick else 10, 2, gpus=[0])
        measure_on(table, 3 if quick else 10, 1, gpus=[0])
    else:
        table.say("stages sharing one GPU", "not measured: no GPU here")


def measure_on(table: Table, repeats: int, ranks: int, **place: list[int]) -> None:
    where = "on ranks of their own" if ranks > 1 else "on one rank"
    with ddip.Group(workers=ranks, name="bench-pipeline-gpu", **place) as group:
        group.run(SETUP)
        print("  1f1b, async_1f1b and one process, in turn", file=sys.stderr, flush=True)
        group.run(
            "sides = [pipeline('1f1b', x, y), pipeline('async_1f1b', x, y, staleness='msnag', accumulate=M), alone(x, y)]"
        )
        *ours, single = group.run(f"in_turn(sides, {repeats})")[0].value
        for schedule, name, seconds in zip(("1f1b", "async_1f1b"), ("1f1b", "async_1f1b msnag"), ours, strict=True):
            what = f"{name}, 2 stages {where} sharing one GPU, beside a plain loop"
            table.add(what, seconds, single, "ms", "≥ 0.95×")
            parts = [
                f"stage {stage}: sends {sends:.0%}, waits {waits:.0%}"
                for stage, (sends, waits) in enumerate(group.run(f"shares({schedule!r})")[0].value)
            ]
            exact = f"{median(single) / median(seconds):.3f}×"
            table.say("  shares of the time", "; ".join(parts), ratio=exact)
        group.run("sides = [pipeline('1f1b', *HOST), alone(*HOST)]")
        ours, single = group.run(f"in_turn(sides, {repeats})")[0].value
        table.add(f"1f1b, 2 stages {where}, samples in the host's memory", ours, single, "ms", "–")


MEASURES = {"pipeline_gpu": measure}
