"""Text as a reader sees it."""

from __future__ import annotations

import re


def without_colours(text: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
