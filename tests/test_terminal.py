"""A real terminal: keys go in, the screen comes out. Ctrl-C, a second press, and the group that outlives the terminal."""

from __future__ import annotations

import os
from typing import Any

import pytest
from lab.terminal import Terminal
from support import processes
from support.waiting import Stopwatch

pytest.importorskip("IPython", reason="the magics need IPython")


def test_in_a_real_terminal_ctrl_c_ends_the_cell_and_keeps_everything(home: Any) -> None:
    with Terminal() as terminal:
        terminal.type("%load_ext ddip")
        terminal.type("%makedip -n 2 --on-exit stop")
        terminal.read_until("2 CPU workers")
        terminal.type_cell(
            "%%dip", "import os, time; kept = 5; print('pid', os.getpid())", "while True: time.sleep(0.01)"
        )
        text = terminal.read_until("[1] pid ")
        pids = processes.of_runtime(str(home))
        with Stopwatch() as watch:
            terminal.interrupt()
            text += terminal.read_until("interrupted on rank")
        assert watch.seconds < 5
        terminal.type_cell("%%dip", "print('still', 1 + kept)")
        terminal.read_until("still 6")
        assert processes.of_runtime(str(home)) == pids
        assert "Traceback" not in text and "/ddip/magics/" not in text, text
        terminal.type("%makedip -k")
        terminal.read_until("stopped")


def test_in_a_real_terminal_a_second_press_replaces_the_rank_that_will_not_stop(home: Any) -> None:
    with Terminal() as terminal:
        terminal.type("%load_ext ddip")
        terminal.type("%makedip -n 2 --on-exit stop")
        terminal.read_until("2 CPU workers")
        # Deaf as long as this C function runs, and it says so itself: no line of Python between where a stop could hit.
        deaf = "if r == 1: ctypes.CDLL(None).system(b\"echo d''eaf; exec sleep 600\")"
        terminal.type_cell("%%dip", "import ctypes, os; r = int(os.environ['RANK']); kept = r", deaf)
        terminal.read_until("deaf")
        terminal.interrupt()
        text = terminal.read_until("to replace the stuck ranks")
        assert "rank 1" in text and "goes on" in text
        terminal.type_cell("%%dip", "print('queued')")
        assert "stop replaces rank 1" in terminal.read_until("by an empty one")
        terminal.interrupt()
        terminal.read_until("second press")
        terminal.read_until("In [")
        terminal.type_cell("%%dip", "print('k' 'ept', globals().get('kept'))")
        assert "[0] kept 0" in terminal.read_until("[1] kept None")
        terminal.type("%makedip -k")
        terminal.read_until("stopped")


def test_the_group_outlives_the_terminal_and_is_found_again(home: Any) -> None:
    environment = {"JPY_SESSION_NAME": os.path.join(str(home), "work.ipynb")}
    with Terminal(environment) as terminal:
        terminal.type("%load_ext ddip")
        terminal.type("%makedip -n 2")
        terminal.read_until("outlives this kernel")
        terminal.type_cell("%%dip", "kept = 'since the first'; print('s' 'aved')")
        terminal.read_until("saved")
    with Terminal(environment) as terminal:
        terminal.type("%load_ext ddip")
        terminal.type_cell("%%dip", "print('k' 'ept', kept)")
        terminal.read_until("kept since the first")
        terminal.type("%makedip -k")
        terminal.read_until("stopped")


def test_in_a_real_terminal_autodip_wants_no_more_keys_than_python(home: Any) -> None:
    with Terminal() as terminal:
        terminal.type("%load_ext ddip")
        terminal.type("%makedip -n 2 --on-exit stop")
        terminal.type("%autodip on")
        terminal.read_until("autodip is on")
        terminal.type("print('one ' + 'line')")
        terminal.read_until("one line")
        terminal.type("for i in range(2):")
        terminal.type("    print('loop', i)")
        terminal.type("")
        terminal.read_until("loop 1")
        terminal.type("%makedip -k")
        terminal.read_until("stopped")
