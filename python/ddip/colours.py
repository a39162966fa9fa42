"""Colours in text, as a terminal knows them."""

from __future__ import annotations

import re

COLOUR = re.compile("\x1b\\[[0-9;]*m")


def without_colours(text: str) -> str:
    return COLOUR.sub("", text)
