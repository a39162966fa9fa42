"""What an action of a pipeline takes when there is next to nothing to compute, less what the same layers and torch's own
optimizer take in a plain loop that steps as often: Linear 6 → 8 → 3 in two stages on ranks of their own, micro-batches of one sample,
medians, in turn.
"""

from __future__ import annotations

import sys
from statistics import median

from table import Table

import ddip

ROUNDS = 5

SETUP = """
import time, torch, ddip
from statistics import median
torch.set_num_threads(1)
torch.manual_seed(0)
data = [(torch.randn(8, 6), torch.randn(8, 3)) for _ in range(100)]
loss = torch.nn.functional.mse_loss

def layer():
    torch.manual_seed(ddip.rank())
    return torch.nn.Linear(6, 8) if ddip.rank() == 0 else torch.nn.Linear(8, 3)

def sgd(parameters):
    return torch.optim.SGD(parameters, 0.01, momentum=0.9)

def pipe_of(schedule, **options):
    return ddip.Pipeline([torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)], loss=loss, optimizer=sgd, schedule=schedule,
                         micro_batches=8, **options)

def actions(pipe):
    found = {}
    for row in pipe.run(data).trace:
        if row["rank"] == ddip.rank():
            found.setdefault(row["kind"], []).append(row["end"] - row["begin"])
    return {kind: median(seconds) for kind, seconds in found.items()}

def plain(accumulate):
    part, last = layer(), ddip.rank() == 1
    optimizer = sgd(part.parameters())
    x, y = torch.randn(1, 8 if last else 6, requires_grad=last), torch.randn(1, 3)
    found = {"forward": [], "backward": [], "step": []}
    for done in range(800):
        times = [time.perf_counter()]
        out = loss(part(x), y) if last else part(x)
        times.append(time.perf_counter())
        out.backward(None if last else torch.ones_like(out))
        times.append(time.perf_counter())
        if (done + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
            times.append(time.perf_counter())
        for kind, begin, end in zip(found, times, times[1:]):
            found[kind].append(end - begin)
    return {kind: median(seconds) for kind, seconds in found.items()}
"""

PIPES = {
    "1f1b": "'1f1b'",
    "async_1f1b": "'async_1f1b', staleness='none'",
    "async_1f1b, msnag": "'async_1f1b', staleness='msnag'",
}
STEP_EVERY = {"1f1b": 8, "async_1f1b": 1, "async_1f1b, msnag": 1}  # backwards
KINDS = ("forward", "backward", "step", "send", "receive")


def measure(table: Table, quick: bool) -> None:
    with ddip.Group(workers=2, name="bench-pipeline-actions", threads=1) as group:
        group.run(SETUP)
        group.run("pipes = {" + ", ".join(f"{name!r}: pipe_of({call})" for name, call in PIPES.items()) + "}")
        print("  1f1b, async_1f1b and a plain loop, in turn", file=sys.stderr, flush=True)
        group.run("plain(1)")
        seen: dict[tuple[str, int, str], list[float]] = {}
        for _ in range(2 if quick else ROUNDS):
            loops = [(f"plain {every}", f"plain({every})") for every in sorted(set(STEP_EVERY.values()))]
            for name, call in [*loops, *((name, f"actions(pipes[{name!r}])") for name in PIPES)]:
                for stage, result in enumerate(group.run(call)):
                    for kind, seconds in result.value.items():
                        seen.setdefault((name, stage, kind), []).append(seconds * 1e6)
    for name in PIPES:
        for stage in range(2):
            own, plain = [], []
            for kind in KINDS:
                without = median(seen.get((f"plain {STEP_EVERY[name]}", stage, kind), [0.0]))
                own.append(f"{kind} {median(seen[name, stage, kind]) - without:.0f}")
                plain += [f"{kind} {without:.0f}"] if without else []
            table.say(f"{name}, stage {stage}: µs of our own", ", ".join(own), ", ".join(plain), target="≤ 50 each")


MEASURES = {"pipeline_actions": measure}
