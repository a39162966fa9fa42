"""Processes that a cell forks, and endings that are larger than they look: neither may cost the rank its connection."""

from __future__ import annotations

from typing import Any

import pytest
from ddip.errors import RankError

FORKS = "import multiprocessing, os\nfork = multiprocessing.get_context('fork')\n"


def lines_of(result: Any) -> list[str]:
    return [line for line in result.stdout.splitlines() if line]


def test_every_line_of_a_forked_process_arrives(start: Any) -> None:
    group = start(workers=1)
    group.run(FORKS + "def work(name):\n    for i in range(2000):\n        print(name, i)")
    for result in group.run(
        "made = [fork.Process(target=work, args=(name,)) for name in 'ab']\n"
        "for one in made: one.start()\n"
        "for i in range(2000): print(f'parent {i}\\n', end='')\n"  # each in one piece
        "for one in made: one.join()\n"
        "[one.exitcode for one in made]"
    ):
        assert result.value == [0, 0]
        expected = [f"{name} {i}" for name in ("a", "b", "parent") for i in range(2000)]
        assert sorted(lines_of(result)) == sorted(expected)


def test_large_output_of_parent_and_children_breaks_nothing(start: Any) -> None:
    group = start(workers=1)
    group.run(FORKS + "kept = 7\ndef work():\n    for i in range(20):\n        print('x' * 250_000)")
    group.run(
        "made = [fork.Process(target=work) for _ in range(3)]\n"
        "for one in made: one.start()\n"
        "work()\n"
        "for one in made: one.join(30)"
    )
    assert [result.value for result in group.run("[one.exitcode for one in made], kept")] == [([0, 0, 0], 7)]


def test_a_fork_that_comes_to_the_cells_end_does_not_answer_for_its_parent(start: Any) -> None:
    group = start(workers=1)
    [result] = group.run(
        "import os\n"
        "child = os.fork()\n"
        "if child:\n"
        "    status = os.waitpid(child, 0)[1]\n"
        "    print('parent is done')\n"
        "'parent' if child else 'child'"
    )
    assert result.value == "parent"
    assert "parent is done" in result.stdout
    assert group.run("os.waitstatus_to_exitcode(status)")[0].value == 0


def test_what_a_fork_raises_is_its_own(start: Any) -> None:
    group = start(workers=1)
    [result] = group.run(
        "import os\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    raise ValueError('the child has had enough')\n"
        "os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])"
    )
    assert result.value == 1
    assert "the child has had enough" in result.stderr


def test_an_error_of_control_characters_is_told_and_the_group_lives(start: Any) -> None:
    """Each takes six bytes where the ending is written as JSON."""
    group = start(workers=2)
    group.run("kept = 7")
    with pytest.raises(RankError) as error:
        group.run("raise ValueError('\\x01' * 3_000_000)", ranks=[1])
    assert "too large to send" in str(error.value)
    assert [result.value for result in group.run("kept")] == [7, 7]


def test_a_display_that_is_too_deep_is_said_and_the_group_lives(start: Any) -> None:
    group = start(workers=1)
    group.run("kept = 7")
    group.run(
        "from IPython.display import display\n"
        "deep = {}\n"
        "for _ in range(60): deep = {'a': deep}\n"
        "display({'application/json': deep, 'text/plain': 'deep'}, raw=True)"
    )
    assert group.run("kept")[0].value == 7
