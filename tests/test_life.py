"""INTERACTIVE.md's table "who dies, who notices, how": random kills and stops at random moments, without torch.

Each round checks who noticed, what remained, and that nothing else is left over. DDIP_LIFE_ROUNDS and DDIP_LIFE_SEED set
the number of rounds and the seed; a failure prints both the seed and the last actions."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import journal, processes
from support.life import Forked, fork_holder
from support.waiting import wait_until

import ddip
from ddip import _client

ROUNDS = int(os.environ.get("DDIP_LIFE_ROUNDS", "1000"))
SEED = int(os.environ.get("DDIP_LIFE_SEED", "20261115"))
GONE = 5.0  # after SIGKILL of coordinator or owner
TOLD = 1.0  # death of a rank; promised 0.1 s, on a machine with two busy cores

CELLS = {
    "empty": "pass",
    "prints": "for n in range(30): print('line', n)",
    "sleeps": "import time; time.sleep(0.01)",
    "long": "import time; time.sleep(600)",
    "computes": "while True: pass",
    "has_a_child": "import subprocess, time; kept = subprocess.Popen(['sleep', '600']); time.sleep(600)",
}
ENDLESS = ("long", "computes", "has_a_child")


class Life:
    """One group after another; each step leaves a whole group for the next."""

    def __init__(self, runtime: Path, state: str, seed: int) -> None:
        self.runtime, self.state = runtime, state
        self.random = random.Random(seed)
        self.log: list[str] = []
        self.group: Any = None

    def begin(self) -> None:
        self.group = ddip.Group(2, name="life", client="tests")
        self.group.run("precious = 1")
        self.learn()

    def learn(self) -> None:
        info = self.group.info()
        self.pids: list[int] = [rank["pid"] for rank in info["ranks"]]
        self.coordinator: int = info["pid"]
        self.warm: int = info["agent"]["warm_parent"]
        self.journal: str = info["journal"]

    def moment(self) -> None:
        time.sleep(self.random.choice((0, 0.001, 0.004, 0.015)) * self.random.random())

    def start_cell(self) -> tuple[str, Any]:
        kind = self.random.choice(list(CELLS))
        self.log.append(f"cell {kind}")
        return kind, self.group.run(CELLS[kind], wait=False)

    def finish(self, kind: str, cell: Any) -> None:
        if kind in ENDLESS:
            self.group.interrupt(cell=cell.number)
        assert cell.wait(5), f"the cell does not end: {cell.endings}"

    # ---- one round each

    def kill_worker(self) -> None:
        rank = self.random.randrange(2)
        kind, cell = self.start_cell()
        self.moment()
        os.kill(self.pids[rank], signal.SIGKILL)
        self.rank_is_lost(rank, kind, cell)

    def rank_is_lost(self, rank: int, kind: str, cell: Any) -> None:
        wait_until(lambda: self.group.info()["ranks"][rank]["status"] == "lost", TOLD, f"rank {rank} is reported lost")
        wait_until(lambda: rank in cell.endings, TOLD, f"the cell has ended on rank {rank}")
        ending = cell.endings[rank]
        assert ending["outcome"] == "lost" or kind not in ENDLESS
        assert ending["outcome"] != "lost" or "SIGKILL" in ending["why"], ending
        self.finish(kind, cell)
        other = 1 - rank
        assert cell.endings[other]["outcome"] in ("ok", "interrupted"), cell.endings
        assert self.group.run("precious", ranks=[other])[0].value == 1
        self.group.restart(ranks=[rank])
        info = self.group.info()
        assert info["ranks"][rank]["pid"] != self.pids[rank] and info["ranks"][other]["pid"] == self.pids[other]
        assert [
            result.value for result in self.group.run("globals().get('precious'), __import__('os').environ['RANK']")
        ] == [(None if number == rank else 1, str(number)) for number in range(2)]
        self.group.run("precious = 1")

    def stop_worker(self) -> None:
        rank = self.random.randrange(2)
        kind, cell = self.start_cell()
        self.moment()
        os.kill(self.pids[rank], signal.SIGSTOP)
        wait_until(lambda: processes.state(self.pids[rank]) == "T", 1, "it is stopped")
        why = self.group.why()["ranks"]
        assert "stopped" in why[rank].get("silent", ""), why[rank]
        assert "silent" not in why[1 - rank], "only that one"
        if self.random.random() < 0.5:
            self.log.append("cont")
            os.kill(self.pids[rank], signal.SIGCONT)
            self.finish(kind, cell)
            assert cell.endings[rank]["outcome"] in ("ok", "interrupted")
            assert [result.value for result in self.group.run("precious")] == [1, 1]
        else:
            self.log.append("kill")
            os.kill(self.pids[rank], signal.SIGKILL)
            self.rank_is_lost(rank, kind, cell)

    def kill_warm_parent(self) -> None:
        kind, cell = self.start_cell()
        self.moment()
        os.kill(self.warm, signal.SIGKILL)
        wait_until(lambda: self.group.info()["agent"]["warm_parent"] == 0, TOLD, "the agent noticed")
        self.finish(kind, cell)
        assert {ending["outcome"] for ending in cell.endings.values()} <= {"ok", "interrupted"}, "workers live on"
        assert self.group.pids == self.pids and [result.value for result in self.group.run("precious")] == [1, 1]
        rank = self.random.randrange(2)
        self.log.append(f"then worker {rank}")
        kind, cell = self.start_cell()
        os.kill(self.pids[rank], signal.SIGKILL)
        self.rank_is_lost(rank, kind, cell)  # the restart warms a new one
        assert self.group.info()["agent"]["warm_parent"] not in (0, self.warm)

    def kill_client(self) -> None:
        with_child = self.random.random() < 0.5
        folder = str(self.runtime / "life")

        def work(say: Callable[[str], None]) -> Any:
            client = _client.Client(folder, "victim")
            number, _ = client.execute(
                {"kind": "cell", "code": "for n in range(20): print('mine', n)", "ranks": [0, 1], "first_line": ""}
            )
            say(f"{number} {fork_holder() if with_child else 0}")
            return client

        victim = Forked(work)
        said = victim.hear()
        assert said, "the client could not connect"
        number, holder = (int(word) for word in said.split())
        self.moment()
        pid = victim.pid
        victim.kill()
        try:
            wait_until(
                lambda: all(entry["pid"] != pid for entry in self.group.info()["clients"]),
                TOLD,
                "the coordinator noticed the client's death",
            )
        finally:
            processes.kill([holder] if holder else [])
        wait_until(
            lambda: any(record[:2] == ("cell_done", number) for record in journal.records(self.journal)),
            5,
            "the dead client's cell went on to its end",
        )
        for rank in range(2):
            assert journal.lines(self.journal, number, rank) == [f"mine {n}" for n in range(20)]
        assert self.group.pids == self.pids and [result.value for result in self.group.run("precious")] == [1, 1]

    def kill_owner(self) -> None:
        """A second group whose owner dies, perhaps while it starts."""
        with_child, early = self.random.random() < 0.5, self.random.random() < 0.3

        def work(say: Callable[[str], None]) -> Any:
            holder = fork_holder() if with_child else 0
            if early:
                say(str(holder))
            group = ddip.Group(2, name="owned")
            say(str(holder))
            return group

        victim = Forked(work)
        holder = int(victim.hear() or 0)
        if early:
            time.sleep(self.random.random() * 0.15)
        victim.kill()
        try:
            ours = {self.coordinator, self.group.info()["agent"]["warm_parent"], *self.pids}
            wait_until(
                lambda: set(processes.of_runtime(str(self.runtime))) == ours,
                GONE,
                "the owned group is gone with its owner",
            )
        finally:
            processes.kill([holder] if holder else [])

    def kill_coordinator(self) -> None:
        kind, cell = self.start_cell()
        frozen = self.random.choice((None, None, "worker", "warm parent", "both workers", "all"))
        stopped = {
            None: [],
            "worker": self.pids[:1],
            "warm parent": [self.warm],
            "both workers": self.pids,
            "all": [*self.pids, self.warm],
        }[frozen]
        self.log.append(f"frozen {frozen}")
        self.moment()
        everybody = processes.of_runtime(str(self.runtime))
        processes.kill(stopped, signal.SIGSTOP)
        for pid in stopped:
            wait_until(lambda pid=pid: processes.state(pid) in ("T", "Z", ""), 1, "it is stopped")
        os.kill(self.coordinator, signal.SIGKILL)
        wait_until(cell.done, TOLD, "the client is told")
        if frozen in (None, "worker", "both workers"):
            processes.assert_gone(everybody, GONE, f"after SIGKILL of the coordinator (frozen: {frozen})")
        elif frozen == "warm parent":
            processes.assert_gone(
                [pid for pid in everybody if pid != self.warm], GONE, "although the warm parent is stopped"
            )
        # What the client saw is in the journal, and the journal can be read to its end.
        for rank in range(2):
            kept, seen = journal.lines(self.journal, cell.number, rank), cell.text(rank, 1).splitlines()[:-1]
            assert kept[: len(seen)] == seen, "a line that was shown is not in the journal"
        wait_until(lambda: ddip.groups() == [], TOLD, "nobody takes it for running")
        self.begin()
        processes.assert_gone(everybody, 0.5, "the next start of that name sweeps what was stopped")

    def stop_group(self) -> None:
        _, cell = self.start_cell()
        self.moment()
        everybody = processes.of_runtime(str(self.runtime))
        self.group.stop()
        processes.assert_gone(everybody, 0.5, "after an orderly stop")
        wait_until(cell.done, TOLD, "the client is told")
        assert list(self.runtime.iterdir()) == []
        self.begin()

    STEPS = {
        kill_worker: 40,
        stop_worker: 10,
        kill_warm_parent: 6,
        kill_client: 28,
        kill_owner: 4,
        kill_coordinator: 8,
        stop_group: 4,
    }

    def round(self, number: int) -> None:
        step = self.random.choices(list(self.STEPS), list(self.STEPS.values()))[0]
        self.log.append(f"round {number}: {step.__name__}")
        step(self)
        self.learn()
        # A child of a worker that lives may live: it is the user's.
        processes.kill(pid for pid in processes.of_runtime(str(self.runtime)) if processes.parent_of(pid) in self.pids)
        expected = {self.coordinator, self.warm, *self.pids}
        wait_until(
            lambda: set(processes.of_runtime(str(self.runtime))) == expected,
            2,
            "nothing is left over, nobody is missing",
        )


@pytest.mark.kills
@pytest.mark.timeout(900)
def test_random_kills_and_stops_leave_what_the_table_says(home: Path) -> None:
    life = Life(home, os.environ["XDG_STATE_HOME"], SEED)
    life.begin()
    begun, times = time.monotonic(), {}
    try:
        for number in range(ROUNDS):
            at = time.monotonic()
            life.round(number)
            kind = next(line for line in reversed(life.log) if line.startswith("round")).split()[-1]
            times.setdefault(kind, []).append(time.monotonic() - at)
    except BaseException:
        print(f"seed {SEED}; the last actions:\n  " + "\n  ".join(life.log[-12:]))
        raise
    finally:
        life.group.stop()
    print(
        f"{ROUNDS} rounds in {time.monotonic() - begun:.0f} s; mean seconds: "
        + ", ".join(f"{kind} {sum(t) / len(t):.3f} × {len(t)}" for kind, t in times.items())
    )
