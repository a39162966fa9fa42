"""What a run says about itself: times, a drawn timeline, a trace for other tools."""

from __future__ import annotations

import copy
import math
import pickle
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace
from typing import Any

import pytest
from ddip.errors import ConfigError
from ddip.pipeline.memory import Memory, readable
from ddip.pipeline.report import Report, StageTimes, on_one_clock, share_of_run, times_of
from ddip.pipeline.rows import Rows

pytest.importorskip("torch")


def row(rank: int, kind: str, micro_batch: int, begin: float, end: float) -> dict[str, object]:
    return {
        "rank": rank, "kind": kind, "direction": "none", "stage": rank, "micro_batch": micro_batch, "edge": -1, "version": 0,
        "staleness": 2, "begin": begin, "end": end,
    }  # fmt: skip


@pytest.fixture
def report() -> Report:
    trace: list[Any] = [
        row(0, "forward", 0, 0.000, 0.010), row(0, "send", 0, 0.010, 0.011), row(0, "receive", 0, 0.011, 0.040),
        row(0, "backward", 0, 0.040, 0.060), row(0, "step", 0, 0.060, 0.062),
        row(1, "receive", 0, 0.000, 0.012), row(1, "forward", 0, 0.012, 0.022), row(1, "backward", 0, 0.022, 0.038),
    ]  # fmt: skip
    first = StageTimes(0, 0, forward=0.01, backward=0.02, update=0.002, communication=0.001, wait=0.029, bubble=0.484)
    return Report([1.5], [first, StageTimes(1, 1)], 0.062, trace)


def test_the_timeline_has_a_box_for_each_action_where_it_was(report: Report) -> None:
    root = ElementTree.fromstring(report.timeline())
    boxes = [node for node in root.iter("{http://www.w3.org/2000/svg}rect") if node.get("class")]
    assert sorted(str(node.get("class")) for node in boxes) == sorted(str(one["kind"]) for one in report.trace)
    place = {
        str(node.get("class")): float(str(node.get("x")))
        for node in boxes
        if node[0].text and "stage 0" in node[0].text
    }
    assert place["forward"] < place["receive"] < place["backward"] < place["step"]
    first, back = place["forward"], place["backward"]
    assert (back - first) / (960 - 80) == pytest.approx(0.040 / 0.062, rel=0.01)
    said = [str(node[0].text) for node in boxes]
    assert "forward of micro-batch 0, stage 0: 10.00 ms, staleness 2" in said


def test_a_part_of_the_time_shows_what_lies_in_it(report: Report) -> None:
    root = ElementTree.fromstring(report.timeline(0.03, 0.05))
    kinds = [node.get("class") for node in root.iter("{http://www.w3.org/2000/svg}rect") if node.get("class")]
    assert sorted(map(str, kinds)) == ["backward", "backward", "receive"]


class Done:
    def __init__(self, kind: str, stage: int, begin: float, end: float) -> None:
        self.action = SimpleNamespace(kind=kind, stage=stage, staleness=0)
        self.begin, self.end = begin, end


def test_a_rank_that_ends_before_the_others_is_idle_until_they_do() -> None:
    """gpipe with two stages and two micro-batches: each rank computes for 6 of 9."""
    first = [Done("forward", 0, 0, 1), Done("forward", 0, 1, 2), Done("backward", 0, 5, 7), Done("backward", 0, 7, 9)]
    last = [Done("forward", 1, 1, 2), Done("forward", 1, 2, 3), Done("backward", 1, 3, 5), Done("backward", 1, 5, 7)]
    records = [SimpleNamespace(actions=actions, bytes_sent=0) for actions in (first, last)]
    stages = [times_of(record, index, index) for index, record in enumerate(records)]
    share_of_run(stages, 9.0)
    assert [one.bubble for one in stages] == pytest.approx([1 / 3, 1 / 3])


def test_a_rank_with_several_stages_counts_once() -> None:
    stages = [StageTimes(0, 0, bubble=0.9), StageTimes(1, 1, bubble=0.1), StageTimes(2, 1, bubble=0.1)]
    assert Report([], stages, 1.0, []).bubble == pytest.approx(0.5)


def test_the_table_and_an_empty_run_are_readable(report: Report) -> None:
    lines = str(report).splitlines()
    assert lines[0].split() == ["stage", "rank", "forward", "backward", "update", "send", "wait", "bubble"]
    assert lines[1].split() == ["0", "0", "0.01s", "0.02s", "0.00s", "0.00s", "0.03s", "48.4%"]
    assert lines[-1] == "1 batch in 0.06 s, last loss 1.5"
    assert str(Report([2.0, 1.0], [], 1.0, [])) == "2 batches in 1.00 s, last loss 1"
    assert str(Report([], [], 0.0, [])) == "0 batches in 0.00 s"
    ElementTree.fromstring(Report([], [], 0.0, []).timeline())


def test_an_evaluation_says_its_mean_and_a_batch_that_counted_nothing_has_no_loss() -> None:
    nan = float("nan")
    found = Report([2.0, nan, 1.0], [], 1.0, [], counts=[1.0, 0.0, 3.0], is_evaluation=True)
    assert found.loss == 1.25 and found.summary() == "3 batches in 1.00 s, mean loss 1.25"
    trained = Report([2.0, nan], [], 1.0, [], counts=[8.0, 0.0])
    assert trained.loss == 2.0 and trained.summary() == "2 batches in 1.00 s, last loss –"
    diverged = Report([nan], [], 1.0, [], counts=[8.0])
    assert diverged.summary() == "1 batch in 1.00 s, last loss nan"
    nothing = Report([nan], [], 1.0, [], counts=[0.0], is_evaluation=True)
    assert math.isnan(nothing.loss) and nothing.summary() == "1 batch in 1.00 s, mean loss –"
    assert math.isnan(Report([], [], 0.0, []).loss) and Report([1.0, 2.0], [], 1.0, []).loss == 1.5


def test_staleness_and_memory_of_each_stage_are_said(report: Report) -> None:
    first = report.stages[0]
    first.staleness, first.copies_kept = {3: 120, 0: 1, 1: 2}, 2
    first.memory = Memory(
        weights=4 << 20, gradients=2 << 20, optimizer=300, copies=4 << 20, activations=3000, in_flight=4
    )
    lines = str(report).splitlines()
    names, row = lines[-5], lines[-4]
    assert names.split()[:6] == ["stage", "weights", "gradients", "optimizer", "copies", "activations"]
    assert row.endswith("0  4.0 MiB    2.0 MiB      300 B  4.0 MiB (2)  2.9 KiB (4)     0: 1, 1: 2, 3: 120"), row
    page = ElementTree.fromstring(f"<div>{report._repr_html_()}</div>")
    cells = ["".join(cell.itertext()) for cell in page.iter("td")]
    assert "0: 1, 1: 2, 3: 120" in cells and "4.0 MiB (2)" in cells
    assert [len(list(table.iter("tr"))) for table in page.iter("table")] == [3, 3]
    assert page.find(".//{http://www.w3.org/2000/svg}svg") is not None
    assert first.memory.total == (10 << 20) + 3300


@pytest.mark.parametrize(
    ("size", "said"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 KiB"), (150_000, "146 KiB"), (5 << 20, "5.0 MiB"), (3 << 30, "3.0 GiB")],
)
def test_sizes_are_readable(size: int, said: str) -> None:
    assert readable(size) == said


def test_rows_read_like_the_list_that_they_were_made_of_and_are_small() -> None:
    rows = [
        {**row(k % 2, kind, k, 0.5 * k, 0.5 * k + 0.25), "replica": k % 3}
        for k, kind in enumerate(["send", "step"] * 500)
    ]
    made, others = Rows.of(rows[:10]), [{**row(1, "step", 7, 1.0, 2.0), "replica": 1, "direction": "gradient"}]
    assert list(made) == rows[:10] and made[-1] == rows[9] and made[2:4] == rows[2:4] and len(made) == 10
    made.extend(Rows.of(others), later=0.5)  # its words have other numbers
    assert list(made) == [*rows[:10], {**others[0], "begin": 1.5, "end": 2.5}]
    with pytest.raises(IndexError):
        made[11]
    assert pickle.loads(pickle.dumps(made))[10] == made[10]
    assert len(pickle.dumps(Rows.of(rows))) < 64 * len(rows), "bytes each"


def test_ranks_of_one_machine_are_on_one_clock() -> None:
    def part(rank: int, start: float, machine: str) -> tuple[Rows, float, str]:
        return Rows.of([row(rank, "forward", 0, 0.5, 1.0) | {"replica": 0}]), start, machine

    rows = on_one_clock([part(0, 100.25, "a"), part(1, 100.0, "a"), part(2, 7.0, "b")])
    assert [(one["begin"], one["end"]) for one in rows] == [(0.75, 1.25), (0.5, 1.0), (0.5, 1.0)]


def test_a_long_run_is_shown_from_its_beginning_until_a_rank_has_done_sixty_things() -> None:
    rows: list[Any] = [row(0, "forward", k, 0.01 * k, 0.01 * k + 0.005) for k in range(500)]
    rows += [row(1, "retire", k, 0.001 * k, 0.001 * k + 0.0005) for k in range(500)]  # not drawn
    rows += [row(1, "backward", k, 0.05 * k, 0.05 * k + 0.02) for k in range(100)]
    page = ElementTree.fromstring(f"<div>{Report([1.0], [], 5.0, rows)._repr_html_()}</div>")
    kinds = [node.get("class") for node in page.iter("{http://www.w3.org/2000/svg}rect") if node.get("class")]
    assert (kinds.count("forward"), kinds.count("backward")) == (60, 12)
    short = ElementTree.fromstring(f"<div>{Report([1.0], [], 5.0, rows[:50])._repr_html_()}</div>")
    assert len([1 for node in short.iter("{http://www.w3.org/2000/svg}rect") if node.get("class")]) == 50


def test_a_part_of_the_time_that_is_none_is_refused(report: Report) -> None:
    nan = float("nan")
    for part in ((5.0, 1.0), (nan, None), (0.0, nan), (1e9, None)):
        with pytest.raises(ConfigError, match="timeline from second"):
            report.timeline(*part)
    ElementTree.fromstring(report.timeline(0.01, float("inf")))


def test_a_very_long_run_is_drawn_in_part_which_the_picture_says() -> None:
    """Of 300,000 actions dictionaries are made for what is drawn alone: all of them took many seconds."""
    one = [{**row(0, "forward", 0, 0.0, 0.5), "replica": 0}, {**row(1, "retire", 0, 0.0, 0.5), "replica": 0}]
    rows, made = Rows.of(one), 0
    while len(rows) < 300_000:
        rows.extend(copy.deepcopy(rows), later=float(len(rows) // 2))

    class Counted(Rows):
        def __getitem__(self, place: Any) -> Any:
            nonlocal made
            made += isinstance(place, int)
            return super().__getitem__(place)

    counted = Counted()
    counted.extend(rows)
    found = Report([1.0], [], max(rows.column("end")), counted)
    root = ElementTree.fromstring(found.timeline())
    boxes = [node for node in root.iter("{http://www.w3.org/2000/svg}rect") if node.get("class")]
    assert len(boxes) == 4000 and made < 4010
    said = [str(node.text) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any(text.startswith("the first 4,000 of ") for text in said)
    made = 0
    assert "the first" not in found._repr_html_() and made < 100
