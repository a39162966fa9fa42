"""A run that is watched: what a rank tells, and what the notebook makes of it; no kernel, no workers."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace
from typing import Any

import pytest
from ddip.display import Screen
from ddip.display.figures import Figures
from ddip.pipeline.live_view import MIME, State, bundle_of

torch = pytest.importorskip("torch")
pytest.importorskip("IPython", reason="the display is the notebook's")

from ddip.pipeline.report import Report  # noqa: E402

from ddip.pipeline import live  # noqa: E402


def state(rank: int, done: int = 4, of: int = 100, **changes: Any) -> State:
    """A rank that has done `done` forwards of 10 ms each, the second rank 5 ms later."""
    actions = [["forward", rank, k, 0.01 * k, 0.01 * k + 0.008, 0] for k in range(done)]
    found: State = {
        "run": "r", "rank": rank, "of": of, "machine": "m", "start": 100 + 0.005 * rank, "seconds": 0.01 * done,
        "actions": actions, "losses": [], "cut": False, "state": "runs",
    }  # fmt: skip
    return {**found, **changes}


def boxes(html: str) -> list[tuple[str, float, float]]:
    """(kind, left, right) of what is drawn."""
    root = ElementTree.fromstring(f"<div>{html}</div>")
    found = [node for node in root.iter("{http://www.w3.org/2000/svg}rect") if node.get("class")]
    return [
        (str(node.get("class")), float(str(node.get("x"))), float(str(node.get("x"))) + float(str(node.get("width"))))
        for node in found
    ]


# --- the picture


def test_the_picture_begins_with_the_run_and_grows() -> None:
    early = boxes(bundle_of({0: state(0, 2), 1: state(1, 2)})["text/html"])
    later = boxes(bundle_of({0: state(0, 9), 1: state(1, 9)})["text/html"])
    assert (len(early), len(later)) == (4, 18)
    assert early[0][1] == later[0][1] == 70, "the first action is at the left border"
    assert early[2][1] > 70 and later[9][1] > 70, "rank 1 began later, on the same clock"


def test_when_a_rank_tells_only_its_last_part_the_others_are_cut_to_it_and_nothing_lies_outside() -> None:
    one, two = state(0, 30), state(1, 30, cut=True)
    two["actions"] = two["actions"][20:]
    two["actions"][0][3] -= 0.05  # a long one, which begins before the others of the picture end
    found = boxes(bundle_of({0: one, 1: two})["text/html"])
    assert 10 < len(found) < 30
    assert all(70 <= left <= right <= 950.3 for _, left, right in found)


def test_the_headline_has_what_every_rank_has_begun_and_the_last_loss() -> None:
    states = {0: state(0, 9), 1: state(1, 7, losses=[[1, 2.5], [6, 1.25]])}
    bundle = bundle_of(states)
    assert bundle["text/plain"] == "micro-batch 7 of 100, 0.1 s, loss 1.25"
    assert bundle["text/plain"] in bundle["text/html"] and 'value="7" max="100"' in bundle["text/html"]
    assert bundle["text/html"].count("<polyline") == 1
    states[1]["losses"].append([7, None])
    assert bundle_of(states)["text/plain"].endswith("loss not finite")
    assert bundle_of({0: state(0, 3, state="stopped")})["text/plain"] == "micro-batch 3 of 100, 0.0 s, stopped"
    assert bundle_of({0: state(0, 0)})["text/plain"] == "micro-batch 0 of 100, 0.0 s"


def test_the_curve_goes_down_when_the_loss_does() -> None:
    html = bundle_of({0: state(0, losses=[[0, 3.0], [50, None], [100, 1.0]])})["text/html"]
    points = re.search(r'points="([^"]*)"', html)
    assert points
    (x1, y1), (x2, y2) = [tuple(map(float, point.split(","))) for point in points[1].split()]
    assert (x1, x2) == (70, 950) and y1 < y2, "y is counted from the top"


def test_the_report_takes_the_pictures_place() -> None:
    states = {0: state(0, html="<b>all of it</b>", text="all of it", state="done"), 1: state(1, state="done")}
    assert bundle_of(states) == {"text/html": "<b>all of it</b>", "text/plain": "all of it"}


# --- what the notebook does with the ranks' parts


class Shown(Screen):
    rerenders = True

    def __init__(self) -> None:
        super().__init__()
        self.bundles: list[tuple[str | None, bool, str]] = []

    def bundle(
        self, data: dict[str, Any], metadata: dict[str, Any], handle: str | None = None, update: bool = False
    ) -> None:
        self.bundles.append((handle, update, data.get("text/plain", "")))


def body(part: State, kind: str = "update") -> dict[str, Any]:
    identity = f"of rank {part['rank']}"
    return {"kind": kind, "data": {MIME: part}, "metadata": {}, "transient": {"display_id": identity}}


def test_the_parts_of_all_ranks_are_one_display_that_changes_in_place() -> None:
    screen = Shown()
    figures = Figures(screen, [0, 1])
    figures.add(0.0, 0, body(state(0, 1), "display"))
    assert not figures.due(0.1), "the other rank has a moment"
    figures.add(0.1, 1, body(state(1, 1), "display"))
    assert figures.due(0.1)
    figures.emit(0.1)
    figures.add(1.0, 0, body(state(0, 9)))  # nothing was drawn for long
    figures.add(1.1, 1, body(state(1, 8)))
    figures.add(1.3, 0, body(state(0, 20)))  # now both have told something new
    figures.add(1.4, 1, body(state(1, 21)))
    figures.add(2.0, 1, body(state(1, 22)))  # rank 0 is silent; the picture goes on
    ((first, _, _), *_) = screen.bundles
    assert screen.bundles == [
        (first, False, "micro-batch 1 of 100, 0.0 s"),
        (first, True, "micro-batch 1 of 100, 0.1 s"),
        (first, True, "micro-batch 8 of 100, 0.2 s"),
        (first, True, "micro-batch 20 of 100, 0.2 s"),
    ]


def test_a_rank_that_comes_late_joins_and_an_end_is_always_shown() -> None:
    screen = Shown()
    figures = Figures(screen, [0, 1])
    figures.add(0.0, 0, body(state(0, 1), "display"))
    figures.emit(0.5)
    figures.add(0.51, 1, body(state(1, 1), "display"))
    figures.add(0.52, 0, body(state(0, 5, state="stopped")))
    figures.add(0.53, 1, body(state(1, 5, state="stopped")))
    assert len({handle for handle, _, _ in screen.bundles}) == 1 and not figures.pending()
    assert [text for _, _, text in screen.bundles][-1] == "micro-batch 5 of 100, 0.1 s, stopped"
    assert len(screen.bundles) == 3


def test_two_runs_of_one_cell_are_two_displays_and_other_displays_stay_as_they_are() -> None:
    screen = Shown()
    figures = Figures(screen, [0])
    plain = {"kind": "display", "data": {"text/html": "x", "text/plain": "other"}, "metadata": {}, "transient": {}}
    for run in ("a", "b"):
        figures.add(0.0, 0, body(state(0, 1, run=run), "display"))
        figures.emit(0.0)
        figures.add(0.0, 0, plain)
        figures.emit(0.0)
        figures.add(9.0, 0, body(state(0, 2, run=run)))
    assert [text for _, _, text in screen.bundles].count("other") == 2
    handles = [handle for handle, _, text in screen.bundles if text != "other"]
    assert handles[0] == handles[1] != handles[2] == handles[3]


def test_a_terminal_gets_the_end_only() -> None:
    screen = Shown()
    screen.rerenders = False
    figures = Figures(screen, [0, 1])
    for rank in (0, 1):
        figures.add(0.0, rank, body(state(rank, 1), "display"))
    figures.emit(0.0)
    figures.add(1.0, 0, body(state(0, 5)))
    figures.add(2.0, 0, body(state(0, 9, state="done", html="<b/>", text="the table")))
    figures.add(2.0, 1, body(state(1, 9, state="done")))
    assert [text for _, _, text in screen.bundles] == ["the table"]


# --- what a rank tells


class Recorded:
    """As the engine's record: `count` forwards and as many losses, each micro-batch's twice its number."""

    start = 50.0

    def __init__(self, count: int) -> None:
        self.count = count

    def newest_actions(self, count: int) -> list[Any]:
        numbers = range(max(0, self.count - count), self.count)
        return [
            SimpleNamespace(
                action=SimpleNamespace(kind="retire" if k % 2 else "forward", stage=1, micro_batch=k, staleness=0),
                begin=0.1 * k,
                end=0.1 * k + 0.05,
            )
            for k in numbers
        ]

    def newest_losses(self, count: int) -> SimpleNamespace:
        numbers = range(max(0, self.count - count), self.count)
        return SimpleNamespace(
            micro_batch=self.count - 1, sum=torch.tensor(4.0 * sum(numbers)), count=2.0 * len(numbers)
        )


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[State]:
    found: list[State] = []

    def publish(self: live.Live, update: bool) -> None:
        found.append({**self._state, "losses": list(self._state["losses"]), "update": update})

    monkeypatch.setattr(live.Live, "_publish", publish)
    return found


def test_a_rank_tells_its_last_actions_and_a_curve_that_stays_small(told: list[State]) -> None:
    one = live.Live("r", 1, 5000)
    one.tell(Recorded(10))
    assert [action[2] for action in told[-1]["actions"]] == [0, 2, 4, 6, 8], "what is not drawn is not told"
    assert not told[-1]["cut"] and told[-1]["seconds"] == pytest.approx(0.95) and told[-1]["start"] == 50
    for count in range(20, 5000, 10):
        one.tell(Recorded(count))
    assert told[-1]["cut"] and len(told[-1]["actions"]) == 60
    assert [told[0]["update"], told[1]["update"]] == [False, True]
    losses = told[-1]["losses"]
    assert 90 < len(losses) <= live.POINTS
    assert losses[0] == [9, pytest.approx(9.0)], "mean of twice 0 to 9"
    assert losses[-1] == [4979, pytest.approx(2 * (4979 - 15.5))], "the newest 32 of those of the last time"
    assert [x for x, _ in losses] == sorted({x for x, _ in losses})


def test_telling_takes_a_hundredth_of_the_time_at_the_most(told: list[State], monkeypatch: pytest.MonkeyPatch) -> None:
    used = iter([0.0, 0.3, 1.0, 1.001, 2.0, 2.015, 3.0, 3.015, 4.0, 4.001, 5.0, 5.001, 6.0, 6.001])
    now = [100.0]
    monkeypatch.setattr(live, "time", SimpleNamespace(thread_time=lambda: next(used), monotonic=lambda: now[0]))
    one = live.Live("r", 0, 10)
    assert one.tell(Recorded(10)) == 0.25, "the first time is long, and only once"
    assert one.tell(Recorded(10)) == 0.25
    assert one.tell(Recorded(10)) == 0.25
    assert one.tell(Recorded(10)) == 2.0, "15 ms twice: at most a hundredth"
    assert one.tell(Recorded(1000)) == 1.0, "after 100 s once a second is enough"
    now[0] = 100.9
    assert one.tell(Recorded(1000)) == pytest.approx(0.1), "at the full second, as the other ranks do"
    assert one.tell(Recorded(100_000)) == pytest.approx(3.1), "and never less often than every four seconds"


def test_parts_that_lie_in_different_times_are_all_shown() -> None:
    one, two = state(0, 10, cut=True), state(1, 40, cut=True)
    two["actions"] = two["actions"][20:]
    found = bundle_of({0: one, 1: two})["text/html"]
    assert len(boxes(found)) == 30


def test_the_end_is_told_with_the_report_by_one_rank(told: list[State]) -> None:
    report = Report([1.0], [], 0.5, [])
    with live.Watch(show=False) as watch:
        assert watch.begin("r", 0, 10) is None
    assert told == []
    for rank in (0, 1):
        one = live.Live("r", rank, 10)
        one.end(report)
    assert [("html" in part, part["state"]) for part in told if part["update"]] == [(True, "done"), (False, "done")]
    live.Live("r", 0, 10).end(None)
    assert told[-1]["state"] == "stopped" and "html" not in told[-1]


def test_a_run_that_raises_is_shown_as_stopped_and_raises(told: list[State], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "someone_looks", lambda: True)
    with pytest.raises(KeyboardInterrupt), live.Watch(show=True) as watch:
        assert watch.begin("r", 0, 10) is not None
        raise KeyboardInterrupt
    assert told[-1]["state"] == "stopped"
