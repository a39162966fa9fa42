"""Interactive groups beside ipyparallel: round trips, push, pull, start, restart, death, output."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import psutil
from table import Table

import ddip

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BIG = 256 << 20


def timed(action: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


@contextlib.contextmanager
def peers(workers: int) -> Iterator[tuple[ddip.Group, Any]]:
    """A ddip group and an ipyparallel cluster of the same size, both with torch imported."""
    import ipyparallel

    cluster = ipyparallel.Cluster(n=workers, log_level=50)
    client = cluster.start_and_connect_sync()
    view = client[:]
    view.execute("import torch", block=True)
    with ddip.Group(workers=workers) as group:
        group.run("import torch")
        try:
            yield group, view
        finally:
            cluster.stop_cluster_sync()


def interleave(
    repeats: int, ours: Callable[[], Any], theirs: Callable[[], Any], block: int = 1
) -> tuple[list[float], list[float]]:
    """A B A B …, `block` of each at a time. Where an action takes less than what the other leaves behind (ipyparallel's
    hub and engines go on for milliseconds after the answer), single steps would measure that instead."""
    ours(), theirs()  # once unmeasured
    a, b = [], []
    for _ in range(0, repeats, block):
        a += [timed(ours) for _ in range(block)]
        b += [timed(theirs) for _ in range(block)]
    return a, b


def round_trip(table: Table, quick: bool) -> None:
    for workers in (2, 4):
        with peers(workers) as (group, view):
            a, b = interleave(
                40 if quick else 400, lambda: group.run("pass"), lambda: view.execute("pass", block=True), block=20
            )
            table.add(
                f"empty cell, {workers} workers", a, b, "ms", "≥ 15×, < 0.5 ms" if workers == 2 else "≥ 15×, < 1 ms"
            )


def push(table: Table, quick: bool) -> None:
    data = numpy.random.default_rng(0).integers(0, 255, BIG, dtype=numpy.uint8)
    touch = "x[::4096] += 1"
    for workers in (2, 4):
        with peers(workers) as (group, view):
            repeats = 2 if quick else 20
            a, b = interleave(repeats, lambda: group.push({"x": data}), lambda: view.push({"x": data}, block=True))
            table.add(f"push 256 MiB to {workers}", a, b, "s", "≥ 12×")

            def ours() -> None:
                group.push({"x": data})
                group.run(touch)

            def theirs() -> None:
                view.push({"x": data}, block=True)
                view.execute("x = x.copy(); " + touch, block=True)  # what arrives there is read-only

            a, b = interleave(repeats, ours, theirs)
            table.add(f"push 256 MiB to {workers}, every page written", a, b, "s", "≥ 8×")
            if workers == 2:
                a, b = interleave(
                    repeats, lambda: group.pull("x", rank=0), lambda: view.pull("x", targets=0, block=True)
                )
                table.add("pull 256 MiB from one rank", a, b, "s", "< 0.15 s")


def start(table: Table, quick: bool) -> None:
    import ipyparallel

    a, b, floor = [], [], []
    for _ in range(2 if quick else 20):
        floor.append(
            timed(lambda: subprocess.run([ddip.group.sys.executable, "-c", "import torch, IPython"], check=True))
        )
        begun = time.perf_counter()
        group = ddip.Group(workers=4)
        group.run("1+1")
        a.append(time.perf_counter() - begun)
        group.stop()
    for _ in range(1 if quick else 3):  # ten seconds each
        begun = time.perf_counter()
        cluster = ipyparallel.Cluster(n=4, log_level=50)
        view = cluster.start_and_connect_sync()[:]
        view.execute("import torch; 1+1", block=True)
        b.append(time.perf_counter() - begun)
        cluster.stop_cluster_sync()
    table.add("start 4 workers, torch imported, first reply", a, b, "s", "≤ the next row + 0.3 s")
    table.add("   a process that imports torch and IPython", floor, None, "s", "")


def restart(table: Table, quick: bool) -> None:
    with ddip.Group(workers=4) as group:
        table.add(
            "restart of 4 workers, first reply",
            [timed(lambda: (group.restart(), group.run("1+1"))) for _ in range(3 if quick else 20)],
            None,
            "s",
            "< 0.2 s",
        )


def death(table: Table, quick: bool) -> None:
    times = []
    with ddip.Group(workers=2) as group:
        for _ in range(3 if quick else 20):
            cell = group.run("import time; time.sleep(60)", ranks=[1], wait=False)
            pid = group.pids[1]
            while group.why()["ranks"][1].get("cell") != cell.number:
                pass
            begun = time.perf_counter()
            os.kill(pid, signal.SIGKILL)
            cell.wait()
            times.append(time.perf_counter() - begun)
            group.restart(ranks=[1])
    table.add("dead rank reported", times, None, "s", "< 0.1 s (ipyparallel: 30 s)")


def attach(table: Table, quick: bool) -> None:
    with ddip.Group(workers=2, name="bench-attach") as group:
        group.run("for i in range(1000): print(i)")
        table.add(
            "re-attach and read 1,000 lines × 2",
            [timed(read_past) for _ in range(3 if quick else 20)],
            None,
            "s",
            "< 1 s",
        )


def read_past() -> None:
    group = ddip.attach("bench-attach", client="reader")
    group.client.request("watch", {"after": 0})
    while (event := group.client.next(0, 5.0)) is not None and event[0] != "cell_done":
        pass


def output(table: Table, quick: bool) -> None:
    """100 MB of prints on 4 ranks: how fast, what it costs in memory, how soon the next cell answers."""
    lines = 20_000 if quick else 262_144
    code = f"line = 'x' * 99\nfor i in range({lines}): print(line)"
    with ddip.Group(workers=4) as group:
        group.run("print(1)")
        coordinator = psutil.Process(group.info()["pid"])
        kernel = psutil.Process()
        before = coordinator.memory_info().rss, kernel.memory_info().rss
        peak = [0, 0]
        cell = group.submit({"kind": "cell", "code": code}, keep_all=False)
        begun = time.perf_counter()
        seen = 0
        while not cell.finished:
            event = group.client.next(cell.number, 1.0)
            if event is not None and event[0] == "output":
                seen += event[3].count(b"\n")
            elif event is not None:
                cell.take(event)
            peak = [
                max(peak[0], coordinator.memory_info().rss - before[0]),
                max(peak[1], kernel.memory_info().rss - before[1]),
            ]
        seconds = time.perf_counter() - begun
        next_cell = timed(lambda: group.run("pass"))
    megabytes = lines * 4 * 100 / 1e6
    table.say(f"{megabytes:.0f} MB of prints on 4 ranks", f"{lines * 4 / seconds:,.0f} lines/s", target="")
    table.say("   coordinator's memory", f"+{peak[0] / 2**20:.0f} MiB", target="≤ +64 MB")
    table.say("   client's memory", f"+{peak[1] / 2**20:.0f} MiB", target="≤ +50 MB")
    table.say("   next cell", f"{next_cell * 1e3:.1f} ms", target="< 1 s")


def echo(table: Table, quick: bool) -> None:
    with ddip.Group(workers=1) as group:
        program = os.path.join(ROOT, "build", "release", "benchmarks", "echo_benchmark")
        answer = json.loads(
            subprocess.run(
                [program, group._folder, "200" if quick else "5000"], check=True, capture_output=True, text=True
            ).stdout
        )
    ratio = answer["echo_us"] / answer["socket_us"]
    table.say("echo client → worker → client (C++)", f"{answer['echo_us']} µs (p90 {answer['echo_p90_us']})",
              f"bare socket {answer['socket_us']} µs (p90 {answer['socket_p90_us']})", f"{ratio:.1f} × the socket", "≤ 10 ×")  # fmt: skip


def processes(table: Table, quick: bool) -> None:
    with peers(4) as (group, view):
        info = group.info()
        marker = f"DDIP_GROUP={group.name}."
        ours = sum(1 for process in psutil.process_iter() if carries(process, marker)) - 4
        me = psutil.Process()
        theirs = sum(1 for child in me.children(recursive=True) if child.pid not in [info["pid"]]) - 4
        table.say("processes beside 4 ranks", str(ours), str(theirs), target="≤ 2")


def carries(process: psutil.Process, marker: str) -> bool:
    try:
        return any(f"{name}={value}".startswith(marker) for name, value in process.environ().items())
    except psutil.Error:
        return False


MEASURES: dict[str, Callable[[Table, bool], None]] = {
    "echo": echo,
    "round_trip": round_trip,
    "push": push,
    "start": start,
    "restart": restart,
    "death": death,
    "attach": attach,
    "output": output,
    "processes": processes,
}
