"""What can go wrong, for callers: each error says what, where and what to try."""

from __future__ import annotations

from ddip import _client
from ddip._client import ConfigError, PeerLost, ProtocolError, TimedOut
from ddip.colours import without_colours


class StageFailed(RuntimeError):
    """A stage of a pipeline failed on another rank; the message says which, and what it said."""


class RankError(RuntimeError):
    """A cell failed on some ranks. `ranks`: which, the first to fail first; `tracebacks`: rank → text; `lost`: rank → why.
    All of it is plain text; `coloured` is the same as str(), in the colours that the ranks gave their tracebacks."""

    def __init__(self, ranks: list[int], tracebacks: dict[int, str], lost: dict[int, str], ran: int = 0) -> None:
        """`ran`: on how many ranks the cell ran."""
        self.ranks = ranks
        self.tracebacks = {rank: without_colours(text) for rank, text in tracebacks.items()}
        self.lost = lost
        self.coloured = describe(ranks, tracebacks, lost, ran)
        super().__init__(describe(ranks, self.tracebacks, lost, ran))


def describe(ranks: list[int], tracebacks: dict[int, str], lost: dict[int, str], ran: int) -> str:
    """Equal tracebacks are shown once; those of the first rank to fail come first."""
    parts = []
    for rank in ranks:
        if rank in lost:
            parts.append(f"rank {rank} is lost: {lost[rank]}")
    shown: dict[str, list[int]] = {}
    for rank in ranks:
        if rank in tracebacks:
            shown.setdefault(tracebacks[rank], []).append(rank)
    for text, who in shown.items():
        parts.append(f"{who_of(sorted(who), ran)}:\n{text}")
    return "\n".join(parts)


def who_of(ranks: list[int], ran: int) -> str:
    names = f"rank{'s' if len(ranks) > 1 else ''} {_client.rank_list(ranks)}"
    if ran <= 1:
        return names
    if len(ranks) < ran:
        return f"{names} ({len(ranks)} of {ran} ranks)"
    return f"all {ran} ranks" if ranks == list(range(ran)) else f"{names} (all that ran it)"


__all__ = ["ConfigError", "PeerLost", "ProtocolError", "RankError", "TimedOut"]
