"""Text with its ranks before each line."""

from __future__ import annotations

from ddip import _client


def prefix(ranks: list[int]) -> str:
    return f"[{_client.rank_list(ranks)}] "


def prefixed(text: str, ranks: list[int]) -> str:
    head = prefix(ranks)
    *lines, rest = text.split("\n")  # and only there: a form feed or U+2028 is part of its line
    return "".join(head + line + "\n" for line in lines) + (head + rest if rest else "")


def label(ranks: list[int]) -> str:
    """The line above what is not text."""
    return prefix(ranks).rstrip() + "\n"


class RankLines:
    """One rank's bytes as whole lines, each with its rank; of a bar the last frame."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._text = _client.Difference([rank], append=True, max_lines=0)

    def write(self, stream: int, data: bytes) -> list[tuple[int, str]]:
        self._text.write(self._rank, stream, data)
        return self._take()

    def close(self) -> list[tuple[int, str]]:
        self._text.close(self._rank)
        return [(stream, text if text.endswith("\n") else text + "\n") for stream, text in self._take()]

    def _take(self) -> list[tuple[int, str]]:
        return [(stream, prefixed(text, [self._rank])) for stream, text in self._text.take_text()]
