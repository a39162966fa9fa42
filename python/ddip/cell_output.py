"""What a cell said: one copy of it, in the order in which it came, or nothing where nobody will ask."""

from __future__ import annotations

from collections.abc import Iterator

Source = tuple[int, int]  # rank, stream


class CellOutput:
    """One thread adds; others may read meanwhile."""

    def __init__(self) -> None:
        self._pieces: dict[Source, list[bytes]] = {}
        self._order: list[Source] = []  # of the pieces, as they came
        self._kept = True

    def add(self, source: Source, piece: bytes) -> None:
        if self._kept:
            self._pieces.setdefault(source, []).append(piece)
            self._order.append(source)  # last: who sees it finds the piece

    def drop(self) -> None:
        """Nobody will ask for it, nor for what is still to come."""
        self._kept = False
        self._pieces, self._order = {}, []

    def text(self, source: Source) -> str:
        return b"".join(self._pieces.get(source, [])).decode("utf-8", "replace")


class LineReader:
    """(rank, line) of an output, each line once, as soon as it is whole."""

    def __init__(self, output: CellOutput) -> None:
        self._output = output
        self._next = 0
        self._next_of: dict[Source, int] = {}
        # In pieces, because a line may be as long as all that a cell said.
        self._partial: dict[Source, list[bytes]] = {}

    def has_more(self) -> bool:
        return self._next < len(self._output._order)

    def take(self) -> Iterator[tuple[int, str]]:
        while self.has_more():
            source = self._output._order[self._next]
            number = self._next_of.get(source, 0)
            self._next, self._next_of[source] = self._next + 1, number + 1
            first, *more = self._output._pieces[source][number].split(b"\n")
            partial = self._partial.setdefault(source, [])
            partial.append(first)
            for line in more:
                yield source[0], joined(partial)
                partial[:] = [line]

    def rest(self) -> Iterator[tuple[int, str]]:
        """The last lines, without an end; nothing comes after them."""
        for source, partial in self._partial.items():
            if any(partial):
                yield source[0], joined(partial)
        self._partial.clear()


def joined(pieces: list[bytes]) -> str:
    return b"".join(pieces).decode("utf-8", "replace")
