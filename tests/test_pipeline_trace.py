"""The file that save_trace writes, as a strict reader of the Trace Event Format takes it, and as Perfetto does where its
program is on the machine (the PyPI package fetches it from the network on first use; a test does not)."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ddip

SUPPORT = Path(__file__).parent / "support"
pytest.importorskip("torch")

# What the format's description knows of the phases that we write: required keys beside name, ph and pid.
PHASES = {
    "X": {"tid", "ts", "dur", "cat", "args"},
    "M": {"args"},
    "s": {"tid", "ts", "id", "cat"},
    "f": {"tid", "ts", "id", "cat", "bp"},
}
METADATA = {
    "process_name": "name",
    "thread_name": "name",
    "process_sort_index": "sort_index",
    "thread_sort_index": "sort_index",
}


def refuse(what: Any) -> Any:
    raise AssertionError(f"not in JSON, or twice: {what}")


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return dict(pairs) if len({key for key, _ in pairs}) == len(pairs) else refuse(pairs)


def read(path: Path) -> list[dict[str, Any]]:
    """The events; anything that the format does not know is refused."""
    whole = json.loads(path.read_text(), parse_constant=refuse, object_pairs_hook=once)
    assert set(whole) == {"traceEvents", "displayTimeUnit"} and whole["displayTimeUnit"] in ("ms", "ns")
    for event in whole["traceEvents"]:
        needed = PHASES[event["ph"]] | {"name", "ph", "pid"}
        assert needed <= set(event) <= needed | {"tid"}, event
        assert isinstance(event["name"], str) and event["name"]
        for key in {"pid", "tid", "id"} & set(event):
            assert type(event[key]) is int and event[key] > 0, event
        for key in {"ts", "dur"} & set(event):
            assert type(event[key]) in (int, float) and math.isfinite(event[key]) and event[key] >= 0, event
        if event["ph"] == "M":
            assert set(event["args"]) == {METADATA[event["name"]]}
    return whole["traceEvents"]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """A real run's file, and its trace."""
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    with ddip.Group(workers=2, name="pipeline-trace") as group:
        group.run(
            f"import sys; sys.path.insert(0, {str(SUPPORT)!r})\nimport ddip, pipelines as p\n"
            "import time\npipe = p.pipe_of(p.mlp(4), placement=[0, 1, 0, 1], schedule='async_1f1b')\n"
            "plan_of = pipe.plan_of\n"
            "def late(*asked):\n"  # rank 1 begins later, and says so
            "    time.sleep(0.05 * ddip.rank())\n"
            "    return plan_of(*asked)\n"
            "pipe.plan_of = late\n"
            "report = pipe.run(p.data(3, 12))\n"
            f"if ddip.rank() == 0: report.save_trace({str(path)!r})\ntrace = report.trace"
        )
        yield path, group.pull("trace", rank=0)


def key(row: dict[str, Any]) -> tuple[str, int, int, int]:
    return row["kind"], row["rank"], row["stage"], row["micro_batch"]


def test_every_action_is_a_slice_of_its_stages_thread_in_its_ranks_process(saved: Any) -> None:
    events = read(saved[0])
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads = {e["tid"]: (e["pid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    assert sorted(processes.values()) == ["rank 0", "rank 1"]
    assert len([e for e in events if e["name"] == "thread_name"]) == len(threads), "one number, one thread"
    assert {name for pid, name in threads.values() if processes[pid] == "rank 0"} >= {"stage 0", "stage 2"}
    assert {name for pid, name in threads.values() if processes[pid] == "rank 1"} >= {"stage 1", "stage 3"}

    def found(event: dict[str, Any]) -> tuple[str, int, int, int]:
        pid, thread = threads[event["tid"]]
        assert pid == event["pid"]
        stage = -1 if thread == "the pipeline" else int(thread.split()[1])
        return event["cat"], int(processes[pid].split()[1]), stage, event["args"]["micro_batch"]

    slices = [event for event in events if event["ph"] == "X"]
    assert [found(event) for event in slices] == [key(row) for row in saved[1]]
    for event, row in zip(slices, saved[1], strict=True):
        assert event["ts"] == pytest.approx(row["begin"] * 1e6, abs=0.002)
        assert event["ts"] + event["dur"] == pytest.approx(row["end"] * 1e6, abs=0.002)
        assert event["args"]["staleness"] == row["staleness"] and event["args"]["version"] == row["version"]


def test_slices_of_a_process_do_not_overlap(saved: Any) -> None:
    """A rank does one thing at a time, whichever of its stages it is for."""
    events = [event for event in read(saved[0]) if event["ph"] == "X"]
    for rank in {event["pid"] for event in events}:
        mine = sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event["pid"] == rank)
        assert all(end <= begin + 1e-6 for (_, end), (begin, _) in zip(mine, mine[1:], strict=False))


def test_every_message_is_an_arrow_from_its_send_to_its_receive_and_forward_in_time(saved: Any) -> None:
    events = read(saved[0])
    slices = [event for event in events if event["ph"] == "X"]

    def under(arrow: dict[str, Any]) -> dict[str, Any]:
        (found,) = [
            one
            for one in slices
            if one["tid"] == arrow["tid"]
            and one["ts"] <= arrow["ts"]
            and (arrow["ts"] < one["ts"] + one["dur"] or one["dur"] == 0 and arrow["ts"] == one["ts"])
        ]
        return found

    ends: dict[int, dict[str, dict[str, Any]]] = {}
    for event in events:
        if event["ph"] in "sf":
            assert event["ph"] not in ends.setdefault(event["id"], {})
            ends[event["id"]][event["ph"]] = event
    sends = [row for row in saved[1] if row["kind"] == "send"]
    assert len(ends) == len(sends) > 0
    for pair in ends.values():
        send, receive = under(pair["s"]), under(pair["f"])
        assert (send["cat"], receive["cat"]) == ("send", "receive") and pair["f"]["bp"] == "e"
        assert send["pid"] != receive["pid"] and send["args"]["micro_batch"] == receive["args"]["micro_batch"]
        assert pair["s"]["ts"] <= pair["f"]["ts"], "a message comes after it was sent: the ranks are on one clock"


def trace_processor() -> str:
    """Perfetto's program, if it is here already."""
    here = [
        shutil.which("trace_processor_shell"),
        *Path.home().glob(".local/share/perfetto/prebuilts/trace_processor_shell*"),
    ]
    found = next((str(path) for path in here if path), None)
    return found or pytest.skip("trace_processor_shell is not on this machine")


def test_perfetto_reads_it(saved: Any) -> None:
    processor = pytest.importorskip("perfetto.trace_processor")
    config = processor.TraceProcessorConfig(bin_path=trace_processor())
    with processor.TraceProcessor(trace=str(saved[0]), config=config) as perfetto:
        rows = perfetto.query(
            "select slice.category as kind, process.name as process, thread.name as thread, slice.dur as dur, slice.ts as ts "
            "from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid) "
            "order by process.name, slice.ts, slice.id"
        )
        found = [(row.kind, row.process, row.thread) for row in rows]
        flows = next(iter(perfetto.query("select count(*) as n from flow"))).n
        wrong = [row.name for row in perfetto.query("select name from stats where severity = 'error' and value > 0")]
    expected = [
        (row["kind"], f"rank {row['rank']}", f"stage {row['stage']}" if row["stage"] >= 0 else "the pipeline")
        for row in sorted(saved[1], key=lambda row: (row["rank"], row["begin"]))
    ]
    assert sorted(found) == sorted(expected) and wrong == []
    assert flows == sum(row["kind"] == "send" for row in saved[1])


def test_messages_of_pipelines_side_by_side_are_not_mixed_up(tmp_path: Path) -> None:
    from ddip.pipeline.report import Report

    def row(rank: int, kind: str, begin: float) -> dict[str, Any]:
        return {
            "rank": rank, "replica": rank // 2, "kind": kind, "direction": "activation", "stage": rank % 2, "micro_batch": 0, "edge": 0,
            "version": 0, "staleness": 0, "begin": begin, "end": begin + 0.5,
        }  # fmt: skip

    rows = [row(0, "send", 0), row(2, "send", 1), row(1, "receive", 2), row(3, "receive", 3)]
    Report([], [], 4.0, rows).save_trace(tmp_path / "trace.json")
    arrows = [event for event in read(tmp_path / "trace.json") if event["ph"] in "sf"]
    assert sorted((event["id"], event["ph"], event["pid"]) for event in arrows) == [
        (1, "f", 2), (1, "s", 1), (2, "f", 4), (2, "s", 3),
    ]  # fmt: skip
