"""Data parallel beside torch's own: the same two ranks hold a group of each backend and take turns.

Times are those of rank 0; every rank writes its buffer anew before each call, as a backward pass does.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from statistics import median

from table import Table, shown

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
    """The third side has no communication at all: what a step takes beyond it is exposed."""
    with ddip.Group(workers=2) as group:
        group.run(SETUP)
        for batch in (1, 8) if quick else (1, 2, 8, 256):
            sides = "[ddp_on(ours), ddp_on(gloo), lambda net: net]"
            ours, gloo, alone = group.run(f"step_times({batch}, {3 if quick else 15}, {sides})")[0].value
            table.add(f"torch DDP step, 8 × Linear 1024², batch {batch} (on ddip, on Gloo)", ours, gloo, "ms", "")
            exposed, theirs = (max(median(side) - median(alone), 1e-9) for side in (ours, gloo))
            table.say(
                "   exposed communication", f"{exposed * 1e3:.1f} ms", f"{theirs * 1e3:.1f} ms",
                f"{theirs / exposed:.1f}×", "≥ 2×",
            )  # fmt: skip


def all_reduce_cpp(table: Table, quick: bool) -> None:
    """In C++, beside Open MPI and the floor that the memory sets (benchmarks/all_reduce.cpp)."""
    if shutil.which("mpirun") is None:
        table.say("all-reduce in C++ beside Open MPI and the floor", "not measured: no mpirun")
        return
    build = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "build", "release")
    program = os.path.join(build, "benchmarks", "all_reduce_benchmark")
    subprocess.run(
        ["cmake", "--build", build, "--target", "all_reduce_benchmark"], check=True, stdout=subprocess.DEVNULL
    )
    settings = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["mpirun", "--bind-to", "none", "-n", "2", program, folder, "5" if quick else "60"],
            env={**os.environ, **settings}, check=True, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
    for bytes_text, sides in json.loads(done.stdout).items():
        size = next(name for name, count in SIZES.items() if 4 * count == int(bytes_text))
        large = int(bytes_text) >= 1 << 20
        unit = "ms" if large else "µs"
        table.add(f"all-reduce {size} in C++, ordinary memory (ddip, Open MPI)", sides["plain"], sides["mpi"], unit, "")
        table.add(f"all-reduce {size} in C++, shared memory (ddip, Open MPI)", sides["shared"], sides["mpi"], unit, "")
        share = median(sides["floor"]) / median(sides["shared"])
        table.say(
            "   beside the memory's floor", shown(sides["shared"], unit), shown(sides["floor"], unit), f"{share:.0%}",
            "≥ 60%" if large else "",
        )  # fmt: skip


GAN = """
class Gan(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        def net(first, last):
            return torch.nn.Sequential(torch.nn.Linear(first, width), torch.nn.ReLU(), torch.nn.Linear(width, width),
                                       torch.nn.ReLU(), torch.nn.Linear(width, last))
        self.generator, self.critic = net(64, 256), net(256, 1)

def gan_side(wrap, batch):
    torch.manual_seed(0)
    model = wrap(Gan(1024))
    halves = [torch.optim.SGD(half.parameters(), 0.001) for half in (model.critic, model.generator)]
    real, noise = torch.randn(batch, 256), torch.randn(batch, 64)
    def step():
        for optimizer, trained in zip(halves, ("critic", "generator")):
            model.critic.requires_grad_(trained == "critic")
            model.generator.requires_grad_(trained == "generator")
            optimizer.zero_grad()
            made = model.generator(noise)
            loss = model.critic(made).mean()
            (loss - model.critic(real).mean() if trained == "critic" else -loss).backward()
            optimizer.step()
    return step

def one_and_all(alone, together, repeats):
    # Rank 0 alone while the others sleep at the barrier, then all, in turn.
    times = [[], []]
    for turn in range(repeats + 3):
        for which, step in enumerate((alone, together)):
            dist.barrier()
            begun = time.perf_counter()
            if which == 1 or ddip.rank() == 0: step()
            if turn >= 3: times[which].append(time.perf_counter() - begun)
    return times
"""


def gan(table: Table, quick: bool) -> None:
    """Seconds per sample; every rank has a batch of its own."""
    with ddip.Group(workers=2) as group:
        group.run(SETUP + GAN)
        for batch in (64,) if quick else (64, 256):
            code = f"one_and_all(gan_side(lambda net: net, {batch}), gan_side(ddip.DataParallel, {batch}), {3 if quick else 20})"
            one, two = group.run(code)[0].value
            label = f"GAN, time per sample, batch {batch} a rank (2 ranks: {2 * batch / median(two):.0f} samples/s, 1 rank: {batch / median(one):.0f})"
            table.add(label, [time / (2 * batch) for time in two], [time / batch for time in one], "µs", "≥ 1×")


BREAKDOWN = """
def net_side(wrap, batch):
    torch.manual_seed(0)
    model = wrap(torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]))
    optimizer, data = torch.optim.SGD(model.parameters(), 0.01), torch.randn(batch, 1024)
    def step():
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
    return model, step

def broken_down(batch, repeats):
    _, alone = net_side(lambda net: net, batch)
    model, together = net_side(ddip.DataParallel, batch)
    model.stats()
    times = one_and_all(alone, together, repeats)
    return times, model.stats()
"""


def one_rank_and_many(table: Table, quick: bool) -> None:
    """Time per sample, and where a step of N ranks goes, by DataParallel's own stats()."""
    for workers in (2,) if quick else (2, 4):
        with ddip.Group(workers=workers) as group:
            group.run(SETUP + GAN + BREAKDOWN)
            for batch in (8, 256):
                (one, many), stats = group.run(f"broken_down({batch}, {3 if quick else 12})")[0].value
                label = f"8 × Linear 1024², time per sample, batch {batch} a rank ({workers} ranks, 1 rank)"
                per_sample = ([time / (workers * batch) for time in many], [time / batch for time in one])
                table.add(label, *per_sample, "µs", "≥ 1×" if workers == 2 else "")
                steps = stats["steps"]
                parts = {
                    "compute": stats["compute_seconds"],
                    "exposed": stats["exposed_seconds"],
                    "waiting for others": sum(stats["waited_seconds"]),
                }
                told = ", ".join(f"{name} {seconds / steps * 1e3:.1f} ms" for name, seconds in parts.items())
                table.say("   a step of rank 0", f"{told}, {stats['sent_bytes'] / steps / 2**20:.1f} MiB sent")


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


MEASURES = {
    "all_reduce": all_reduce,
    "all_reduce_cpp": all_reduce_cpp,
    "torch_ddp_step": torch_ddp_step,
    "step": step,
    "gan": gan,
    "one_rank_and_many": one_rank_and_many,
}
