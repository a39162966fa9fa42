"""Data parallel beside torch's own: the same two ranks hold a group of each backend and take turns.

Times are those of rank 0; every rank writes its buffer anew before each call, as a backward pass does.
"""

from __future__ import annotations

from statistics import median

from table import Table

import ddip

SIZES = {"256 B": 64, "64 KiB": 16 << 10, "1 MiB": 256 << 10, "8 MiB": 2 << 20, "32 MiB": 8 << 20}
TARGETS = {"256 B": "", "64 KiB": "≥ 2×", "1 MiB": "≥ 2×", "8 MiB": "≥ 2×", "32 MiB": "≥ 2×"}
SHARED_TARGETS = {"256 B": "≥ 5×", "64 KiB": "≥ 5×", "1 MiB": "≥ 2.5×", "8 MiB": "≥ 5×", "32 MiB": "≥ 4×"}
STEP_TARGETS = {1: "≥ 1.43×", 2: "≥ 1.43×", 8: "≥ 1.25×", 256: "≥ 0.98×"}

SETUP = """
import time, torch, torch.distributed as dist, ddip
torch.set_num_threads(1)
dist.init_process_group("ddip")
gloo = dist.new_group(backend="gloo")
ours = dist.group.WORLD

def in_turn(sides, repeats):
    # Seconds of each side's call, A B A B; the first three turns do not count.
    times = [[] for _ in sides]
    for turn in range(repeats + 3):
        for (prepare, call), seconds in zip(sides, times):
            prepare()
            dist.barrier()
            begun = time.perf_counter()
            call()
            if turn >= 3:
                seconds.append(time.perf_counter() - begun)
    return times

def all_reduce_times(count, repeats, shared):
    x = torch.ones(count)
    if shared:
        comm = ddip.comm()
        y = comm.empty(count)
        mine = (lambda: y.fill_(1.0), lambda: comm.all_reduce(y))
    else:
        mine = (lambda: x.fill_(1.0), lambda: dist.all_reduce(x, group=ours))
    return in_turn([mine, (lambda: x.fill_(1.0), lambda: dist.all_reduce(x, group=gloo))], repeats)

def ddp_on(group):
    from torch.nn.parallel import DistributedDataParallel
    return lambda net: DistributedDataParallel(net, process_group=group)

def step_times(batch, repeats, wrappers):
    data = torch.randn(batch, 1024)
    def side(wrap):
        torch.manual_seed(0)
        model = wrap(torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        def step():
            optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()
        return (lambda: None, step)
    return in_turn([side(wrap) for wrap in wrappers], repeats)
"""


def all_reduce(table: Table, quick: bool) -> None:
    with ddip.Group(workers=2) as group:
        group.run(SETUP)
        for shared, name, targets in (
            (False, "ordinary tensors", TARGETS),
            (True, "comm.empty", SHARED_TARGETS),
        ):
            for size, count in SIZES.items():
                repeats = 5 if quick else 60 if count < 1 << 20 else 25
                ours, gloo = group.run(f"all_reduce_times({count}, {repeats}, {shared})")[0].value
                table.add(f"all-reduce {size}, 2 ranks, {name} (ddip, Gloo)", ours, gloo, "ms", targets[size])


def torch_ddp_step(table: Table, quick: bool) -> None:
    with ddip.Group(workers=2) as group:
        group.run(SETUP)
        for batch in (1, 8) if quick else (1, 2, 8, 256):
            ours, gloo = group.run(f"step_times({batch}, {3 if quick else 15}, [ddp_on(ours), ddp_on(gloo)])")[0].value
            table.add(f"torch DDP step, 8 × Linear 1024², batch {batch} (on ddip, on Gloo)", ours, gloo, "ms", "")


def step(table: Table, quick: bool) -> None:
    """The third side has no communication at all: what is above it is the price of it."""
    with ddip.Group(workers=2) as group:
        group.run(SETUP)
        for batch in (1, 8) if quick else (1, 2, 8, 256):
            sides = "[ddip.DataParallel, ddp_on(gloo), lambda net: net]"
            ours, ddp, alone = group.run(f"step_times({batch}, {3 if quick else 20}, {sides})")[0].value
            share = 1 - median(alone) / median(ddp)
            label = f"step, 8 × Linear 1024², batch {batch} (ddip.DataParallel, torch DDP on Gloo: {share:.0%} communication)"
            table.add(label, ours, ddp, "ms", STEP_TARGETS[batch])


MEASURES = {"all_reduce": all_reduce, "torch_ddp_step": torch_ddp_step, "step": step}
