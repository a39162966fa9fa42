"""A group's journal, read from outside as `%diplog` does."""

from __future__ import annotations

from typing import Any

from ddip import _client


def records(folder: str, after: int = 0) -> list[tuple[Any, ...]]:
    """(kind, cell, rank, body, sequence, stream) in order."""
    found: list[tuple[Any, ...]] = []
    _client.read_journal(folder, after, lambda *entry: found.append(entry[:6]))
    return found


def lines(folder: str, cell: int, rank: int) -> list[str]:
    return text_lines(record for record in records(folder) if record[1] == cell and record[2] == rank)


def text_lines(found: Any) -> list[str]:
    """Whole lines of stdout in these records or events."""
    return b"".join(record[3] for record in found if record[0] == "output" and record[5] == 1).decode().splitlines()


def newest(state: str, name: str) -> str:
    return str(_client.newest_journal(f"{state}/ddip", name))
