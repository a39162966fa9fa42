"""The merged display without a kernel: events go in, and what the screen was given is looked at."""

from __future__ import annotations

import pytest
from ddip.cell import Event
from ddip.display import Screen
from ddip.display.merged import BAR_PATIENCE, Merged
from support.waiting import wait_until

pytest.importorskip("IPython", reason="the display is the notebook's")


class Region(Screen):
    """A screen with one region that is shown anew; `text` is what it shows."""

    rerenders = True
    text = ""

    def region(self, handle: str | None, text: str) -> str | None:
        self.text = text
        return "the only one"


def output(rank: int, data: bytes) -> Event:
    return ("output", 1, rank, data, 1, 1, [])


def test_a_bar_that_only_a_higher_rank_draws_appears_although_nothing_follows() -> None:
    screen = Region()
    renderer = Merged(screen, [0, 1])
    renderer.show(output(1, b"\rframe 1"))
    assert screen.text == "", "the lowest rank has a moment to draw one"
    assert renderer.tick() <= BAR_PATIENCE
    wait_until(lambda: renderer.tick() >= 0 and screen.text == "[1] frame 1", 5, "the bar")
    assert renderer.tick() == 1.0, "and nobody is woken for it any more"


@pytest.mark.parametrize("length", [1000, 30_000, 3_000_000])
def test_long_lines_do_not_make_one_message_of_many_megabytes(length: int) -> None:
    screen = Region()
    renderer = Merged(screen, [0])
    lines = [f"{number} " + "x" * length for number in range(900)] if length < 1 << 20 else ["0 " + "x" * length]
    renderer.show(output(0, "\n".join(lines).encode() + b"\n"))
    renderer.finish()
    assert 300_000 < len(screen.text) < 401_000 and screen.text.startswith("0 xxx") and screen.text.endswith("xxx")
    assert screen.text.count("characters elided (%diplog)\n") == 1
    if length < 1 << 20:
        shown = [line for line in screen.text.split("\n") if "elided" not in line]
        assert set(shown) < set(lines) and shown[0] == lines[0] and shown[-1] == lines[-1], "whole lines only"
