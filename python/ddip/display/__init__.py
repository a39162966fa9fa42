"""A cell's events on the screen: `screen_for` says where they go, `renderer` how they look there."""

from __future__ import annotations

from typing import Protocol

from ddip.cell import Event
from ddip.display.merged import Merged
from ddip.display.plain import Plain
from ddip.display.rank_lines import RankLines, prefixed
from ddip.display.screen import Screen, screen_for
from ddip.display.shown import Shown


class Renderer(Protocol):
    """Of one cell."""

    def show(self, event: Event) -> None: ...

    def tick(self) -> float:
        """Renders what is due; returns in how many seconds to come again."""
        ...

    def pause(self) -> None:
        """Something else comes on the screen now: what was said stands above it, what will be said below."""
        ...

    def finish(self) -> None: ...


class Quiet:
    """-q: nothing but errors."""

    def show(self, event: Event) -> None:
        pass

    def tick(self) -> float:
        return 1.0

    def pause(self) -> None:
        pass

    def finish(self) -> None:
        pass


def renderer(
    screen: Screen, see: list[int], plain: bool = False, quiet: bool = False, shown: Shown | None = None
) -> Renderer:
    """`shown`: the displays of earlier cells, which this one may update."""
    if quiet or not see:
        return Quiet()
    return Plain(screen, see, shown or Shown()) if plain else Merged(screen, see, shown)


__all__ = ["RankLines", "Renderer", "Screen", "Shown", "prefixed", "renderer", "screen_for"]
