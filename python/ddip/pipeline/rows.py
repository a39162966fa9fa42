"""What every rank did, a row for each action: reads like a list of dictionaries, and takes fifty bytes a row instead of a
thousand, also on its way to the other ranks."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any, overload

Row = dict[str, Any]
NUMBERS = {
    "rank": "i", "replica": "i", "stage": "i", "micro_batch": "q", "edge": "i", "version": "q", "staleness": "i", "begin": "d",
    "end": "d",
}  # fmt: skip
WORDS = ("kind", "direction")


class Rows(Sequence[Row]):
    def __init__(self) -> None:
        self._numbers: dict[str, array[Any]] = {name: array(kind) for name, kind in NUMBERS.items()}
        self._words = {name: array("B") for name in WORDS}
        self._known: list[str] = []  # what the words' numbers stand for

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Rows:
        made = cls()
        for row in rows:
            for name, column in made._numbers.items():
                column.append(row[name])
            for name, words in made._words.items():
                words.append(made._number_of(row[name]))
        return made

    def extend(self, rows: Rows, later: float = 0.0) -> None:
        """`later`: seconds to be added to their times."""
        for name, column in self._numbers.items():
            more = rows._numbers[name]
            column.extend(array("d", [one + later for one in more]) if name in ("begin", "end") else more)
        translated = [self._number_of(word) for word in rows._known]
        for name, words in self._words.items():
            words.extend(translated[one] for one in rows._words[name])

    def column(self, name: str) -> Sequence[Any]:
        if name in self._words:
            return [self._known[one] for one in self._words[name]]
        return self._numbers[name]

    def __len__(self) -> int:
        return len(self._numbers["rank"])

    @overload
    def __getitem__(self, place: int) -> Row: ...
    @overload
    def __getitem__(self, place: slice) -> list[Row]: ...
    def __getitem__(self, place: int | slice) -> Row | list[Row]:
        if isinstance(place, slice):
            return [self[one] for one in range(*place.indices(len(self)))]
        words = {name: self._known[column[place]] for name, column in self._words.items()}
        return {**words, **{name: column[place] for name, column in self._numbers.items()}}

    def _number_of(self, word: str) -> int:
        if word not in self._known:
            self._known.append(word)
        return self._known.index(word)


def columns(trace: Sequence[Row], *names: str) -> list[Sequence[Any]]:
    """To choose rows by: of a long run they are made in no time, all rows in many seconds."""
    return [trace.column(name) if isinstance(trace, Rows) else [row[name] for row in trace] for name in names]
