"""I17 and faults 9, 22: what outlives whom, and that no line is lost or shown twice on the way."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
from support import journal, processes
from support.scripts import Script
from support.waiting import Stopwatch, wait_until

import ddip

COUNT = 400
CELL = """
import os, time
for n in range(1, {count} + 1):
    print('line', n, flush=True)
    if n == {count} // 2:
        while not os.path.exists({gate!r}): time.sleep(0.005)
"""
CLIENT = """
import ddip, sys
group = ddip.Group(2, name="kept", client="notebook", on_exit="keep")
cell = group.run({code!r}, wait=False)
last = 0
def take(event):
    global last
    last = max(last, event[4])
{body}
print("ready", cell.number, *group.pids)
input()
"""
EXPECTED = [f"line {n}" for n in range(1, COUNT + 1)]


def watched(group: Any, number: int) -> list[tuple[Any, ...]]:
    """All events of that cell that the watch gives, up to its end."""
    events = []
    while True:
        event = group.client.next(0, 10)
        assert event is not None, f"the end of cell {number} did not come; {len(events)} events did"
        if event[1] == number:
            events.append(event)
        if event[:2] == ("cell_done", number):
            return events


def lines_of(events: list[tuple[Any, ...]], rank: int) -> list[str]:
    return journal.text_lines(event for event in events if event[2] == rank)


def run_client(home: Any, body: str = "") -> Script:
    code = CELL.format(count=COUNT, gate=str(home / "gate"))
    return Script(CLIENT.format(code=code, body=body))


@pytest.fixture
def gate(home: Any) -> Any:
    yield home / "gate"
    (home / "gate").unlink(missing_ok=True)
    if "kept" in ddip.groups():
        ddip.attach("kept").stop()


@pytest.mark.kills
def test_a_kept_group_survives_its_client_and_shows_every_line_once_in_order(home: Any, gate: Any) -> None:
    with run_client(home) as client:
        _, number, *pids = client.hear().split()
        client.signal(signal.SIGKILL)
        client.wait()
        with Stopwatch() as watch:
            group = ddip.attach("kept", client="notebook")
            unfinished = group.client.request("watch", {})
        assert watch.seconds < 5, "promised: 1 s"
        assert [cell["cell"] for cell in unfinished["cells"]] == [int(number)], "the cell went on without its client"
        gate.touch()
        events = watched(group, int(number))
        for rank in (0, 1):
            assert lines_of(events, rank) == EXPECTED
        assert [str(pid) for pid in group.pids] == pids
        sequences = [event[4] for event in events]
        assert sequences == sorted(set(sequences))


@pytest.mark.kills
def test_lines_that_were_acknowledged_are_not_shown_again_and_no_other_is_missing(home: Any, gate: Any) -> None:
    # The client takes events by hand, acknowledges what it has shown and says what that was.
    source = CLIENT.replace(
        "cell = group.run({code!r}, wait=False)", 'cell = group.submit({{"kind": "cell", "code": {code!r}}})'
    )
    body = """
text = {0: b"", 1: b""}
while any(part.count(b"\\n") < 50 for part in text.values()):
    event = group.client.next(cell.number, 5)
    last = event[4]
    if event[0] == "output": text[event[2]] += event[3]
group.client.send("acknowledge", {"sequence": last})
group.client.request("info", {})
print("shown", len(text[0]), len(text[1]), last)
"""
    code = CELL.format(count=COUNT, gate=str(home / "gate"))
    with Script(source.format(code=code, body=body)) as client:
        shown = [int(word) for word in client.hear().split()[1:]]
        number = int(client.hear().split()[1])
        client.signal(signal.SIGKILL)
        client.wait()
        gate.touch()
        group = ddip.attach("kept", client="notebook")
        wait_until(lambda: not group.info()["cells"], 10, "the cell is over while nobody watches")
        group.client.request("watch", {})
        events = watched(group, number)
        assert min(event[4] for event in events) > shown[2]
        for rank in (0, 1):
            rest = b"".join(event[3] for event in events if event[0] == "output" and event[2] == rank).decode()
            assert rest == "".join(line + "\n" for line in EXPECTED)[shown[rank] :], "exactly the rest"


@pytest.mark.kills
def test_a_cell_that_ended_while_its_client_was_dead_is_shown_though_nothing_was_ever_acknowledged(
    home: Any, gate: Any
) -> None:
    with run_client(home) as client:
        number = int(client.hear().split()[1])
        client.signal(signal.SIGKILL)
        client.wait()
        gate.touch()
        group = ddip.attach("kept", client="notebook")
        wait_until(lambda: not group.info()["cells"], 10, "the cell is over while nobody watches")
        group.client.request("watch", {})
        events = watched(group, number)
        for rank in (0, 1):
            assert lines_of(events, rank) == EXPECTED


@pytest.mark.kills
def test_a_new_client_is_shown_what_runs_now_not_the_past(home: Any, gate: Any) -> None:
    with run_client(home) as client:
        number = int(client.hear().split()[1])
        group = ddip.attach("kept", client="other")
        group.client.request("watch", {})
        gate.touch()
        assert lines_of(watched(group, number), 0) == EXPECTED
        late = ddip.attach("kept", client="third")
        late.client.request("watch", {})
        assert late.client.next(0, 0.2) is None, "a finished cell of another client is not replayed"
        client.signal(signal.SIGKILL)
        client.wait()
    del late, group


def test_two_watchers_both_see_every_line(start: Any) -> None:
    group = start(name="seen")
    watchers = [ddip.attach("seen", client=f"watcher{n}") for n in range(2)]
    for watcher in watchers:
        watcher.client.request("watch", {})
    cell = group.run("for n in range(200): print('line', n)", wait=False)
    cell.results()
    for watcher in watchers:
        events = watched(watcher, cell.number)
        for rank in (0, 1):
            assert lines_of(events, rank) == [f"line {n}" for n in range(200)]


def test_a_client_name_that_cannot_be_kept_is_refused_with_a_word(start: Any) -> None:
    start(name="named")
    with pytest.raises(ddip.ConfigError, match="a b"):
        ddip.attach("named", client="a b").client.request("watch", {})


def test_the_idle_clock_does_not_run_while_the_group_starts(home: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("DDIP_PRELOAD", "torch")  # which takes its time
    begun = time.monotonic()
    with ddip.Group(2, name="slow", idle=0.4) as group:
        assert time.monotonic() - begun > 0.4
        assert [result.value for result in group.run("1")] == [1, 1]


HOLDS_SOCKET = """
import os, signal
holder = os.fork()
if holder == 0:
    while True: signal.pause()
print(holder, *group.pids, group.info()["pid"])
input()
"""


@pytest.mark.kills
def test_a_stop_group_is_gone_with_its_client_although_a_child_keeps_the_socket(home: Any) -> None:
    source = (
        "import ddip\ngroup = ddip.Group(2, name='owned')\ncell = group.run('import time; time.sleep(600)', wait=False)\n"
        + HOLDS_SOCKET
    )
    with Script(source) as client:
        holder, *pids = (int(word) for word in client.hear().split())
        try:
            client.signal(signal.SIGKILL)
            client.wait()
            processes.assert_gone(pids, 5.0, "after SIGKILL of the client")
            wait_until(lambda: not processes.of_runtime(str(home)), 5, "nothing of the group is left")
            assert processes.alive(holder), "the fault really was there"
        finally:
            processes.kill([holder])


@pytest.mark.kills
def test_a_keep_group_goes_on_although_a_child_keeps_the_socket(home: Any, gate: Any) -> None:
    source = "import ddip\ngroup = ddip.Group(2, name='kept', on_exit='keep')\ngroup.run('x = 1')\n" + HOLDS_SOCKET
    with Script(source) as client:
        holder, *pids = (int(word) for word in client.hear().split())
        client.signal(signal.SIGKILL)
        client.wait()
        group = ddip.attach("kept")
        try:
            wait_until(
                lambda: client.pid not in [entry["pid"] for entry in group.info()["clients"]],
                1,
                "its death is noticed, not its socket's end",
            )
            assert [result.value for result in group.run("x")] == [1, 1] and group.pids == pids[:2]
        finally:
            processes.kill([holder])


@pytest.mark.kills
def test_a_kept_group_survives_the_end_of_its_clients_session(home: Any, gate: Any) -> None:
    """ipykernel and a closed terminal signal the whole process group; SIGHUP to it must not reach the group either."""
    with Script(
        # Under nohup SIGHUP is ignored, and that is inherited.
        "import os, signal\nsignal.signal(signal.SIGHUP, signal.SIG_DFL)\nos.setsid()\nimport ddip\n"
        "group = ddip.Group(2, name='kept', on_exit='keep')\nprint(*group.pids)\ninput()"
    ) as client:
        pids = [int(word) for word in client.hear().split()]
        os.killpg(client.pid, signal.SIGHUP)
        client.wait()
        group = ddip.attach("kept")
        assert group.pids == pids and [result.value for result in group.run("1")] == [1, 1]


def test_an_idle_group_ends_by_itself_but_not_while_somebody_is_there(home: Any) -> None:
    group = ddip.Group(2, name="idle", on_exit="keep", idle=1)
    pids = [*group.pids, group.info()["pid"]]
    cell = group.run("import time; time.sleep(2); print('whole')", wait=False)
    assert cell.wait(5) and cell.status == "done" and "idle" in ddip.groups(), "a connected client keeps it"
    del group, cell
    processes.assert_gone(pids, 5.0, "after its idle time")
    assert ddip.groups() == []


def test_an_idle_group_lets_a_running_cell_finish(home: Any) -> None:
    source = """
import ddip
group = ddip.Group(2, name="idle", on_exit="keep", idle=1)
cell = group.run("import time; time.sleep(2.5); open(r'{home}/whole' + __import__('os').environ['RANK'], 'w').close()", wait=False)
print(*group.pids)
"""
    with Script(source.replace("{home}", str(home))) as client:
        pids = [int(word) for word in client.hear().split()]
        client.wait()
        processes.assert_gone(pids, 8.0, "after cell and idle time")
        for rank in "01":
            (home / f"whole{rank}").unlink()


@pytest.mark.kills
def test_after_the_coordinators_death_nothing_lives_and_no_journaled_line_is_lost(start: Any, home: Any) -> None:
    group = start(name="lost")
    info = group.info()
    cell = group.run("import time\nfor n in range(1000): print('line', n, flush=True)\ntime.sleep(600)", wait=False)
    wait_until(
        lambda: cell.text(0, 1).count("\n") > 500 and cell.text(1, 1).count("\n") > 500, 10, "half of it was shown"
    )
    everybody = processes.of_runtime(str(home))
    os.kill(info["pid"], signal.SIGKILL)
    processes.assert_gone(everybody, 5.0, "after SIGKILL of the coordinator")
    wait_until(cell.done, 5, "the waiting client is told")
    assert cell.status == "lost"
    with pytest.raises(ddip.PeerLost):
        cell.results()
    folder = journal.newest(os.environ["XDG_STATE_HOME"], "lost")
    assert folder == info["journal"]
    for rank in (0, 1):
        shown = cell.text(rank, 1).split("\n")[:-1]  # the last may be half a line
        assert journal.lines(folder, cell.number, rank)[: len(shown)] == shown


@pytest.mark.kills
def test_after_the_coordinators_death_nothing_lives_that_a_cell_has_started(start: Any, home: Any) -> None:
    """In a session of its own and stopped: no rank's end reaches it."""
    group = start(name="lost")
    group.run("import subprocess; child = subprocess.Popen(['setsid', 'sleep', '1000'])")
    info = group.info()
    children = [result.value for result in group.run("child.pid")]
    wait_until(lambda: all(processes.command_of(pid)[:1] == ["sleep"] for pid in children), 5, "they sleep")
    for pid in children:
        os.kill(pid, signal.SIGSTOP)
    everybody = processes.of_runtime(str(home))
    assert set(children) < set(everybody)
    os.kill(info["pid"], signal.SIGKILL)
    processes.assert_gone(everybody, 5.0, "after SIGKILL of the coordinator")


@pytest.mark.kills
def test_the_next_client_of_a_lost_group_is_told_when_and_how_many_lines_are_kept(start: Any, home: Any) -> None:
    group = start(name="lost")
    group.run("for n in range(10): print(n)")
    os.kill(group.info()["pid"], signal.SIGKILL)
    wait_until(lambda: not processes.of_runtime(str(home)), 5, "everything is gone")
    with pytest.raises(ddip.ConfigError, match=r"lost at .*20 lines"):
        ddip.attach("lost")


@pytest.mark.kills
def test_a_stopped_survivor_is_swept_by_the_next_start_of_that_name(start: Any, home: Any) -> None:
    """When its session's other processes die, the kernel wakes a stopped process; not one that has a session of its own."""
    group = start(name="frozen")
    info = group.info()
    children = [
        result.value
        for result in group.run(
            "import subprocess; kept = subprocess.Popen(['sleep', '600'], start_new_session=True); kept.pid"
        )
    ]
    frozen = [*children, *group.pids, info["agent"]["warm_parent"]]
    processes.kill(frozen, signal.SIGSTOP)
    os.kill(info["pid"], signal.SIGKILL)
    wait_until(lambda: not processes.alive(info["pid"]), 2, "the coordinator is dead")
    assert all(processes.state(pid) == "T" for pid in children), "somebody is left who cannot act"
    again = start(name="frozen")
    processes.assert_gone(frozen, 0.5, "after the next start")
    assert [result.value for result in again.run("1")] == [1, 1]


@pytest.mark.kills
def test_sigterm_to_the_coordinator_is_an_orderly_stop(start: Any, home: Any, tmp_path: Any) -> None:
    group = start(name="term")
    group.run(
        f"import atexit, os, pathlib; atexit.register(lambda: pathlib.Path({str(tmp_path)!r}, os.environ['RANK']).touch())"
    )
    everybody = processes.of_runtime(str(home))
    os.kill(group.info()["pid"], signal.SIGTERM)
    processes.assert_gone(everybody, 2.0, "after SIGTERM")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1"] and list(home.iterdir()) == []
