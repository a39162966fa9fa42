"""I1: what a worker started goes with it, however it was started and however the worker ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from support import processes
from support.waiting import wait_until

# Each binds `child`: the pid of a process that would live for ten minutes.
CHILDREN = {
    "subprocess": "import subprocess; kept = subprocess.Popen(['sleep', '600']); child = kept.pid",
    "shell_pipeline": "import subprocess; kept = subprocess.Popen('sleep 600 | sleep 600', shell=True); child = kept.pid",
    "multiprocessing_fork": """
import multiprocessing, time
kept = multiprocessing.get_context('fork').Process(target=time.sleep, args=(600,)); kept.start(); child = kept.pid""",
    "multiprocessing_spawn": """
import multiprocessing, time
kept = multiprocessing.get_context('spawn').Process(target=time.sleep, args=(600,)); kept.start(); child = kept.pid""",
    "stubborn": "import subprocess; kept = subprocess.Popen(['sh', '-c', 'trap \"\" INT TERM HUP; while :; do sleep 600; done']); child = kept.pid",
    "own_session": "import subprocess; kept = subprocess.Popen(['sleep', '600'], start_new_session=True); child = kept.pid",
    "own_session_empty_environment": "import subprocess; kept = subprocess.Popen(['/bin/sleep', '600'], start_new_session=True, env={}); child = kept.pid",
    "grandchild_of_a_dead_child": """
import subprocess
child = int(subprocess.run(['sh', '-c', 'setsid sleep 600 >/dev/null 2>&1 & echo $!'], stdout=subprocess.PIPE).stdout)""",
    "raw_fork": "import os, time\nchild = os.fork()\nif child == 0:\n    time.sleep(600)\n    os._exit(0)",
}


def stop(group: Any) -> None:
    group.stop()


def restart(group: Any) -> None:
    group.restart()


def kill_worker(group: Any) -> None:
    for pid in group.pids:
        os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: all(rank["status"] == "lost" for rank in group.info()["ranks"]), 5, "both ranks are reported lost"
    )


CASES = [
    pytest.param(kind, ending, id=f"{kind}-{ending.__name__}")
    for kind in CHILDREN
    for ending in (stop, restart, kill_worker)
]


@pytest.mark.parametrize("kind, ending", CASES)
def test_children_of_workers_go_with_them(start: Callable[..., Any], kind: str, ending: Callable[[Any], None]) -> None:
    group = start()
    children = [result.value for result in group.run(CHILDREN[kind] + "\nchild")]
    try:
        assert len(set(children)) == 2 and all(processes.alive(pid) for pid in children)
        ending(group)
        processes.assert_gone(children, 2.0, f"after {ending.__name__}")
    finally:
        processes.kill(pid for pid in children if processes.alive(pid))


def test_a_child_that_holds_the_workers_descriptors_does_not_hide_its_death(start: Any) -> None:
    """It holds a copy of the control socket and of the output pipes, in a session of its own."""
    group = start()
    code = """
import os, time
child = os.fork()
if child == 0:
    os.setsid()
    time.sleep(600)
    os._exit(0)
while os.getsid(child) != child: time.sleep(0.001)
child
"""
    child = group.run(code, ranks=[1])[0].value
    cell = group.run("import time; print('in', flush=True); time.sleep(600)", ranks=[1], wait=False)
    wait_until(lambda: cell._lines, 5, "the cell runs")
    os.kill(group.pids[1], signal.SIGKILL)
    wait_until(cell.done, 0.5, "the death is told although the child lives")
    assert cell.status == "lost"
    processes.assert_gone([child], 2.0, "after its worker's death")


@pytest.mark.parametrize("ending", [stop, restart, kill_worker])
def test_loader_workers_of_torch_go_with_their_rank(start: Any, ending: Any) -> None:
    group = start(torch=True)
    children = [
        result.value
        for result in group.run("""
import torch
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 64
    def __getitem__(self, index): return torch.full((4,), float(index))
batches = iter(torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2, persistent_workers=True))
first = next(batches)
[worker.pid for worker in batches._workers], first.tolist()
""")
    ]
    pids = [pid for own, _ in children for pid in own]
    assert len(set(pids)) == 4 and all(processes.alive(pid) for pid in pids)
    assert all(first == [[float(row)] * 4 for row in range(4)] for _, first in children), (
        "a Dataset of a cell works in loader workers"
    )
    ending(group)
    processes.assert_gone(pids, 2.0, f"after {ending.__name__}")


def test_children_of_the_other_rank_stay(start: Any) -> None:
    group = start()
    children = [result.value for result in group.run(CHILDREN["subprocess"] + "\nchild")]
    group.restart(ranks=[1])
    processes.assert_gone(children[1:], 2.0)
    assert processes.alive(children[0])
