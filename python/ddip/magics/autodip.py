"""%autodip: which cells go to the workers as if they began with %%dip."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Set

from ddip.magics.cell_pieces import is_code, magic_of

# Extensions are the notebook's; to load one on the workers there is %%dip.
EXTENSION_MAGICS = frozenset({"load_ext", "unload_ext", "reload_ext"})


class AutodipSwitch:
    def __init__(self, own_magics: Set[str]) -> None:
        self.flags: str | None = None  # of the %%dip that every cell begins with; None: off
        self._paused = False
        self._stay_here = own_magics | EXTENSION_MAGICS

    @property
    def on(self) -> bool:
        return self.flags is not None

    def __str__(self) -> str:
        return "off" if self.flags is None else f"on: every cell runs as %%dip {self.flags}".rstrip()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """A cell that is run from here stays here."""
        paused, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = paused

    def send_to_workers(self, lines: list[str]) -> list[str]:
        """An input transformer. A cell that begins with a magic of ours stays as it is."""
        if self.flags is None or self._paused:
            return lines
        first = next((line for line in lines if is_code(line)), None)
        if first is None or magic_of(first) in self._stay_here:
            return lines
        return [f"%%dip {self.flags}\n", *lines]

    # Else IPython asks the transformed cell whether it is complete, and a terminal wants an empty line after each line.
    send_to_workers.has_side_effects = True  # type: ignore[attr-defined]
