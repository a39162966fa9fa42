"""I8: what a cell said is kept once, in the order in which it came, whatever the pieces were."""

from __future__ import annotations

import time
import tracemalloc
from typing import Any

import pytest
from ddip.cell import Cell


def fed(pieces: list[tuple[int, int, bytes]], over: bool = True) -> Cell:
    """A cell of no group that took this output, (rank, stream, bytes)."""
    nowhere: Any = None
    cell = Cell(nowhere, 1, [0, 1], [])
    for rank, stream, piece in pieces:
        cell.take(("output", 1, rank, piece, 0, stream, []))
    if over:
        cell.take(("cell_done", 1, -1, {}, 0, 0, []))
    return cell


def test_lines_come_once_in_order_whole_and_the_last_one_without_an_end() -> None:
    cell = fed([(0, 1, b"a\nb"), (1, 1, b"x\n"), (0, 2, b"e\n"), (0, 1, b"c\n\nd"), (1, 1, b"y")])
    expected = [(0, "a"), (1, "x"), (0, "e"), (0, "bc"), (0, ""), (0, "d"), (1, "y")]
    assert list(cell.lines()) == expected and list(cell.lines()) == expected
    assert (cell.text(0, 1), cell.text(0, 2), cell.text(1, 1), cell.text(1, 2)) == ("a\nbc\n\nd", "e\n", "x\ny", "")


def test_a_character_in_two_pieces_is_one_character() -> None:
    two = "ä".encode()
    cell = fed([(0, 1, two[:1]), (0, 1, two[1:] + b"\n")])
    assert list(cell.lines()) == [(0, "ä")] and cell.text(0, 1) == "ä\n"


@pytest.mark.timeout(60)
def test_a_long_line_costs_no_more_than_its_length() -> None:
    begun = time.process_time()
    cell = fed([(0, 1, b"x" * 65536) for _ in range(2000)])
    ((_, line),) = cell.lines()
    assert len(line) == 2000 * 65536
    assert time.process_time() - begun < 3


def test_output_is_kept_once_or_not_at_all() -> None:
    tracemalloc.start()
    try:
        cell = fed([])
        pieces = 200
        for number in range(pieces):
            cell.take(("output", 1, 0, b"%d" % (number % 10) * 65536 + b"\n", 0, 1, []))
        assert tracemalloc.get_traced_memory()[0] < 1.5 * pieces * 65536
        cell.drop_output()
        for _ in range(pieces):
            cell.take(("output", 1, 0, b"y" * 65536, 0, 1, []))
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
    assert cell.text(0, 1) == "" and list(cell.lines()) == []
