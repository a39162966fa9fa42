"""matplotlib's figures go to the notebook."""

from __future__ import annotations

import importlib.util
import os


def draw_inline() -> None:
    """Before anybody imports matplotlib, which looks only once."""
    if importlib.util.find_spec("matplotlib_inline") is not None:
        os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
