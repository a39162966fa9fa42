"""Plans of pipelines from Python: made, checked, simulated, drawn, saved; and the page that explains them."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path
from typing import Any

import pytest

import ddip

pytest.importorskip("torch")
schedule = pytest.importorskip("ddip.schedule")
ROOT = Path(__file__).resolve().parent.parent


def test_a_plan_is_a_list_of_actions_for_each_rank() -> None:
    plan = schedule.make_plan("async_1f1b", stages=2, micro_batches=4)
    assert (plan.stages, plan.window, plan.rank_of_stage, plan.edges) == (2, [1, 0], [0, 1], [(0, 1)])
    first = [action for action in plan.ranks[0] if action.kind in ("forward", "backward", "step")]
    assert [(action.kind[0], action.micro_batch) for action in first] == [
        ("f", 0), ("f", 1), ("b", 0), ("s", 0), ("f", 2), ("b", 1), ("s", 1), ("f", 3), ("b", 2), ("s", 2), ("b", 3), ("s", 3),
    ]  # fmt: skip
    assert [(a.version, a.staleness) for a in first if a.kind == "forward"] == [(0, 0), (0, 1), (1, 1), (2, 1)]
    assert repr(plan.ranks[1][0]) == "receive activation stage=1 micro_batch=0 edge=0"
    assert (plan.ranks[1][0].direction, plan.ranks[1][0].edge) == ("activation", 0)


def test_every_schedule_is_made_checked_and_simulated() -> None:
    more: dict[str, dict[str, Any]] = {
        "interleaved": {"stages": 8, "rank_of_stage": [0, 1, 2, 3] * 2},
        "zbv": {"stages": 8},
        "virtual_async": {"max_staleness": 2},
        "2bw": {"accumulate": 4},
        "paci": {"accumulate": 4},
    }
    assert len(schedule.schedule_names()) == 10
    for name in schedule.schedule_names():
        plan = schedule.make_plan(name, **{"stages": 4, "micro_batches": 8, "batches": 2, **more.get(name, {})})
        verdict = plan.check()
        assert verdict.ok and verdict.deadlock_free and verdict.stall_free, (name, verdict.error)
        seen = plan.simulate()
        assert len(seen.utilisation) == 4 and 0 <= seen.bubble < 1
        assert [len(spans) for spans in seen.timeline] == [len(actions) for actions in plan.ranks]
        # Nothing on a rank overlaps, and whoever computes takes time.
        for spans in seen.timeline:
            assert all(before[1] <= after[0] for before, after in zip(spans, spans[1:], strict=False))


def test_the_window_follows_from_the_links_and_fills_the_pipe() -> None:
    links = [1.5, 3.0, 0.0]
    assert schedule.default_window(4) == [3, 2, 1, 0]
    assert schedule.default_window(4, links=links) == [6, 4, 1, 0]
    narrow = schedule.make_plan("async_1f1b", 4, 200, links=links)
    wide = schedule.make_plan("async_1f1b", 4, 200, links=links, window=[6, 4, 1, 0])
    assert min(wide.simulate().utilisation) > 0.95 > 0.7 > max(narrow.simulate().utilisation)
    # Other costs may be tried on the same plan.
    assert narrow.simulate(links=[0, 0, 0]).makespan < narrow.simulate().makespan
    assert narrow.simulate(costs=[(2, 2, 2, 0, 0)] * 4).makespan > narrow.simulate().makespan


def test_what_cannot_be_is_refused_with_one_line() -> None:
    with pytest.raises(ddip.ConfigError, match=r'^schedule "async_1f1": .* did you mean async_1f1b\?$'):
        schedule.make_plan("async_1f1", 2, 2)
    plan = schedule.make_plan("1f1b", 2, 4, capacity=[0, 0])
    assert not plan.check().ok and plan.check().error.endswith("nobody can go on")
    with pytest.raises(ddip.ConfigError, match="nobody can go on"):
        plan.simulate()


def test_a_plan_is_drawn(tmp_path: Path) -> None:
    plan = schedule.make_plan("1f1b", 2, 3)
    plan.draw(str(tmp_path / "plan.svg"))
    picture = (tmp_path / "plan.svg").read_text(encoding="utf-8")
    assert picture == plan._repr_svg_()
    root = xml.etree.ElementTree.fromstring(picture)
    numbers = [node.text for node in root.iter() if node.tag.endswith("text")]
    assert all(numbers.count(str(micro_batch)) >= 4 for micro_batch in range(3))
    plan.draw(str(tmp_path / "plan.txt"))
    assert (tmp_path / "plan.txt").read_text(encoding="utf-8") == str(plan) == plan.text(100)
    with pytest.raises(ddip.ConfigError, match=r"expected a name that ends in \.svg or \.txt"):
        plan.draw(str(tmp_path / "plan.gif"))


def test_a_plan_is_saved_edited_and_loaded(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    schedule.make_plan("1f1b", 2, 3).save(str(path))
    assert str(schedule.Plan.load(str(path))) == str(schedule.make_plan("1f1b", 2, 3))
    edited = json.loads(path.read_text(encoding="utf-8"))
    receive = edited["ranks"][1].pop(0)
    path.write_text(json.dumps(edited), encoding="utf-8")
    assert receive.startswith("receive activation")
    with pytest.raises(ddip.ConfigError, match=r"plan\.json: rank 1, action 0 \(forward .*was not received$"):
        schedule.Plan.load(str(path))


def test_the_pictures_of_the_page_are_what_the_plans_are_now() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "plan_pictures.py", "--check"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    page = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
    for picture in (ROOT / "docs" / "pictures").glob("plan_*.svg"):
        assert f"pictures/{picture.name}" in page


def test_the_python_of_the_page_prints_what_it_says() -> None:
    page = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
    section = page.split("\n## A plan is data\n")[1].split("\n## ")[0]
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    source = "\n".join(body for language, body in blocks if language == "python")
    promised = re.findall(r"print\(.*\)\s+# (\[.*?\])(?=: by|$)", source, re.MULTILINE)
    promised += [body.rstrip("\n") for language, body in blocks if not language]
    assert len(promised) == 4
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(source, "docs/pipeline.md", "exec"), {})
    for text in promised:
        assert f"{text}\n" in printed.getvalue()


def test_the_gains_that_the_page_states_are_those_of_the_simulator() -> None:
    page = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+), (\d+) \| ([\d.]+) × \| ([\d.]+) × \|$", page, re.MULTILINE)
    assert len(rows) == 3

    def rate(name: str, stages: int, micro_batches: int, link: float, wide: bool) -> float:
        links = [link] * (stages - 1)
        window = schedule.default_window(stages, links=links) if wide else []
        plan = schedule.make_plan(name, stages, micro_batches, 576 // micro_batches, window=window, links=links)
        return 1 / float(plan.simulate().makespan)

    for stages, micro_batches, *stated in rows:
        shape = int(stages), int(micro_batches)
        for gain, link in zip(stated, (1.5, 3.0), strict=True):
            best = max(
                rate("gpipe", *shape, link, False), rate("1f1b", *shape, link, False), rate("1f1b", *shape, link, True)
            )
            assert f"{rate('async_1f1b', *shape, link, True) / best:.2f}" == gain, (shape, link)
