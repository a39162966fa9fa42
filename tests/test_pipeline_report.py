"""What a run says about itself: times, a drawn timeline, a trace for other tools."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from ddip.pipeline.report import Report, StageTimes

pytest.importorskip("torch")


def row(rank: int, kind: str, micro_batch: int, begin: float, end: float) -> dict[str, object]:
    return {
        "rank": rank, "kind": kind, "direction": "none", "stage": rank, "micro_batch": micro_batch, "edge": -1, "version": 0,
        "staleness": 2, "begin": begin, "end": end,
    }  # fmt: skip


@pytest.fixture
def report() -> Report:
    trace = [
        row(0, "forward", 0, 0.000, 0.010), row(0, "send", 0, 0.010, 0.011), row(0, "receive", 0, 0.011, 0.040),
        row(0, "backward", 0, 0.040, 0.060), row(0, "step", 0, 0.060, 0.062),
        row(1, "receive", 0, 0.000, 0.012), row(1, "forward", 0, 0.012, 0.022), row(1, "backward", 0, 0.022, 0.038),
    ]  # fmt: skip
    return Report([1.5], [StageTimes(0, 0), StageTimes(1, 1)], 0.062, trace)


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


def test_the_trace_is_one_that_chrome_and_perfetto_read(report: Report, tmp_path: Path) -> None:
    report.save_trace(tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == len(report.trace)
    assert {event["pid"] for event in spans} == {0, 1}
    backward = next(event for event in spans if event["cat"] == "backward" and event["pid"] == 0)
    assert (backward["ts"], backward["dur"]) == (pytest.approx(40000), pytest.approx(20000))


def test_the_table_and_an_empty_run_are_readable(report: Report) -> None:
    assert "stage rank" in str(report) and "1 batches in 0.06 s, last loss 1.5" in str(report)
    ElementTree.fromstring(Report([], [], 0.0, []).timeline())
