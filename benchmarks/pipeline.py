"""A pipeline beside torch.distributed.pipelining: the same model, the same schedule, the same ranks, in turn.

16 × (Linear 512 → 512, GELU), 8 micro-batches of 32, SGD with momentum, one thread on each rank. The peer runs on Gloo and on our own
c10d backend. Times are those of one batch (forwards, backwards, step), of five that are asked for together. Two stages as `pipeline`,
four as `pipeline_four`, the latter only where each rank has a core for itself and one for the threads that carry its messages.
"""

from __future__ import annotations

import os
import sys

from table import Table

import ddip

TARGETS = {"gpipe": "≥ 1.2×", "1f1b": "≥ 1.15×"}

SETUP = """
import time, torch, torch.distributed as dist, ddip
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, Schedule1F1B
torch.set_num_threads(1)
dist.init_process_group("ddip")
groups = {"gloo": dist.new_group(backend="gloo"), "ddip": dist.group.WORLD}
M, SIZE, WIDTH, LAYERS, TOGETHER = 8, 32, 512, 16, 5
STAGES = ddip.world_size()

def whole():
    torch.manual_seed(0)
    parts = []
    for _ in range(LAYERS):
        parts += [torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU()]
    return torch.nn.Sequential(*parts)

def stages():
    parts, size = list(whole()), 2 * LAYERS // STAGES
    return [torch.nn.Sequential(*parts[stage * size:(stage + 1) * size]) for stage in range(STAGES)]

def loss(out, y):
    return torch.nn.functional.mse_loss(out, y)

def sgd(parameters):
    return torch.optim.SGD(parameters, 1e-3, momentum=0.9)

torch.manual_seed(1)
x, y = torch.randn(M * SIZE, WIDTH), torch.randn(M * SIZE, WIDTH)

def theirs(schedule, group):
    module = stages()[ddip.rank()]
    stage = PipelineStage(module, ddip.rank(), STAGES, torch.device("cpu"), group=groups[group])
    run = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B}[schedule](stage, n_microbatches=M, loss_fn=loss)
    optimizer = sgd(module.parameters())
    def batch():
        optimizer.zero_grad()
        if ddip.rank() == 0:
            run.step(x)
        elif ddip.rank() == STAGES - 1:
            run.step(target=y, losses=[])
        else:
            run.step()
        optimizer.step()
    return lambda: [batch() for _ in range(TOGETHER)]

def pipeline(schedule, **options):
    return ddip.Pipeline(stages(), loss=loss, optimizer=sgd, schedule=schedule, micro_batches=M, **options)

def ours(schedule, **options):
    pipe = pipeline(schedule, **options)
    return lambda: pipe.run([(x, y)] * TOGETHER)

def in_turn(sides, repeats):
    times = [[] for _ in sides]
    for turn in range(repeats + 3):
        for call, seconds in zip(sides, times):
            ddip.comm().barrier()
            begun = time.perf_counter()
            call()
            ddip.comm().barrier()
            if turn >= 3:
                seconds.append((time.perf_counter() - begun) / TOGETHER)
    return times

def alone(repeats):
    # One rank does everything; the others wait.
    ddip.comm().barrier()
    times = []
    if ddip.rank() == 0:
        model = whole()
        optimizer = sgd(model.parameters())
        for turn in range(repeats + 2):
            begun = time.perf_counter()
            optimizer.zero_grad()
            for part in range(M):
                (loss(model(x[part * SIZE:(part + 1) * SIZE]), y[part * SIZE:(part + 1) * SIZE]) / M).backward()
            optimizer.step()
            if turn >= 2:
                times.append(time.perf_counter() - begun)
    ddip.comm().barrier()
    return times

def long_run(schedule, batches, **options):
    pipe = pipeline(schedule, **options)
    pipe.run([(x, y)] * 2)
    report = pipe.run([(x, y)] * batches)
    own = sum(row["end"] - row["begin"] for row in report.trace if row["rank"] == ddip.rank() and row["kind"] in ("forward", "backward", "step"))
    return report.seconds, own, len([row for row in report.trace if row["rank"] == ddip.rank()])
"""


def measure(table: Table, quick: bool, stages: int = 2) -> None:
    repeats = 5 if quick else 25
    with ddip.Group(workers=stages, threads=1, name=f"bench-pipeline-{stages}") as group:
        group.run(SETUP)
        single = group.run(f"alone({repeats})")[0].value
        for schedule in ("gpipe", "1f1b"):
            for backend in ("gloo", "ddip"):
                print(f"  {schedule}, {stages} stages, beside torch's on {backend}", file=sys.stderr, flush=True)
                sides = f"[ours({schedule!r}), theirs({schedule!r}, {backend!r})]"
                both = group.run(f"in_turn({sides}, {repeats})")[0].value
                target = TARGETS[schedule] if backend == "gloo" else "≥ 1.0×"
                table.add(f"{schedule}, {stages} stages, beside torch's on {backend}", both[0], both[1], "ms", target)
        table.add("the same batch in one process", single, None, "ms", "")
        batches = 5 if quick else 40
        for schedule, staleness in (
            ("1f1b", "none"),
            ("async_1f1b", "none"),
            ("async_1f1b", "msnag"),
            ("async_1f1b", "stash"),
        ):
            print(f"  {schedule} {staleness}, {batches} batches", file=sys.stderr, flush=True)
            found = [
                result.value for result in group.run(f"long_run({schedule!r}, {batches}, staleness={staleness!r})")
            ]
            seconds = max(one[0] for one in found)
            slowest = max(one[1] for one in found)
            table.say(
                f"{schedule} {staleness}, {stages} stages, {batches} batches in one run",
                f"{seconds / batches * 1e3:.1f} ms a batch",
                ratio=f"{slowest / seconds:.3f} of its slowest stage's compute",
                target="≥ 0.95" if schedule == "async_1f1b" else "",
            )


def measure_four(table: Table, quick: bool) -> None:
    if len(os.sched_getaffinity(0)) >= 8:
        measure(table, quick, stages=4)
    else:
        table.say("pipeline of 4 stages", "not measured: needs 8 cores")


MEASURES = {"pipeline": measure, "pipeline_four": measure_four}
