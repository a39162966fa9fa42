"""Three and four stages whose work takes as long as it likes, by the plan's order and by what comes first. A stage sleeps instead of
computing, so that ranks do not need cores of their own: forwards 1 to 7 ms, backwards twice as long, another one each time.
"""

from __future__ import annotations

import sys

from table import Table

import ddip

SETUP = """
import random, time, torch, ddip
torch.set_num_threads(1)

class Takes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, seconds):
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        time.sleep(2 * ctx.seconds)
        return gradient, None

class Works(torch.nn.Module):
    def __init__(self, stage):
        super().__init__()
        self.layer, self.times = torch.nn.Linear(8, 8), random.Random(stage)

    def forward(self, x):
        return Takes.apply(self.layer(x), self.times.uniform(0.001, 0.007))

def pipe_of(stages, window, order):
    return ddip.Pipeline([Works(stage) for stage in range(stages)], loss=torch.nn.functional.mse_loss, window=window, order=order,
                         optimizer=lambda p: torch.optim.SGD(p, 0.01, momentum=0.9), staleness="msnag", micro_batches=8)

torch.manual_seed(0)
data = [(torch.randn(8, 8), torch.randn(8, 8)) for _ in range(20)]

def measured(pipe):
    report = pipe.run(data)
    counts = report.stages[0].staleness
    mean = sum(n * count for n, count in counts.items()) / sum(counts.values())
    return report.seconds / len(data), mean
"""


def measure(table: Table, quick: bool) -> None:
    for stages, wider in ((3, 0), (3, 2), (4, 0), (4, 2)):
        window = [stages - 1 - stage + (wider if stage + 1 < stages else 0) for stage in range(stages)]
        with ddip.Group(workers=stages, name="bench-pipeline-ready", threads=1) as group:
            print(f"  {stages} stages, window {window}: order plan and ready, in turn", file=sys.stderr, flush=True)
            group.run(SETUP)
            group.run(f"pipes = {{order: pipe_of({stages}, {window}, order) for order in ('plan', 'ready')}}")
            seconds: dict[str, list[float]] = {"plan": [], "ready": []}
            stale = dict.fromkeys(seconds, 0.0)
            for _ in range(1 if quick else 5):
                for order in seconds:
                    took, stale[order] = group.run(f"measured(pipes[{order!r}])")[0].value
                    seconds[order].append(took)
        table.add(
            f"{stages} stages of varying work, window {window}, a batch (ready, plan)",
            seconds["ready"],
            seconds["plan"],
            "ms",
            "",
        )
        table.say("   mean staleness of the first stage", f"{stale['ready']:.2f}", f"{stale['plan']:.2f}")


MEASURES = {"pipeline_ready": measure}
