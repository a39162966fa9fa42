"""I16, I18, I19: cells in the background, completion and inspection of the workers' names, memory footers."""

from __future__ import annotations

import gc
import os
from typing import Any

import pytest
from support.scripts import Script
from support.waiting import Stopwatch, wait_until

import ddip

HELD = (
    "import os, time\nprint('in', flush=True)\nwhile not os.path.exists({gate!r}): time.sleep(0.005)\nprint('out')\n7"
)


# The interpreter takes its time with its last objects.
ENDS_MEANWHILE = """
import ddip, time
class Slow:
    def __del__(self, sleep=time.sleep): sleep(0.5)
last = Slow()
group = ddip.Group(2)
cells = [group.run("import time; time.sleep(600)", ranks=[rank], wait=False) for rank in (0, 1, 0, 1)]
print("over")
"""


@pytest.mark.kills
def test_a_script_that_ends_while_its_cells_run_ends_well() -> None:
    with Script(ENDS_MEANWHILE) as script, Stopwatch() as watch:
        assert script.hear() == "over"
        assert script.wait() == 0
    assert watch.seconds < 30


def test_a_background_cell_returns_at_once_and_tells_its_state(either: Any, tmp_path: Any) -> None:
    gate = tmp_path / "gate"
    with Stopwatch() as watch:
        cell = either.run(HELD.format(gate=str(gate)), wait=False)
    assert watch.seconds < 1 and isinstance(cell, ddip.Cell)
    assert cell.status == "running" and not cell.done() and "running" in repr(cell)
    with Stopwatch() as watch:
        assert cell.wait(0.1) is False
    assert 0.05 < watch.seconds < 2
    gate.touch()
    assert cell.wait(10) is True and cell.done() and cell.status == "done"
    assert [result.value for result in cell.results()] == [7, 7] == [result.value for result in cell.results()], (
        "as often as one likes"
    )


def test_the_output_of_two_background_cells_stays_apart(plain: Any) -> None:
    cells = [plain.run(f"for n in range(100): print('cell {name}', n)", wait=False) for name in "ab"]
    for name, cell in zip("ab", cells, strict=True):
        assert [result.stdout for result in cell.results()] == ["".join(f"cell {name} {n}\n" for n in range(100))] * 2


def test_cells_on_different_ranks_run_at_the_same_time(plain: Any, tmp_path: Any) -> None:
    gate = tmp_path / "gate"
    held = plain.run(HELD.format(gate=str(gate)), ranks=[0], wait=False)
    assert plain.run(f"open({str(gate)!r}, 'w').close(); 3", ranks=[1])[0].value == 3, "rank 1 does not wait for rank 0"
    assert held.results()[0].value == 7


def test_a_failed_background_cell_says_so_and_raises_when_asked(plain: Any) -> None:
    cell = plain.run("1 / 0", wait=False)
    assert cell.wait(5) and cell.status == "failed"
    with pytest.raises(ddip.RankError):
        cell.results()


def test_cancel_ends_it_everywhere(plain: Any) -> None:
    cell = plain.run("import time; print('in', flush=True); time.sleep(600)", wait=False)
    wait_until(lambda: len(cell._lines) == 2, 5, "both ranks are in it")
    cell.cancel()
    assert cell.wait(5) and cell.status == "interrupted"
    with pytest.raises(KeyboardInterrupt):
        cell.results()


def test_lines_come_while_it_runs(plain: Any, tmp_path: Any) -> None:
    gate = tmp_path / "gate"
    cell = plain.run(HELD.format(gate=str(gate)), ranks=[1], wait=False)
    lines = cell.lines()
    assert next(lines) == (1, "in") and not cell.done()
    gate.touch()
    assert list(lines) == [(1, "out")]


def test_lines_can_be_read_by_two_threads_and_again_later(plain: Any) -> None:
    cell = plain.run("for n in range(100): print(n)", ranks=[0], wait=False)
    assert list(cell.lines()) == list(cell.lines()) == [(0, str(n)) for n in range(100)]


def test_values_that_nobody_asks_for_hold_no_descriptors(plain: Any) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        assert plain.run("'a value'", wait=False).wait(5)
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) < before + 20


def ask(group: Any, body: dict[str, Any], rank: int = 0) -> dict[str, Any]:
    cell = group.submit({**body, "silent": True}, [rank])
    cell.results()
    return dict(cell.endings[rank])


def test_completion_sees_the_names_of_that_rank(either: Any) -> None:
    either.run(
        "import os\nmy_special_name = 1\nmy_special_name_2 = ''\nif os.environ['RANK'] == '1': my_special_only_here = 1"
    )
    code = "x = my_spec"
    for rank in (0, 1):
        found = ask(either, {"kind": "complete", "code": code, "cursor": len(code)}, rank)
        assert {"my_special_name", "my_special_name_2"} <= set(found["matches"])
        assert ("my_special_only_here" in found["matches"]) == (rank == 1)
        assert code[found["start"] : found["end"]] == "my_spec"


def test_completion_of_attributes_and_of_nothing(either: Any) -> None:
    either.run("import os; text = 'x'")
    found = ask(either, {"kind": "complete", "code": "text.upp", "cursor": 8})
    assert any(match.endswith("upper") for match in found["matches"])
    assert ask(either, {"kind": "complete", "code": "no_such_name_at_all", "cursor": 19})["matches"] == []
    assert "matches" in ask(either, {"kind": "complete", "code": "", "cursor": 0})
    assert "matches" in ask(either, {"kind": "complete", "code": "def f(:\n  ((", "cursor": 12})


def test_inspection_shows_docstring_and_source(either: Any) -> None:
    either.run("def my_function(a, b=2):\n    '''What it does.'''\n    return a * b")
    found = ask(either, {"kind": "inspect", "code": "my_function(", "cursor": 5, "detail": 0})
    assert (
        found["found"]
        and "What it does" in found["data"]["text/plain"]
        and "b=2" in found["data"]["text/plain"].replace(" ", "")
    )
    source = ask(either, {"kind": "inspect", "code": "my_function", "cursor": 5, "detail": 1})
    assert "return" in source["data"]["text/plain"] and "a" in source["data"]["text/plain"]
    assert ask(either, {"kind": "inspect", "code": "no_such_name", "cursor": 5})["found"] is False


def test_completion_leaves_no_trace_in_journal_and_output(plain: Any) -> None:
    before = plain.info()["last_sequence"]
    ask(plain, {"kind": "complete", "code": "pri", "cursor": 3})
    assert plain.info()["last_sequence"] == before


def memory_of(group: Any, code: str) -> list[dict[str, int]]:
    cell = group.submit({"kind": "cell", "code": code, "memory": True})
    return [result.memory for result in cell.results()]


def test_the_memory_footer_tells_what_a_cell_took_on_each_rank(either: Any) -> None:
    footers = memory_of(either, "import os\nif os.environ['RANK'] == '1': kept = bytearray(os.urandom(1) * (64 << 20))")
    deltas = [footer["delta"] for footer in footers]
    assert deltas[1] > 56 << 20 and deltas[0] < 16 << 20, footers
    assert all(footer["peak"] >= footer["rss"] > 0 for footer in footers)


def test_the_peak_is_this_cells_and_counts_what_was_freed_again(either: Any) -> None:
    spike, calm = memory_of(either, "x = bytearray(b'x' * (96 << 20)); del x"), memory_of(either, "pass")
    for before, after in zip(spike, calm, strict=True):
        assert before["peak"] - before["rss"] > 64 << 20, "freed again, and still told"
        assert after["peak"] < before["peak"] - (64 << 20), "an earlier cell's peak is not this one's"


def test_memory_is_told_only_when_asked(plain: Any) -> None:
    assert [result.memory for result in plain.run("1")] == [{}, {}]


@pytest.mark.parametrize("setting, collected", [("on", True), ("off", False)])
def test_garbage_is_collected_between_cells_unless_switched_off(start: Any, setting: str, collected: bool) -> None:
    group = start(gc=setting)
    group.run("""
import gc, time, weakref
gc.disable()
class Node: pass
node = Node(); node.me = node
watch = weakref.ref(node)
del node
time.sleep(0.1)
""")
    assert [result.value for result in group.run("watch() is None")] == [collected] * 2
