"""A pipeline after something went wrong: a stop, a group that was made again, a file or an argument that does not fit."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from ddip.errors import RankError
from support.pipeline_groups import pipeline_group
from support.waiting import wait_until

import ddip


@pytest.fixture(scope="module")
def two() -> Iterator[ddip.Group]:
    with pipeline_group("pipeline-stops") as group:
        yield group


def stop_while_one_rank_waits_alone(group: ddip.Group, call: str) -> None:
    cell = group.run(call, ranks=[1], wait=False)
    wait_until(lambda: "all_gather" in json.dumps(group.why()), 30, "rank 1 waits for rank 0")
    group.interrupt()
    cell.wait(30)
    with pytest.raises(KeyboardInterrupt):
        cell.results()


@pytest.mark.parametrize("options", ["", ", clip=0.05, clipping='global'"])
def test_a_pipeline_goes_on_after_its_group_was_made_again(two: ddip.Group, options: str) -> None:
    two.run(f"pipe, steady = (p.pipe_of(p.mlp(2), 'async_1f1b', staleness='msnag'{options}) for _ in range(2))")
    two.run(
        "pipe.run(p.data(3, 12)); steady.run(p.data(3, 12)); steady.run(p.data(2, 12)); expected = steady.state_dict()"
    )
    stop_while_one_rank_waits_alone(two, "pipe.run(p.data(2, 12))")
    with pytest.raises(Exception, match="rebuild"):
        two.run("pipe.run(p.data(2, 12))")
    two.rebuild()
    two.run("pipe.run(p.data(2, 12))")
    for result in two.run("p.furthest(pipe.state_dict(), expected)"):
        assert result.value == 0.0
    two.run("steady.run(p.data(1, 12))")  # whoever was not in the way goes on, too


def test_every_call_that_all_ranks_make_follows_the_new_group(two: ddip.Group, tmp_path: Path) -> None:
    two.run("pipe = p.pipe_of(p.mlp(2)); pipe.run(p.data(2, 12)); before = pipe.state_dict()")
    calls = {
        "pipe.state_dict()": "p.furthest(_, before) == 0",
        "pipe.stage(1)": "_.version == 8",
        f"pipe.save({str(tmp_path / 'saved')!r})": "True",
        f"pipe.load({str(tmp_path / 'saved')!r})": "p.furthest(pipe.state_dict(), before) == 0",
        "pipe.evaluate(p.data(2, 12))": "len(_.losses) == 2",
    }
    for call, holds in calls.items():
        stop_while_one_rank_waits_alone(two, "pipe.state_dict()")
        two.rebuild()
        for result in two.run(f"_ = {call}\n{holds}"):
            assert result.value is True, call


def test_a_ledger_ends_before_a_run_that_was_stopped(two: ddip.Group, tmp_path: Path) -> None:
    path = str(tmp_path / "ledger")
    two.run(
        "class Touches(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        f"        open(f'{tmp_path}/touched{{ddip.rank()}}', 'w').close()\n"
        "        return x\n"
        "torch.set_num_threads(1)\n"
        "parts = lambda: [torch.nn.Sequential(part, Touches()) for part in p.mlp(2, torch.float32)]\n"
        "batches = p.data(4, 12, dtype=torch.float32)\n"
        f"pipe = p.pipe_of(parts(), 'async_1f1b', staleness='none', ledger={path!r})\n"
        "pipe.run(batches)"
    )
    before = Path(path).read_text()
    for mark in tmp_path.glob("touched*"):
        mark.unlink()
    cell = two.run("pipe.run(batches * 5000)", wait=False)
    wait_until(lambda: len(list(tmp_path.glob("touched*"))) == 2, 30, "both stages compute")
    two.interrupt()
    cell.wait(30)
    with pytest.raises(KeyboardInterrupt):
        cell.results()
    for result in two.run("pipe.notes"):  # at once
        assert any("ends before the run that was stopped" in note for note in result.value), result.value
    two.run("pipe.run(batches)")
    for result in two.run("pipe.notes"):
        assert any("ends before the run that was stopped" in note for note in result.value), result.value
    assert Path(path).read_text() == before
    replay = (
        "from ddip.pipeline.replay import replay\n"
        f"replay({path!r}, parts(), torch.nn.functional.mse_loss, batches * 2).difference or 'identical'"
    )
    assert two.run(replay)[0].value == "identical"


SCHEDULERS = {
    "LambdaLR(o, lambda k: 1 / (1 + k))": lambda k: 1 / (1 + k),
    "StepLR(o, 2, 0.5)": lambda k: 0.5 ** (k // 2),
    "ExponentialLR(o, 0.5)": lambda k: 0.5**k,
    "SequentialLR(o, [ConstantLR(o, 0.5, 100), LambdaLR(o, lambda k: 1 / (1 + k))], [2])": lambda k: (
        0.5 if k < 2 else 1 / (k - 1)
    ),
}


@pytest.mark.parametrize("scheduler", list(SCHEDULERS))
def test_a_rate_that_is_set_scales_what_the_scheduler_makes_of_it(
    two: ddip.Group, tmp_path: Path, scheduler: str
) -> None:
    path, factor = str(tmp_path / "ledger"), SCHEDULERS[scheduler]
    two.run(
        "from torch.optim.lr_scheduler import *\n"
        f"pipe = p.pipe_of(p.mlp(2), '1f1b', micro_batches=2, ledger={path!r}, scheduler=lambda o: {scheduler})\n"
        "pipe.run(p.data(2, 4)); pipe.set_rate(0.5); pipe.run(p.data(4, 4))"
    )
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    for stage in (0, 1):
        rates = [line["rates"][0] for line in lines if line["kind"] == "step" and line["stage"] == stage]
        assert rates[:2] == pytest.approx([0.05 * factor(k) for k in range(2)])
        assert rates[2:] == pytest.approx([0.5 * factor(k) / factor(2) for k in range(2, 6)])


def test_another_optimizers_file_is_refused_and_changes_nothing(two: ddip.Group, tmp_path: Path) -> None:
    adam = "lambda parameters: torch.optim.Adam(parameters, 0.01)"
    two.run(
        f"make = {{'SGD': p.sgd, 'Adam': {adam}, 'two groups': lambda ps: torch.optim.SGD([{{'params': ps[:1]}}, {{'params': ps[1:]}}], 0.1)}}\n"
        "pipes = {name: p.pipe_of(p.mlp(2), '1f1b', optimizer=make[name]) for name in make}\n"
        f"for name in pipes: pipes[name].run(p.data(2, 12)); pipes[name].save({str(tmp_path)!r} + '/' + name)"
    )
    for mine, theirs in [("SGD", "Adam"), ("Adam", "SGD"), ("SGD", "two groups")]:
        two.run(f"pipe = pipes[{mine!r}]; before = pipe.state_dict()")
        with pytest.raises(
            RankError,
            match="trained by (Adam; here it is SGD|SGD; here it is Adam|SGD with other options or parameters than here)",
        ):
            two.run(f"pipe.load({str(tmp_path / theirs)!r})")
        for result in two.run("p.furthest(pipe.state_dict(), before)"):
            assert result.value == 0.0
        two.run("pipe.run(p.data(2, 12))")


def test_after_a_load_the_steps_are_those_of_the_file(two: ddip.Group, tmp_path: Path) -> None:
    two.run(
        f"pipe = p.pipe_of(p.mlp(2)); pipe.run(p.data(3, 12)); pipe.save({str(tmp_path / 'saved')!r})\n"
        f"again = p.pipe_of(p.mlp(2)); again.load({str(tmp_path / 'saved')!r})"
    )
    for result in two.run("again.stage(0).version"):
        assert result.value == 12


def test_a_pipeline_that_loads_its_own_file_predicts_from_what_it_loaded(two: ddip.Group, tmp_path: Path) -> None:
    two.run(
        "make = lambda: p.pipe_of(p.mlp(2), 'async_1f1b', staleness='msnag')\n"
        "pipe, other, again = make(), make(), make()\n"
        f"pipe.run(p.data(3, 12)); pipe.save({str(tmp_path / 'saved')!r})\n"
        "other.run([(x + 1, y) for x, y in p.data(3, 12)])  # as many steps, other momenta\n"
        "for one in (other, again):\n"
        f"    one.load({str(tmp_path / 'saved')!r})\n"
        "    one.run(p.data(2, 12))"
    )
    for result in two.run("p.furthest(other.state_dict(), again.state_dict())"):
        assert result.value == 0.0


def test_batches_that_do_not_know_their_number_are_read_first(two: ddip.Group) -> None:
    two.run(
        "class Stream(torch.utils.data.IterableDataset):\n"
        "    def __iter__(self): return iter([(x, y) for a, b in p.data(1, 24) for x, y in zip(a, b)])\n"
        "pipe = p.pipe_of(p.mlp(2))"
    )
    for result in two.run("len(pipe.run(torch.utils.data.DataLoader(Stream(), batch_size=12)).losses)"):
        assert result.value == 2


MISTAKES = {
    "optimizer=torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), 0.1)": "optimizer= is a SGD; expected a function that makes one",
    "scheduler=torch.optim.lr_scheduler.StepLR(torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), 0.1), 3)": "scheduler= is a StepLR; expected a function",
    "scheduler=lambda step: 0.5 ** (step // 100)": "scheduler= is called with a stage's optimizer",
    "scheduler=lambda o: 0.5": "scheduler= gave 0.5; expected a function of the optimizer",
    "loss='ce'": "loss='ce': expected a function of (output, target)",
    "micro_batches='4'": "micro_batches='4', accumulate=1: expected whole numbers from 1 on",
    "accumulate=1.5": "accumulate=1.5: expected whole numbers from 1 on",
}


@pytest.mark.parametrize("argument", list(MISTAKES))
def test_an_argument_of_another_kind_is_refused_in_our_words(two: ddip.Group, argument: str) -> None:
    with pytest.raises(RankError) as refused:
        two.run(f"p.pipe_of(p.mlp(2), {argument})")
    assert MISTAKES[argument] in str(refused.value)


RUNS = {
    "loss=lambda out, y: None": "loss= gave NoneType; expected one number",
    "loss=lambda out, y: (out - y).square()": "loss= gave a tensor [3, 3]; expected one number",
}


@pytest.mark.parametrize("argument", list(RUNS))
def test_a_loss_of_another_kind_is_refused_in_our_words(two: ddip.Group, argument: str) -> None:
    two.run(f"pipe = p.pipe_of(p.mlp(2), {argument})")
    with pytest.raises(RankError) as refused:
        two.run("pipe.run(p.data(1, 12))")
    assert RUNS[argument] in str(refused.value)


def test_a_stage_that_forgot_its_return_is_named(two: ddip.Group) -> None:
    two.run(
        "class Forgets(torch.nn.Linear):\n"
        "    def forward(self, x): super().forward(x)\n"
        "pipe = p.pipe_of([Forgets(6, 8).double(), p.mlp(2)[1]])"
    )
    with pytest.raises(RankError) as refused:
        two.run("pipe.run(p.data(1, 12))")
    assert "stage 0 (Forgets) returned None for the next stage" in str(refused.value)


@pytest.mark.parametrize("schedule", ["1f1b", "zb1", "async_1f1b"])
def test_a_stage_that_no_gradient_reaches_is_said_once(two: ddip.Group, schedule: str) -> None:
    two.run(
        "import copy, warnings\n"
        "class Cut(torch.nn.Module):\n"
        "    def __init__(self, inner): super().__init__(); self.inner, self.cut = inner, True\n"
        "    def forward(self, x): return self.inner(x).detach() if self.cut else self.inner(x)\n"
        f"pipe = p.pipe_of([Cut(p.mlp(2)[0]), p.mlp(2)[1]], {schedule!r})\n"
        "before = copy.deepcopy(pipe.state_dict())\n"
        "with warnings.catch_warnings(record=True) as said:\n"
        "    warnings.simplefilter('always')\n"
        "    pipe.run(p.data(2, 12)); pipe.run(p.data(2, 12)); pipe.evaluate(p.data(2, 12))\n"
        "said = [str(one.message) for one in said]\n"
        "stays = [name for name, part in pipe.state_dict().items() if torch.equal(part, before[name])]"
    )
    first, last = two.pull("said", rank="all")
    assert len(first) == 1 and first[0].startswith("stage 0 has not been trained: its output")
    assert last == []
    assert two.run("pipe.notes")[0].value[-1] == first[0]
    assert two.pull("stays", rank=0) == ["0.inner.0.weight", "0.inner.0.bias"]
    two.run(
        f"pipe = p.pipe_of([Cut(p.mlp(2)[0]), p.mlp(2)[1]], {schedule!r})\n"
        "pipe.modules[0].cut = False; pipe.run(p.data(2, 12)); said = [note for note in pipe.notes if 'trained' in note]"
    )
    assert two.pull("said", rank="all") == [[], []]
