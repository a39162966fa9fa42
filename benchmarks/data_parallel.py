"""Data parallel beside torch's own: the same two ranks hold a group of each backend and take turns.

Times are those of rank 0; every rank writes its buffer anew before each call, as a backward pass does.
"""

from __future__ import annotations

from table import Table

import ddip

SIZES = {"256 B": 64, "64 KiB": 16 << 10, "1 MiB": 256 << 10, "8 MiB": 2 << 20, "32 MiB": 8 << 20}
TARGETS = {
    "256 B": "ordinary tensors: –",
    "64 KiB": "≥ 2×",
    "1 MiB": "≥ 2×",
    "8 MiB": "≥ 2×",
    "32 MiB": "≥ 2×",
}

SETUP = """
import time, torch, torch.distributed as dist, ddip
torch.set_num_threads(1)
dist.init_process_group("ddip")
gloo = dist.new_group(backend="gloo")
ours = dist.group.WORLD

def all_reduce_times(count, repeats):
    x = torch.ones(count)
    times = {ours: [], gloo: []}
    for turn in range(repeats + 3):
        for group in (ours, gloo):
            x.fill_(1.0)
            dist.barrier(group)
            begun = time.perf_counter()
            dist.all_reduce(x, group=group)
            if turn >= 3:
                times[group].append(time.perf_counter() - begun)
    return times[ours], times[gloo]

def step_times(batch, repeats):
    from torch.nn.parallel import DistributedDataParallel
    runs = []
    for group in (ours, gloo):
        torch.manual_seed(0)
        net = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)])
        model = DistributedDataParallel(net, process_group=group)
        runs.append((model, torch.optim.SGD(model.parameters(), 0.01), []))
    data = torch.randn(batch, 1024)
    for turn in range(repeats + 3):
        for model, optimizer, times in runs:
            dist.barrier()
            begun = time.perf_counter()
            optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()
            if turn >= 3:
                times.append(time.perf_counter() - begun)
    return runs[0][2], runs[1][2]
"""


def all_reduce(table: Table, quick: bool) -> None:
    with ddip.Group(workers=2) as group:
        group.run(SETUP)
        for name, count in SIZES.items():
            repeats = 5 if quick else 60 if count < 1 << 20 else 25
            ours, gloo = group.run(f"all_reduce_times({count}, {repeats})")[0].value
            table.add(f"all-reduce {name}, 2 ranks (backend ddip, Gloo)", ours, gloo, "ms", TARGETS[name])


def torch_ddp_step(table: Table, quick: bool) -> None:
    with ddip.Group(workers=2) as group:
        group.run(SETUP)
        for batch in (1, 8) if quick else (1, 2, 8, 256):
            ours, gloo = group.run(f"step_times({batch}, {3 if quick else 15})")[0].value
            table.add(f"torch DDP step, 8 × Linear 1024², batch {batch} (on ddip, on Gloo)", ours, gloo, "ms", "")


MEASURES = {"all_reduce": all_reduce, "torch_ddp_step": torch_ddp_step}
