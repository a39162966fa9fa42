"""What every rank did, as a file for chrome://tracing and ui.perfetto.dev: a process for each rank, a thread for each of its
stages, a slice for each action, an arrow for each message."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def chrome_trace(trace: Sequence[dict[str, Any]]) -> str:
    """The JSON of Trace Event Format."""
    stages = sorted({(row["rank"], row["stage"]) for row in trace})
    # From 1 on, and no thread's number twice: viewers take 0 for the system's idle task, and one number for one thread.
    threads = {place: number for number, place in enumerate(stages, 1)}
    events: list[dict[str, Any]] = []
    for rank in sorted({rank for rank, _ in stages}):
        events += named("process", f"rank {rank}", rank, {"pid": rank + 1})
    for (rank, stage), thread in threads.items():
        name = f"stage {stage}" if stage >= 0 else "the pipeline"
        events += named("thread", name, stage, {"pid": rank + 1, "tid": thread})
    for row in trace:
        place = {"pid": row["rank"] + 1, "tid": threads[row["rank"], row["stage"]]}
        begin, end = microseconds(row["begin"]), microseconds(row["end"])
        args = {key: row[key] for key in ("micro_batch", "version", "staleness")}
        slice_ = {"name": f"{row['kind']} {row['micro_batch']}", "cat": row["kind"], "ph": "X", **place}
        events.append({**slice_, "ts": begin, "dur": round(end - begin, 3), "args": args})
    events += arrows(trace, threads)
    # One event a line: a person can read it, and search in it.
    return '{"displayTimeUnit": "ms", "traceEvents": [\n' + ",\n".join(map(json.dumps, events)) + "\n]}\n"


def named(what: str, name: str, order: int, place: dict[str, int]) -> list[dict[str, Any]]:
    return [
        {"name": f"{what}_name", "ph": "M", **place, "args": {"name": name}},
        {"name": f"{what}_sort_index", "ph": "M", **place, "args": {"sort_index": order}},
    ]


def arrows(trace: Sequence[dict[str, Any]], threads: dict[tuple[int, int], int]) -> list[dict[str, Any]]:
    """From each SEND to the RECV that took it."""
    ends: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for row in trace:
        if row["kind"] in ("send", "receive"):
            message = row.get("replica", 0), row["edge"], row["direction"], row["micro_batch"]
            ends.setdefault(message, {})[row["kind"]] = row
    found: list[dict[str, Any]] = []
    for number, pair in enumerate((pair for pair in ends.values() if len(pair) == 2), 1):
        send, receive = pair["send"], pair["receive"]
        # Where the send begins and the wait ends, but within the slice: on its border the arrow would be the next one's.
        end = microseconds(receive["end"])
        came = max(microseconds(receive["begin"]), round(end - 0.001, 3))
        there, here = ({"pid": row["rank"] + 1, "tid": threads[row["rank"], row["stage"]]} for row in (send, receive))
        # The wait may have begun before the send, and Perfetto turns an arrow round whose end lies in the slice that began
        # first: so it ends in a slice of its own, inside the wait.
        args = {"micro_batch": receive["micro_batch"]}
        name = f"{receive['direction']} {receive['micro_batch']}"
        dot = {"name": name, "cat": "message", "ph": "X", **here, "ts": came, "dur": round(end - came, 3), "args": args}
        arrow = {"name": receive["direction"], "cat": "message", "id": number}
        found += [
            dot,
            {**arrow, "ph": "s", **there, "ts": microseconds(send["begin"])},
            {**arrow, "ph": "f", "bp": "e", **here, "ts": came},
        ]
    return found


def microseconds(seconds: float) -> float:
    return round(seconds * 1e6, 3)
