"""What a notebook shows when something fails: one line of ours, or the ranks' own tracebacks; never our frames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from IPython import get_ipython
from IPython.core.error import UsageError

from ddip import display
from ddip.errors import ConfigError, PeerLost, RankError, TimedOut


class CellFailed(Exception):
    """Raised under a cell whose ranks failed. Its text is one line; the notebook shows the ranks' tracebacks, not ours."""

    def __init__(self, error: RankError) -> None:
        self.error = error
        super().__init__(one_sentence(error))

    def _render_traceback_(self) -> list[str]:
        return display.screen_for(get_ipython()).in_its_colours(self.error.coloured).splitlines()


class CellInterrupted(KeyboardInterrupt):
    """The cell was stopped: one line, not our frames."""

    def _render_traceback_(self) -> list[str]:
        return [f"KeyboardInterrupt: {self}"]


class FailedHere(Exception):
    """The local half failed; its traceback is on the screen."""

    def _render_traceback_(self) -> list[str]:
        return [f"ddip: {self}"]


class StillRunning(KeyboardInterrupt):
    """Stop was pressed and the prompt is back, but the cell goes on. `lines`: who is where."""

    def __init__(self, cell: int, lines: list[str]) -> None:
        self.lines = [
            f"cell {cell} was asked to stop and goes on:",
            *("  " + line for line in lines),
            "nothing is lost: it ends by itself, or press stop again in the next %%dip (or `ddip interrupt --kill`) to replace the stuck ranks",
        ]
        super().__init__("\n".join(self.lines))

    def _render_traceback_(self) -> list[str]:
        return self.lines


class one_line:
    """Turns our errors into the notebook's UsageError: one line, never a library's traceback. `command`: what the
    failure of a rank is to be called; without it the rank's own traceback is shown. `after_loss`: what to say of a
    broken connection."""

    def __init__(self, command: str, after_loss: Callable[[PeerLost], str]) -> None:
        self._command = command
        self._after_loss = after_loss

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, PeerLost):
            raise UsageError(self._after_loss(error)) from None
        if isinstance(error, (ConfigError, TimedOut)) or (
            isinstance(error, TypeError) and str(error).startswith("cannot send")
        ):
            raise UsageError(str(error)) from None
        if isinstance(error, RankError) and self._command:
            raise UsageError(f"{self._command}: {one_sentence(error)}") from None
        if isinstance(error, RankError):
            raise CellFailed(error) from None


def one_sentence(error: RankError) -> str:
    """`rank 1: ValueError: boom`, of the first rank that failed."""
    if not error.ranks:
        return str(error)
    rank = error.ranks[0]
    if rank in error.lost:
        return f"rank {rank} is lost: {error.lost[rank].splitlines()[0]}"
    lines = [line for line in error.tracebacks.get(rank, "").splitlines() if line.strip()]
    return f"rank {rank}: {lines[-1].strip() if lines else 'failed'}"
