"""What can go wrong, for callers: each error says what, where and what to try."""

from __future__ import annotations

from ddip._client import ConfigError, PeerLost, ProtocolError, TimedOut
from ddip.colours import without_colours


class RankError(RuntimeError):
    """A cell failed on some ranks. `ranks`: which, the first to fail first; `tracebacks`: rank → text; `lost`: rank → why.
    All of it is plain text; `coloured` is the same as str(), in the colours that the ranks gave their tracebacks."""

    def __init__(self, ranks: list[int], tracebacks: dict[int, str], lost: dict[int, str], world_size: int = 0) -> None:
        self.ranks = ranks
        self.tracebacks = {rank: without_colours(text) for rank, text in tracebacks.items()}
        self.lost = lost
        self.coloured = describe(ranks, tracebacks, lost, world_size)
        super().__init__(describe(ranks, self.tracebacks, lost, world_size))


def describe(ranks: list[int], tracebacks: dict[int, str], lost: dict[int, str], world_size: int) -> str:
    """Equal tracebacks are shown once; the group that holds the first rank to fail comes first."""
    parts = []
    for rank in ranks:
        if rank in lost:
            parts.append(f"rank {rank} is lost: {lost[rank]}")
    shown: dict[str, list[int]] = {}
    for rank in ranks:
        if rank in tracebacks:
            shown.setdefault(tracebacks[rank], []).append(rank)
    for text, who in shown.items():
        count = f" ({len(who)} of {world_size} ranks)" if world_size > 1 else ""
        parts.append(f"rank{'s' if len(who) > 1 else ''} {', '.join(map(str, who))}{count}:\n{text}")
    return "\n".join(parts)


__all__ = ["ConfigError", "PeerLost", "ProtocolError", "RankError", "TimedOut"]
