"""Whether variables that should be equal on all ranks are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ddip.errors import ConfigError

if TYPE_CHECKING:
    from ddip.group import Group, Ranks


@dataclass
class Comparison:
    differing: dict[str, list[list[int]]]  # path → the ranks that agree with each other
    compared: int  # how many paths
    left_out: dict[str, str]  # path → why it was not compared


def compare(group: Group, names: Sequence[str], ranks: Ranks) -> Comparison:
    asked = group.submit(
        {"kind": "fingerprint", "names": list(names), "first_line": f"check {', '.join(names)}"}, ranks
    )
    group.finish(asked)
    endings = [(rank, ending) for rank, ending in sorted(asked.endings.items())]
    missing = sorted({name for _, ending in endings for name in ending.get("missing", [])})
    if missing:
        raise ConfigError(f"{missing[0]}: no such variable on the workers")
    prints: dict[int, dict[str, str]] = {rank: ending["fingerprints"] for rank, ending in endings}
    paths = dict.fromkeys(path for of_rank in prints.values() for path in of_rank)
    differing = {}
    for path in paths:
        alike: dict[str | None, list[int]] = {}
        for rank, of_rank in prints.items():
            alike.setdefault(of_rank.get(path), []).append(rank)
        if len(alike) > 1:
            differing[path] = list(alike.values())
    left_out = {path: why for _, ending in endings for path, why in ending["left_out"].items()}
    return Comparison(differing, len(paths), left_out)
