"""`why` reads a rank's Python frames while they change: it must never harm the rank."""

from __future__ import annotations

import os
import signal
import time

import psutil

import ddip
from ddip import _client

BUSY = """
import ast, time
source = open(ast.__file__).read()
end = time.time() + 8
while time.time() < end:
    for node in ast.walk(ast.parse(source)): pass
    exec(compile("def f(k):\\n return 0 if k == 0 else 1 + f(k-1)\\nf(200)", "x", "exec"), {})
"""


def test_asking_why_thousands_of_times_does_not_kill_a_busy_rank() -> None:
    with ddip.Group(workers=2) as group:
        pids = group.pids
        cell = group.run(BUSY, wait=False)
        asked = named = 0
        while not cell.done():
            asked += 1
            named += all("File" in rank.get("stack", "") or rank.get("cell") == 0 for rank in group.why()["ranks"])
        cell.results()
        assert group.pids == pids
    assert asked > 200
    assert named > asked / 2  # a stack that could not be read is rare


def test_a_crash_tells_its_signal_its_last_words_and_the_line() -> None:
    with ddip.Group(workers=2) as group:
        try:
            group.run("import os, ctypes\nos.write(2, b'native words\\n')\nctypes.string_at(8)", ranks=[1])
        except ddip.RankError as error:
            text = error.lost[1]
        assert "SIGSEGV" in text
        assert "native words" in text
        assert '"<cell 1>", line 3' in text
        assert "/ddip/worker/" not in text


def test_an_idle_rank_is_said_to_be_idle_and_a_stopped_one_stopped() -> None:
    with ddip.Group(workers=2) as group:
        pids = group.pids
        os.kill(pids[1], signal.SIGSTOP)
        while psutil.Process(pids[1]).status() != psutil.STATUS_STOPPED:
            pass
        try:
            begun = time.monotonic()
            lines = _client.explain(group.why())
            assert time.monotonic() - begun < 5
        finally:
            os.kill(pids[1], signal.SIGCONT)
        assert lines[0] == "rank 0: idle"
        assert "stopped" in lines[1]
