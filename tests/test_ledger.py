"""Ledgers that pipelines write: of whatever they did, a replay says "identical"."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ddip.errors import RankError
from support.pipeline_groups import pipeline_group

import ddip


@pytest.fixture(scope="module")
def two() -> Iterator[ddip.Group]:
    with pipeline_group("ledger-two", "pipeline_failures", "ledgers as l") as group:
        yield group


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


CELLS = [
    "'async_1f1b', 'none'",
    "'async_1f1b', 'msnag', window=[3, 0]",
    "'async_1f1b', 'aggmsnag', accumulate=3, window=[3, 0]",
    "'async_1f1b', 'adam', optimizer=p.RULES['adam'], window=[3, 0]",
    "'async_1f1b', 'none', clip=0.05, clipping='global'",
    "'async_1f1b', 'stash', window=[3, 0]",
    "'async_1f1b', 'gap_aware', window=[3, 0]",
    "'2bw', 'auto', accumulate=4",
    "'1f1b', 'none', accumulate=2",
    "'gpipe', 'none', clip=0.05, clipping='global'",
    "'zb1', 'none'",
]


@pytest.mark.parametrize("call", CELLS)
@pytest.mark.parametrize("sizes", [(8, 1, 8, 3), (8, 8, 2, 8, 1)])
def test_batches_with_fewer_samples_than_micro_batches_are_replayed(
    two: ddip.Group, tmp_path: Path, call: str, sizes: tuple[int, ...]
) -> None:
    """Those that have none keep their numbers, and a step without any makes a version all the same."""
    path = tmp_path / "ledger"
    for runs in ([], [3, len(sizes) - 3]):
        found = two.run(f"l.replays({str(path)!r}, l.batches_of({sizes}), {call}, runs={runs})")
        assert [one.value for one in found] == ["identical"] * 2
        assert lines_of(path)[0]["micro_batches"] == 4 * len(sizes)


@pytest.mark.parametrize("policy", ["pipemare", "spike"])
@pytest.mark.parametrize(("sizes", "runs"), [([8] * 6, [1, 5]), ([8, 1, 8, 8], [3, 1]), ([8] * 3, [3])])
def test_each_run_has_its_own_mean_staleness(
    two: ddip.Group, tmp_path: Path, policy: str, sizes: list[int], runs: list[int]
) -> None:
    path = tmp_path / "ledger"
    call = f"'async_1f1b', {policy!r}, window=[3, 0], micro_batches=2, runs={runs}"
    found = two.run(f"l.replays({str(path)!r}, l.batches_of({sizes}), {call})")
    assert [one.value for one in found] == ["identical"] * 2
    begins = [line for line in lines_of(path) if line["kind"] == "run" and line["stage"] == 0]
    assert [line["planned"] for line in begins] == [2 * count for count in runs]
    assert [line["micro_batch"] for line in begins] == [0, 2 * runs[0]][: len(runs)]


def test_a_wrong_mean_or_place_of_a_run_is_found(two: ddip.Group, tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    two.run(f"l.replays({str(path)!r}, l.batches_of([8] * 4), 'async_1f1b', 'spike', window=[3, 0], runs=[1, 3])")
    lines = lines_of(path)
    second = [i for i, line in enumerate(lines) if line["kind"] == "run" and line["stage"] == 0][1]
    for key, value, says in (("mean_staleness", 2.6, "mean_staleness is"), ("planned", 11, "its runs have 15"),
                             ("micro_batch", 5, "the run begins with micro-batch 5")):  # fmt: skip
        changed = [dict(line) for line in lines]
        changed[second][key] = value
        path.write_text("".join(json.dumps(line) + "\n" for line in changed))
        again = f"l.replay({str(path)!r}, l.parts(), torch.nn.functional.mse_loss, l.batches_of([8] * 4)).difference"
        assert says in two.run(again)[0].value


@pytest.mark.parametrize("rate", ["1e30", "1e38"])
@pytest.mark.parametrize(
    "call", ["'async_1f1b', 'none', clip=1.0", "'1f1b', 'none', clip=1e38", "'1f1b', 'none', clip=1.0"]
)
def test_norms_that_are_no_numbers_are_null(two: ddip.Group, tmp_path: Path, call: str, rate: str) -> None:
    path = tmp_path / "ledger"
    call += f", clipping='global', optimizer=lambda p: torch.optim.SGD(p, {rate})"
    found = two.run(f"l.replays({str(path)!r}, l.batches_of([8] * 5), {call})")
    assert [one.value for one in found] == ["identical"] * 2
    assert None in [line["norm"] for line in lines_of(path) if line["kind"] == "step"]


@pytest.mark.parametrize("call", CELLS)
def test_micro_batches_that_count_nothing_and_counts_that_are_no_whole_numbers_are_replayed(
    two: ddip.Group, tmp_path: Path, call: str
) -> None:
    path = tmp_path / "ledger"
    batches = "l.hidden(l.batches_of([8] * 4), (1, 0, 2), (2, 0, 8), (3, 6, 8))"  # micro-batches of two samples
    found = two.run(f"l.replays({str(path)!r}, {batches}, {call}, loss=l.counting)")
    assert [one.value for one in found] == ["identical"] * 2
    counts = [line["count"] for line in lines_of(path) if line["kind"] == "step"]
    assert any(count != int(count) for count in counts) and ("accumulate" in call or 0 in counts)
    assert sum(line["kind"] == "backward" for line in lines_of(path)) == 2 * 16


STAGES = {
    "without parameters": "torch.nn.Tanh()",
    "frozen": "torch.nn.Linear(8, 8).requires_grad_(False)",
    "half frozen": "torch.nn.Sequential(torch.nn.Linear(8, 8).requires_grad_(False), torch.nn.Linear(8, 8))",
}


@pytest.mark.parametrize("stage", list(STAGES))
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    "call", ["'async_1f1b', 'msnag', window=[3, 1, 0]", "'1f1b', 'none', clip=0.1, recompute=True"]
)
def test_stages_with_nothing_to_train_are_in_it(
    two: ddip.Group, tmp_path: Path, stage: str, place: int, call: str
) -> None:
    path = tmp_path / "ledger"
    two.run(
        "def make():\n"
        "    torch.manual_seed(1)\n"
        "    parts = [torch.nn.Linear(6, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 3)]\n"
        f"    parts[{place}] = torch.nn.Sequential(*[torch.nn.Linear(6, 8).requires_grad_(False)][: {1 - place}], {STAGES[stage]})\n"
        "    return parts"
    )
    found = two.run(
        f"l.replays({str(path)!r}, l.batches_of([8] * 4), {call}, make=make, runs=[1, 3], placement=[0, 1, 0])"
    )
    assert [one.value for one in found] == ["identical"] * 2
    kinds = {line["kind"] for line in lines_of(path) if line.get("stage") == place}
    assert kinds == {"run", "forward", "backward"} | ({"step"} if stage == "half frozen" else set())


def test_weights_of_bfloat16_have_a_hash(two: ddip.Group, tmp_path: Path) -> None:
    two.run("make = lambda: [part.bfloat16() for part in l.parts()]")
    batches = "[(x.bfloat16(), y.bfloat16()) for x, y in l.batches_of([8] * 3)]"
    found = two.run(f"l.replays({str(tmp_path / 'ledger')!r}, {batches}, 'async_1f1b', 'none', make=make)")
    assert [one.value for one in found] == ["identical"] * 2


def refused(group: ddip.Group, options: str) -> list[str]:
    """What each rank is told."""
    group.run(
        "def told(**options):\n"
        "    try:\n"
        "        p.pipe_of(l.parts(), '1f1b', **options)\n"
        "    except ddip.errors.ConfigError as error:\n"
        "        return str(error)\n"
        "    return 'nothing'"
    )
    return [one.value for one in group.run(f"told({options})")]


@pytest.mark.parametrize(("optimizer", "says"), [
    ("RMSprop(q, 0.01)", "stage 0: a replay knows SGD, Adam, AdamW and NAdam, not RMSprop"),
    ("AdamW(q, 0.1, fused=True)", "stage 0: AdamW with fused=True rounds otherwise"),
    ("NAdam(q, 0.1, foreach=True)", "stage 0: NAdam with foreach=True rounds otherwise"),
    ("Adam(q, 0.1, decoupled_weight_decay=True)", "stage 0: Adam with decoupled_weight_decay=True rounds otherwise"),
])  # fmt: skip
def test_optimizers_that_a_replay_does_not_know_are_refused_on_all_ranks(
    two: ddip.Group, tmp_path: Path, optimizer: str, says: str
) -> None:
    path = tmp_path / "ledger"
    for told in refused(two, f"ledger={str(path)!r}, optimizer=lambda q: torch.optim.{optimizer}"):
        assert says in told and "\n" not in told
    assert not path.exists()


def test_a_file_that_cannot_be_written_is_refused_on_all_ranks_before_anything_runs(
    two: ddip.Group, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    for path, says in ((tmp_path / "no" / "ledger", "No such file or directory"), (tmp_path / "folder", "not an ordinary file"),
                       (Path("/dev/null"), "not an ordinary file")):  # fmt: skip
        assert refused(two, f"ledger={str(path)!r}") == [f"ledger={str(path)!r}: {says}"] * 2
    assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


def test_a_file_that_cannot_be_written_later_ends_the_ledger_on_all_ranks(two: ddip.Group, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "ledger"
    two.run(f"pipe = p.pipe_of(l.parts(), '1f1b', ledger={str(path)!r}); batches = l.batches_of([8])")
    path.unlink()
    folder.rmdir()
    two.run("import warnings\nwith warnings.catch_warnings(record=True) as warned:\n    report = pipe.run(batches)")
    for one in two.run("pipe.notes[-1], len(warned), len(report.losses), len(pipe.run(batches).losses)"):
        said = f"ledger={str(path)!r} ends before a run that could not be written: No such file or directory"
        assert one.value == (said, 1, 1, 1)


def test_a_ledger_of_an_earlier_pipeline_does_not_outlive_one_whose_first_run_fails(
    two: ddip.Group, tmp_path: Path
) -> None:
    path = tmp_path / "ledger"
    two.run(f"l.replays({str(path)!r}, l.batches_of([8]), '1f1b', 'none')")
    assert lines_of(path)[0]["micro_batches"] == 4
    two.run(
        f"pipe = p.pipe_of([l.parts()[0], pipeline_failures.FailsAt(1).float()], '1f1b', ledger={str(path)!r})\n"
        "try:\n    pipe.run(l.batches_of([8]))\nexcept Exception as error:\n    pass"
    )
    assert [(line["kind"], line["micro_batches"]) for line in lines_of(path)] == [("header", 0)]
    with pytest.raises(RankError, match="the ledger has no run"):
        two.run(
            f"l.replay({str(path)!r}, [l.parts()[0], pipeline_failures.FailsAt(9).float()], torch.nn.functional.mse_loss, l.batches_of([8]))"
        )


CHANGES = {
    "momentum": "[group.update(momentum=0.5) for one in pipe.steppings.values() for group in one.groups]",
    "on one rank": "[group.update(momentum=0.5) for group in pipe.steppings[1].groups] if ddip.rank() == 1 else 0",
    "threads": "torch.set_num_threads(2)",
}


@pytest.mark.parametrize("change", list(CHANGES))
def test_a_ledger_ends_before_a_run_with_other_settings(two: ddip.Group, tmp_path: Path, change: str) -> None:
    path = tmp_path / "ledger"
    two.run(
        f"torch.set_num_threads(1)\npipe = p.pipe_of(l.parts(), '1f1b', ledger={str(path)!r}); batches = l.batches_of([8] * 4)\n"
        f"pipe.run(batches[:2]); pipe.set_rate(0.01); pipe.run(batches[2:3])\n{CHANGES[change]}\n"
    )
    before = path.read_text()
    two.run("pipe.run(batches[3:])\ntorch.set_num_threads(1)")
    assert path.read_text() == before
    for one in two.run("pipe.notes[-1]"):
        assert "ends before a run with other options of an optimizer than its rate" in one.value
    again = f"found = l.replay({str(path)!r}, l.parts(), torch.nn.functional.mse_loss, batches)\n(found.difference, found.notes)"
    assert two.run(again)[0].value == (
        None, ["the ledger ends after 12 micro-batches, and the program has more: not compared"]
    )  # fmt: skip


def test_a_ledger_ends_before_a_run_whose_scheduler_changes_more_than_rates(two: ddip.Group, tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    cycle = "lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, total_steps=50)"
    two.run(
        f"pipe = p.pipe_of(l.parts(), '1f1b', scheduler={cycle}, ledger={str(path)!r}); pipe.run(l.batches_of([8] * 3))"
    )
    assert lines_of(path)[0]["micro_batches"] == 0
    for one in two.run("pipe.notes[-1]"):
        assert "ends before a run with other options of an optimizer" in one.value
