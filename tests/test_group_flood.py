"""TRUST fault 25: a flood of output is slowed down or elided; nobody's memory grows with it, and the group stays usable."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
from support import processes
from support.waiting import Stopwatch, wait_until

FLOOD = "line = 'x' * 99\nfor number in range(500_000): print(line)"  # 50 MB on each rank
MIB = 1 << 20


class Peak:
    """The most memory a process held while we looked."""

    def __init__(self, pid: int) -> None:
        self.pid, self.before, self.most = pid, processes.resident(pid), 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._stop.wait(0.01):
            try:
                self.most = max(self.most, processes.resident(self.pid))
            except OSError:
                return  # it is gone

    def growth(self) -> int:
        self._stop.set()
        self._thread.join()
        return self.most - self.before


def take_all(cell: Any) -> int:
    """Reads as a display does: shows and forgets."""
    count = 0
    while True:
        event = cell.group.client.next(cell.number, 5)
        assert event is not None, "nothing came for 5 s"
        if event[0] == "output":
            count += len(event[3])
        if event[0] == "cell_done":
            return count


@pytest.mark.timeout(120)
@pytest.mark.parametrize("keep_all", [True, False])
def test_a_flood_of_100_mb_leaves_memory_bounded_and_the_group_usable(start: Any, keep_all: bool) -> None:
    group = start()
    group.run("pass")
    coordinator, client = Peak(group.info()["pid"]), Peak(os.getpid())
    with Stopwatch() as flood:
        cell = group.submit({"kind": "cell", "code": FLOOD}, keep_all=keep_all)
        taken = take_all(cell)
    group.client.forget(cell.number)
    with Stopwatch() as watch:
        assert [result.value for result in group.run("1 + 1")] == [2, 2]
    grown = coordinator.growth() / MIB, client.growth() / MIB
    print(
        f"flood {flood.seconds:.1f} s, {taken / MIB:.0f} MiB shown, coordinator +{grown[0]:.0f} MiB, client +{grown[1]:.0f} MiB, next {watch.seconds:.3f} s"
    )
    assert watch.seconds < 5
    assert grown[0] < 64 and grown[1] < 50
    if keep_all:
        assert taken == 100_000_000, "a client that keeps up gets every byte"


@pytest.mark.timeout(120)
def test_a_client_that_reads_nothing_does_not_grow_anybody(start: Any) -> None:
    """The output lands in the journal; whoever does not read is served from there, when they read again."""
    group = start()
    group.run("pass")
    coordinator = Peak(group.info()["pid"])
    workers = [Peak(pid) for pid in group.pids]
    cell = group.submit({"kind": "cell", "code": FLOOD})
    wait_until(lambda: not group.info()["cells"], 90, "the cell ends although nobody reads its output")
    assert coordinator.growth() < 64 * MIB
    assert all(worker.growth() < 64 * MIB for worker in workers)
    assert take_all(cell) == 100_000_000


@pytest.mark.timeout(120)
def test_an_interrupt_reaches_a_rank_in_the_middle_of_a_flood(start: Any) -> None:
    group = start()
    cell = group.submit({"kind": "cell", "code": "while True: print('x' * 99)"}, keep_all=False)
    wait_until(lambda: cell.pump(0.1) is not None, 5, "the flood has begun")
    with Stopwatch() as watch:
        group.interrupt()
        while not cell.finished:
            assert cell.pump(5) is not None, "the cell's end does not come"
    assert watch.seconds < 5
    assert cell.status == "interrupted" and [result.value for result in group.run("1")] == [1, 1]


STUBBORN_FLOOD = """
import os, signal, time
signal.signal(signal.SIGINT, signal.SIG_IGN)
open(HOME + '/in', 'w').close()
for number in range(200): print('z' * 100_000)
while not os.path.exists(HOME + '/gate'): time.sleep(0.005)
"""


def test_a_cell_that_prints_on_after_ctrl_c_does_not_stop_its_group(start: Any, home: Any) -> None:
    group = start()
    code = STUBBORN_FLOOD.replace("HOME", repr(str(home)))
    cell = group.submit({"kind": "cell", "code": code, "first_line": ""}, [1])
    wait_until((home / "in").exists, 10, "it ignores the interrupt")
    wait, presses = cell.wait, [KeyboardInterrupt()]

    def wait_and_be_pressed(timeout: float | None = None) -> bool:
        if presses:
            raise presses.pop()
        return bool(wait(timeout))

    cell.wait = wait_and_be_pressed
    with pytest.raises(KeyboardInterrupt):
        group.finish(cell)
    assert not cell.done()
    assert group.run("1 + 1", ranks=[0])[0].value == 2
    (home / "gate").touch()
    assert group.run("1 + 1", ranks=[1])[0].value == 2
    wait_until(cell.done, 20, "its end")
    assert cell.text(1, 1) == "", "nobody will ask for it"
    (home / "gate").unlink(), (home / "in").unlink()


@pytest.mark.timeout(120)
def test_a_raw_flood_from_a_subprocess_is_bounded_too(start: Any) -> None:
    group = start()
    coordinator = Peak(group.info()["pid"])
    workers = [Peak(pid) for pid in group.pids]
    cell = group.submit(
        {"kind": "cell", "code": "import subprocess; subprocess.run('yes | head -c 50000000', shell=True)"}
    )
    assert take_all(cell) == 100_000_000
    assert coordinator.growth() < 64 * MIB and all(worker.growth() < 64 * MIB for worker in workers)


@pytest.mark.timeout(120)
def test_one_endless_line_is_no_different(start: Any) -> None:
    group = start()
    coordinator = Peak(group.info()["pid"])
    cell = group.submit({"kind": "cell", "code": "import os\nfor n in range(400): print('y' * 100_000, end='')"})
    assert take_all(cell) == 80_000_000
    assert coordinator.growth() < 64 * MIB
    assert group.run("1")[0].value == 1
