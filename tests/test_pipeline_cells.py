"""A pipeline in a notebook's cells, through a real kernel: defined, run, watched, interrupted, changed, looked at."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.kernel import Home, Kernel, Outputs, open_kernel

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("torch")

DEFINED = """%%dip
import os, time, torch, ddip
torch.manual_seed(0)
torch.set_num_threads(1)

class Slow(torch.nn.Linear):
    "Waits in the middle of the run until the notebook has seen some of it."
    until = None
    def forward(self, x):
        time.sleep(0.01)
        if self.until and self.seen == 60:
            end = time.monotonic() + 30
            while not os.path.exists(self.until) and time.monotonic() < end: time.sleep(0.01)
        self.seen = getattr(self, "seen", 0) + 1
        return super().forward(x)

x = torch.randn(64, 6)
y = x.sum(1, keepdim=True)
first = Slow(6, 16)
pipe = ddip.Pipeline([torch.nn.Sequential(first, torch.nn.Tanh()), torch.nn.Linear(16, 1)], loss=torch.nn.functional.mse_loss,
                     schedule="async_1f1b", micro_batches=4,
                     optimizer=lambda parameters: torch.optim.SGD(parameters, 0.05, momentum=0.9))
print(pipe.policy_name)
"""


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    place = Home()
    environment = {**place.environment, "DDIP_PRELOAD": "", "JPY_SESSION_NAME": "", "PYTHONUNBUFFERED": ""}
    try:
        for kernel in open_kernel(environment, str(tmp_path_factory.mktemp("cells"))):
            kernel.do("%load_ext ddip")
            kernel.do("%makedip -n 2")
            assert kernel.do(DEFINED).lines == ["msnag"]
            yield kernel
            kernel.do("%makedip -k")
    finally:
        place.close()


class Watched:
    """Runs a cell; `seen` has each state of what the cell shows, when it came, and `act` is called with it."""

    def __init__(self, kernel: Kernel, source: str, act: Callable[[str], None]) -> None:
        self.seen: list[tuple[float, str]] = []
        client: Any = kernel._client
        process = client.process_message

        def look(message: Any, *rest: Any) -> Any:
            html = message["content"].get("data", {}).get("text/html")
            if html:
                self.seen.append((time.monotonic(), html))
                act(html)
            return process(message, *rest)

        client.process_message = look
        try:
            self.outputs: Outputs = kernel.run(source)
        finally:
            client.process_message = process
        self.ended = time.monotonic()

    def progress(self) -> list[int]:
        found = [re.search(r"micro-batch (\d+) of \d+", html) for _, html in self.seen]
        return [int(one[1]) for one in found if one]


def begun(html: str) -> int:
    found = re.search(r"micro-batch (\d+) of", html)
    return int(found[1]) if found else 0


def test_a_cell_draws_the_run_while_it_goes_on_and_the_report_at_its_end(cells: Kernel, tmp_path: Path) -> None:
    mark = tmp_path / "seen"
    cells.do(f"%%dip\nfirst.until, first.seen = {str(mark)!r}, 0")

    def act(html: str) -> None:
        if begun(html) >= 10:
            mark.touch()

    watched = Watched(cells, "%%dip\nreport = pipe.run([(x, y)] * 40, show=True)", act)
    assert watched.outputs.error is None, watched.outputs.text
    assert mark.exists(), "the run waits for the picture that shows its beginning"
    steps = watched.progress()
    assert steps == sorted(steps) and len(set(steps)) >= 3 and max(steps) <= 160, steps
    drawn = [html for _, html in watched.seen if 'class="forward"' in html and "<table" not in html]
    assert any("rank 0" in html and "rank 1" in html and "<polyline" in html for html in drawn)
    (last,) = watched.outputs.of_type("text/html")
    assert "<table" in last and "forwards by staleness" in last and "40 batches in" in last and "<svg" in last
    assert "micro-batch 1 of" not in watched.outputs.text


def test_a_run_without_show_shows_nothing(cells: Kernel) -> None:
    cells.do("%%dip\nfirst.until = None")
    assert cells.do("%%dip\nreport = pipe.run([(x, y)] * 2)").all == []


def test_a_cell_that_ends_with_a_report_shows_it_once(cells: Kernel) -> None:
    cells.do("%%dip\nfirst.until = None")
    outputs = cells.do("%%dip\npipe.run([(x, y)] * 2)")
    (html,) = outputs.of_type("text/html")
    assert "2 batches in" in html and "[1]" not in outputs.text, outputs.text


def test_stop_ends_all_stages_and_the_pipeline_runs_again(cells: Kernel) -> None:
    cells.do("%%dip\nfirst.until = None")
    pressed: list[float] = []

    def press(html: str) -> None:
        if begun(html) >= 5 and not pressed:
            pressed.append(time.monotonic())
            os.kill(cells.pid, signal.SIGINT)

    watched = Watched(cells, "%%dip\npipe.run([(x, y)] * 20000, show=True)", press)
    assert pressed and watched.outputs.error is not None and watched.outputs.error.ename == "CellInterrupted"
    assert "interrupted on ranks 0-1" in watched.outputs.text
    assert watched.ended - pressed[0] < 5, "promised: a second"
    (last,) = watched.outputs.of_type("text/html")
    assert ", stopped" in last and 'class="backward"' in last
    again = cells.do("%%dip\nlen(pipe.run([(x, y)] * 3).losses)")
    assert again.lines == ["3"]


def test_the_rate_is_changed_between_runs_and_a_stage_is_looked_at(cells: Kernel) -> None:
    said = cells.do(
        "%%dip\nfirst.until = None\npipe.set_rate(0)\n"
        "before = pipe.state_dict(); pipe.run([(x, y)] * 2)\n"
        "print(all(torch.equal(before[name], tensor) for name, tensor in pipe.state_dict().items()))\n"
        "pipe.set_rate(0.01); pipe.run([(x, y)] * 2)\n"
        "print(any(torch.equal(before[name], tensor) for name, tensor in pipe.state_dict().items()))"
    )
    assert said.lines == ["True", "False"]
    looked = cells.do("%%dip\npipe.stage(1)").lines
    steps = cells.do("%%dip --ranks 1\npipe.versions[1].version").lines
    assert looked[0] == f"stage 1 on rank 1: 17 numbers (68 B), {steps[0]} steps done, rate 0.01, momentum 0.9"
    assert [line.split()[:2] for line in looked[1:3]] == [["weight", "1×16"], ["bias", "1"]]
    assert looked[3] == "Linear(in_features=16, out_features=1, bias=True)"
    same = cells.do(
        "%%dip\nview, whole = pipe.stage(0), pipe.state_dict()\n"
        "all(torch.equal(view.weights[name], whole[f'0.{name}']) for name in view.weights)"
    )
    assert same.lines == ["True"]
    refused = cells.run("%%dip\npipe.stage(2)")
    assert "stage 2: expected one from 0 to 1" in refused.text
    refused = cells.run("%%dip\npipe.set_rate(-1)")
    assert "rate -1: expected a number from 0 on" in refused.text
