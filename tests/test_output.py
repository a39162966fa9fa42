"""I8: what a rank writes, by whatever means, arrives while the cell runs, once, in order, on its stream, under its cell."""

from __future__ import annotations

import os
from typing import Any

import pytest
from support.waiting import wait_until

GATE = """
import os, time
def wait_for(path):
    while not os.path.exists(path): time.sleep(0.005)
"""


def seen(cell: Any, rank: int, text: str) -> bool:
    return (rank, text) in cell._lines


def test_the_first_line_arrives_before_the_cell_ends(either: Any, tmp_path: Any) -> None:
    gate = tmp_path / "gate"
    cell = either.run(f"{GATE}\nprint('first')\nwait_for({str(gate)!r})\nprint('last')", wait=False)
    wait_until(lambda: seen(cell, 0, "first") and seen(cell, 1, "first"), 5, "the first line of both ranks")
    assert not cell.done() and not seen(cell, 0, "last")
    gate.touch()
    assert [result.stdout for result in cell.results()] == ["first\nlast\n"] * 2


def test_a_part_of_a_line_arrives_before_its_newline(either: Any, tmp_path: Any) -> None:
    """A prompt or a bar has no newline; a line-buffering implementation would sit on it."""
    gate = tmp_path / "gate"
    cell = either.run(f"{GATE}\nprint('half', end='')\nwait_for({str(gate)!r})\nprint(' whole')", ranks=[0], wait=False)
    wait_until(lambda: cell.text(0, 1) == "half", 5, "the half line")
    gate.touch()
    assert cell.results()[0].stdout == "half whole\n"


def test_stdout_and_stderr_are_separate_streams(either: Any) -> None:
    code = """
import os, sys, subprocess, ctypes
print('python out'); print('python err', file=sys.stderr)
os.write(1, b'raw out\\n'); os.write(2, b'raw err\\n')
subprocess.run('echo child out; echo child err >&2', shell=True)
sys.stdout.buffer.write(b'bytes out\\n'); sys.stderr.buffer.write(b'bytes err\\n')
"""
    for result in either.run(code):
        assert result.stdout == "python out\nraw out\nchild out\nbytes out\n"
        assert result.stderr == "python err\nraw err\nchild err\nbytes err\n"


def test_c_stdio_belongs_to_its_cell_and_keeps_its_place(either: Any) -> None:
    """A printf without newline sits in C's buffer; it must be flushed before the cell's end, not during the next cell."""
    assert "PYTHONUNBUFFERED" not in os.environ
    results = either.run(
        "import ctypes; libc = ctypes.CDLL(None); libc.printf(b'printf one\\n'); print('python two'); libc.printf(b'three'); None"
    )
    assert [result.stdout for result in results] == ["printf one\npython two\nthree"] * 2
    assert [result.stdout for result in either.run("print('next')")] == ["next\n"] * 2


def test_native_and_python_writes_keep_their_order_on_one_stream(either: Any) -> None:
    code = """
import os, ctypes
libc = ctypes.CDLL(None)
for number in range(300):
    print(f'python {number}')
    os.write(1, b'raw %d\\n' % number)
    libc.printf(b'libc %d\\n', number)
None
"""
    expected = "".join(f"python {n}\nraw {n}\nlibc {n}\n" for n in range(300))
    assert [result.stdout for result in either.run(code)] == [expected] * 2


def test_subprocess_output_arrives_before_the_python_line_that_follows_it(either: Any) -> None:
    code = "import subprocess\nfor n in range(20):\n    print('before', n)\n    subprocess.run(['echo', 'child', str(n)])\n    print('after', n)\nNone"
    expected = "".join(f"before {n}\nchild {n}\nafter {n}\n" for n in range(20))
    assert [result.stdout for result in either.run(code)] == [expected] * 2


def test_nothing_arrives_twice_and_nothing_is_missing(either: Any) -> None:
    count = 20_000
    expected = "".join(f"{n}\n" for n in range(count))
    assert [result.stdout for result in either.run(f"for n in range({count}): print(n)")] == [expected] * 2


def test_bytes_that_are_not_utf8_do_no_harm(either: Any) -> None:
    results = either.run("import os; os.write(1, b'\\xff\\xfe ok\\n'); print('\\udce9'); print('näh ✓'); None")
    for result in results:
        assert " ok\n" in result.stdout and result.stdout.endswith("näh ✓\n")


def test_a_character_cut_in_two_writes_is_whole_again(either: Any) -> None:
    results = either.run("import os; os.write(1, '✓'.encode()[:1]); os.write(1, '✓'.encode()[1:] + b'\\n'); None")
    assert [result.stdout for result in results] == ["✓\n"] * 2


def test_a_thread_that_outlives_its_cell_writes_under_its_own_cell(either: Any, tmp_path: Any) -> None:
    gate, done = tmp_path / "gate", tmp_path / "done"
    first = either.run(
        f"""{GATE}
import threading
def late():
    wait_for({str(gate)!r})
    print('late from the first cell')
    open({str(done)!r} + os.environ['RANK'], 'w').close()
threading.Thread(target=late).start()
print('first is over')
""",
        wait=False,
    )
    number = first.number
    first.results()
    either.client.request("watch", {"after": either.info()["last_sequence"]})
    second = either.run(
        f"print('second'); open({str(gate)!r}, 'w').close()\nfor r in '01': wait_for({str(done)!r} + r)", wait=False
    )
    assert [result.stdout for result in second.results()] == ["second\n"] * 2, "the late line is not the second cell's"
    late: dict[int, bytes] = {}

    def collect() -> bool:
        event = either.client.next(0, 0.1)
        if event is not None and event[0] == "output" and event[1] == number:
            late[event[2]] = late.get(event[2], b"") + event[3]
        return late == {rank: b"late from the first cell\n" for rank in (0, 1)}

    wait_until(collect, 5, "the late lines, under the first cell's number")


def test_a_thread_of_a_thread_still_belongs_to_the_first_cell(plain: Any, tmp_path: Any) -> None:
    gate, done = tmp_path / "gate", tmp_path / "done"
    plain.run(
        f"""{GATE}
import threading
def inner():
    print('inner'); open({str(done)!r}, 'w').close()
def outer():
    wait_for({str(gate)!r})
    threading.Timer(0.01, inner).start()
threading.Thread(target=outer).start()
""",
        ranks=[0],
    )
    assert (
        plain.run(f"open({str(gate)!r}, 'w').close(); wait_for({str(done)!r}); print('own')", ranks=[0])[0].stdout
        == "own\n"
    )


def test_an_executors_thread_made_by_one_cell_and_used_by_another(plain: Any) -> None:
    """A pool's thread was started in cell one. Whatever the rule says of its prints, they are not lost: they stand in the journal once."""
    plain.run(
        "from concurrent.futures import ThreadPoolExecutor; pool = ThreadPoolExecutor(1); pool.submit(print, 'made').result()",
        ranks=[0],
    )
    plain.run("pool.submit(print, 'pool marker 8431').result()", ranks=[0])
    assert wait_until(lambda: journal_text(plain).count("pool marker 8431\n"), 5, "the line in the journal") == 1
    plain.run("pool.shutdown()", ranks=[0])


def journal_text(group: Any) -> str:
    from ddip import _client

    parts: list[bytes] = []
    _client.read_journal(
        group.info()["journal"],
        0,
        lambda kind, cell, rank, body, sequence, stream, time: parts.append(body) if kind == "output" else None,
    )
    return b"".join(parts).decode("utf-8", "replace")


def test_a_subprocess_that_outlives_its_cell_writes_under_its_own_cell(either: Any, tmp_path: Any) -> None:
    gate, done = tmp_path / "gate", tmp_path / "done"
    code = f"import subprocess; kept = subprocess.Popen('until [ -e {gate} ]; do sleep 0.01; done; echo late child; touch {done}', shell=True)"
    either.run(code, ranks=[1])
    second = either.run(
        f"{GATE}\nopen({str(gate)!r}, 'w').close(); wait_for({str(done)!r}); kept.wait(); print('second')", ranks=[1]
    )
    assert second[0].stdout == "second\n"


def test_the_last_expression_is_a_value_and_is_shown(either: Any) -> None:
    cell = either.submit({"kind": "cell", "code": "6 * 7", "want_value": True})
    displays = []
    while not cell.finished:
        event = cell.pump(5)
        if event is not None and event[0] == "display":
            displays.append((event[2], event[3]["data"]["text/plain"]))
    assert sorted(displays) == [(0, "42"), (1, "42")]
    assert [result.value for result in cell.results()] == [42, 42]


@pytest.mark.parametrize(
    "code",
    [
        "print('x', end='\\r')",
        "import sys; sys.stdout.writelines(['x', '\\r'])",
        "import os; os.write(1, b'x\\r'); None",
    ],
)
def test_carriage_returns_arrive_as_they_are(plain: Any, code: str) -> None:
    assert [result.stdout for result in plain.run(code)] == ["x\r"] * 2


def test_redirected_stdout_stays_the_users(either: Any) -> None:
    code = (
        "import io, contextlib\nwith contextlib.redirect_stdout(io.StringIO()) as text: print('kept')\ntext.getvalue()"
    )
    for result in either.run(code):
        assert result.value == "kept\n" and "kept" not in result.stdout.replace("'kept\\n'", "")


def test_a_logging_handler_made_in_one_cell_does_not_break_the_next(either: Any) -> None:
    either.run(
        "import logging, sys; log = logging.getLogger('t'); log.addHandler(logging.StreamHandler()); log.warning('one')"
    )
    assert [result.stderr for result in either.run("log.warning('two')")] == ["two\n"] * 2


def test_faulthandler_and_others_that_need_a_descriptor_find_one(either: Any) -> None:
    results = either.run("import faulthandler; faulthandler.dump_traceback(all_threads=False)")
    for result in results:
        assert "most recent call first" in result.stderr


def test_lines_gives_each_line_once_with_its_rank_while_the_cell_runs(plain: Any) -> None:
    cell = plain.run("for n in range(50): print(n)\nprint('no newline', end='')", wait=False)
    lines = list(cell.lines())
    for rank in (0, 1):
        assert [line for owner, line in lines if owner == rank] == [*map(str, range(50)), "no newline"]


@pytest.mark.parametrize(
    ("number", "travels_as"),
    [("2**63", 2**63), ("2**64 - 1", 2**64 - 1), ("-2**63", -(2**63)), ("2**70", 2.0**70), ("-2**70", -(2.0**70)), ("10**400", "1" + "0" * 400)],
)  # fmt: skip
def test_a_display_with_an_integer_beyond_64_bits_arrives(plain: Any, number: str, travels_as: Any) -> None:
    pytest.importorskip("IPython", reason="display() is IPython's")
    code = f"from IPython.display import display\ndisplay({{'application/json': {{'a': {number}}}}}, raw=True)"
    cell = plain.submit({"kind": "cell", "code": code, "first_line": ""}, [0])
    shown = []
    while not cell.finished:
        event = cell.pump(5)
        assert event is not None, "nothing came for 5 s"
        shown += [event[3]["data"]["application/json"]["a"]] if event[0] == "display" else []
    cell.results()
    assert shown == [travels_as]
