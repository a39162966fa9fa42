"""What a report says about memory, beside what was seen from outside and what a person would count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pipeline_groups import pipeline_group

import ddip

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def two() -> Iterator[ddip.Group]:
    with pipeline_group("pipeline-memory", "pipeline_views as v") as group:
        yield group


@pytest.mark.parametrize(
    ("schedule", "staleness", "rule", "options", "most"),
    [
        ("async_1f1b", "none", "sgd", {}, 0),
        ("async_1f1b", "stash", "sgd", {"window": [4, 0]}, 4),
        ("async_1f1b", "stash", "sgd", {"window": [4, 0], "accumulate": 3}, 2),
        ("async_1f1b", "msnag", "sgd", {"window": [4, 0]}, 0),
        ("async_1f1b", "msnag+stash", "sgd", {"window": [4, 0]}, 5),
        ("async_1f1b", "nadam+stash", "nadam", {}, 2),
        ("async_1f1b", "gap_aware", "sgd", {"window": [3, 0]}, 3),
        ("2bw", "stash", "sgd", {"accumulate": 4}, 1),
        ("2bw", "none", "sgd", {"accumulate": 4}, 1),
        ("1f1b", "none", "adam", {}, 0),
    ],
)
def test_the_report_knows_the_most_copies_of_weights_that_there_were(
    two: ddip.Group, schedule: str, staleness: str, rule: str, options: dict[str, object], most: int
) -> None:
    results = two.run(f"v.copies_said_and_seen({schedule!r}, {staleness!r}, {rule!r}, {options!r})")
    found = [pair for result in results for pair in result.value]
    assert [said for said, _ in found] == [seen for _, seen in found]
    assert found[0][0] == most


# A micro-batch has 3 samples. Stage 0 is a layer of 6 to 8 and a tanh: the graph keeps its input and the tanh's result. Stage 1
# is a layer of 8 to 3 and the squared error: input, output and target. All of 8 bytes.
KEPT = [3 * (6 + 8) * 8, 3 * (8 + 3 + 3) * 8]


@pytest.mark.parametrize(
    ("options", "flights", "kept"),
    [
        ("'async_1f1b'", [2, 1], KEPT),
        ("'async_1f1b', window=[3, 0]", [4, 1], KEPT),
        ("'gpipe'", [4, 4], KEPT),
        ("'seq'", [1, 1], KEPT),
        ("'async_1f1b', recompute=True", [2, 1], [3 * 6 * 8, KEPT[1]]),
    ],
)
def test_activations_are_what_the_graphs_in_flight_keep(
    two: ddip.Group, options: str, flights: list[int], kept: list[int]
) -> None:
    first, last = (result.value for result in two.run(f"v.memory({options})"))
    assert first == last, "every rank has the whole report"
    assert [stage["in_flight"] for stage in first] == flights
    assert [stage["activations"] for stage in first] == [n * size for n, size in zip(flights, kept, strict=True)]


def test_weights_are_counted_twice_where_the_module_computes_with_others(two: ddip.Group) -> None:
    # 6 * 8 and 8 elements: each parameter is padded to 64 bytes.
    flat = [(48 + 8) * 8, (24 + 8) * 8]
    for schedule, factor in (("async_1f1b", 2), ("1f1b", 1)):
        stages = two.run(f"v.memory({schedule!r})")[0].value
        assert [stage["weights"] for stage in stages] == [factor * flat[0], flat[1]]
        assert [stage["gradients"] for stage in stages] == flat
        elements = [56 * 8, 27 * 8]
        assert [stage["optimizer"] for stage in stages] == elements, "the momentum of each element"


def test_an_evaluation_keeps_nothing(two: ddip.Group) -> None:
    assert [result.value for result in two.run("v.memory_of_evaluation()")] == [[(0, 0)] * 2] * 2


def test_memory_that_tensors_share_is_counted_once() -> None:
    import torch
    from ddip.pipeline.memory import covered, extent

    assert covered([]) == 0 and covered([(0, 10), (5, 15), (20, 30), (0, 10), (21, 22)]) == 25
    whole = torch.zeros(4, 6)
    parts = [whole, whole.t(), whole[1:3], whole[:, 2:4], torch.zeros(0)]
    assert covered([extent(part) for part in parts]) == 96
    first, last = extent(whole[:, 2:4])
    assert (first - whole.data_ptr(), last - first) == (8, 80), "from its first element to its last"


@pytest.mark.parametrize(
    "options",
    [
        "",
        "staleness='msnag', gaps=True",
        "schedule='1f1b', recompute=True, clip=0.1, clipping='global'",
        "scheduler=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2)",
        "ledger=LEDGER",
        "ranks=ddip.comm('gloo')",
    ],
)
def test_a_pipeline_that_nobody_holds_is_gone_with_all_it_had(two: ddip.Group, tmp_path: Path, options: str) -> None:
    two.run(
        "import gc, os, weakref, torch, ddip, pipelines as p\n"
        f"LEDGER = {str(tmp_path / 'ledger')!r}\n"
        "def threads(): return len(os.listdir('/proc/self/task'))\n"
        f"p.pipe_of(p.mlp(2), {options}).run(p.data(3, 12)); gc.collect()\n"  # what torch starts once is there now
        "before = threads()\n"
        f"pipe = p.pipe_of(p.mlp(2), {options})\n"
        "pipe.run(p.data(3, 12)); pipe.evaluate(p.data(1, 12)); pipe.stage(0); pipe.state_dict()\n"
        "parts = [pipe, pipe._executor, *pipe.native_stages, *pipe.versions.values(), *pipe.steppings.values()]\n"
        "held = [weakref.ref(part) for part in parts]\n"
        "gc.collect(); gc.disable()\n"
        "del pipe, parts\n"  # at once: its memory on a GPU must be gone on all ranks when the next one is made
        "left = [type(part()).__name__ for part in held if part() is not None]; gc.enable()"
    )
    assert two.pull("left", rank="all") == [[], []]
    assert [result.value for result in two.run("threads() - before")] == [0, 0], "threads that wait for its messages"


def test_a_pipeline_goes_with_the_object_that_has_it_and_whose_methods_it_calls(two: ddip.Group) -> None:
    two.run(
        "import gc, weakref, torch, ddip, pipelines as p\n"
        "class Trainer:\n"
        "    def __init__(self):\n"
        "        self.pipe = p.pipe_of(p.mlp(2), loss=self.loss, scheduler=self.scheduler)\n"
        "    def loss(self, out, y): return torch.nn.functional.mse_loss(out, y)\n"
        "    def scheduler(self, optimizer): return torch.optim.lr_scheduler.LambdaLR(optimizer, self.rate)\n"
        "    def rate(self, step): return 1 / (1 + step)\n"
        "    def near(self, out, y): return (out - y).abs().mean()\n"
        "trainer = Trainer()\n"
        "trainer.pipe.run(p.data(3, 12)); trainer.pipe.evaluate(p.data(1, 12), metrics={'near': trainer.near})\n"
        "pipe = trainer.pipe\n"
        "held = [weakref.ref(part) for part in (trainer, pipe, pipe._executor, *pipe.versions.values(), *pipe.steppings.values())]\n"
        "del trainer, pipe\n"
        "gc.collect(); gc.collect()\n"  # the second finds what only C++ had kept
        "left = [type(part()).__name__ for part in held if part() is not None]"
    )
    assert two.pull("left", rank="all") == [[], []]
