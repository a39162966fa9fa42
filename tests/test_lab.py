"""JupyterLab in a real Chromium: I7, I8, I11, I13, I16–I18 and I23 as a person sees them. Cells run by keyboard, stop and
restart are the toolbar's buttons, and what is asserted is what the page shows. Each test leaves its screenshots in tmp_path."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import server as jupyter
from lab.page import Page, missing, open_browser
from support.waiting import Stopwatch, wait_until

import ddip

WHY_NOT = missing("jupyterlab", "nbformat")
pytestmark = [pytest.mark.skipif(WHY_NOT is not None, reason=f"no browser test: {WHY_NOT}"), pytest.mark.timeout(180)]

RANK = "%%dip\nimport os, sys, time\nr = int(os.environ['RANK'])"
# The promise is 1 s; a deadline is five times the promise.
PROMPT_BACK = 5.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: Any) -> Iterator[jupyter.Server]:
    yield from jupyter.open_server(tmp_path_factory.mktemp("lab"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from open_browser()


@pytest.fixture
def open_notebook(
    server: jupyter.Server, browser: Any, tmp_path: Path, monkeypatch: Any, request: Any
) -> Iterator[Callable[..., Page]]:
    """A new notebook with these cells, the first ones run: the extension, two workers, their rank `r`."""
    for name, value in server.home.environment.items():
        monkeypatch.setenv(name, value)
    opened: list[Page] = []
    name = re.sub(r"\W+", "-", request.node.name)[:40] + ".ipynb"

    def open_with(*sources: str, start: str = "%makedip -n 2") -> Page:
        server.write(name, ["%load_ext ddip", start, RANK, *sources])
        page = Page(browser, server.url_of(name))
        opened.append(page)
        for index in range(3):
            page.run(index)
        assert "2 CPU workers" in page.output(1), page.output(1)
        return page

    yield open_with
    for page in opened:
        page.screenshot(tmp_path / "end.png")
        page.close()
    server.shut_kernels()
    for group in ddip.groups():
        ddip.attach(group, "tests").stop()


def the_group() -> Any:
    (name,) = ddip.groups()
    return ddip.attach(name, "tests")


def test_a_cell_runs_and_its_output_is_read(open_notebook: Callable[..., Page], tmp_path: Path) -> None:
    page = open_notebook(
        "%%dip\nprint('same'); print('mine', r)\n6 * 7",
        "%%dip\nfrom IPython.display import HTML\nHTML('<b id=\"bold\">bold</b>')",
        "%%dip\nif r == 1: raise ValueError('boom')",
        "%%dip\nprint('not reached')",
    )
    assert page.run(3) == ["same", "[0] mine 0", "[1] mine 1", "42"]
    page.run(4)
    assert page.raw.locator("#bold").inner_text() == "bold"
    # Run all stops at the failing cell.
    page.raw.keyboard.press("Escape")
    page.raw.locator(
        '.jp-Toolbar [data-command="notebook:restart-run-all"], .jp-Toolbar [data-command="runmenu:restart-and-run-all"]'
    ).first.click()
    page.raw.locator(".jp-Dialog .jp-mod-accept").click()
    page.until(lambda: "boom" in page.output(5) and not page.busy(5), "the failing cell has run", 90)
    page.until(lambda: not page.busy(6), "the cell after it is given up")
    assert page.lines(5)[0] == "rank 1 (1 of 2 ranks):" and page.lines(6) == []
    page.screenshot(tmp_path / "errors.png")


BARS = {
    "tqdm": (
        "%%dip\nfrom tqdm.auto import tqdm",
        "%%dip\nfor i in tqdm(range(3), desc='epoch'):\n    for j in tqdm(range(40), desc='batch', leave=False): time.sleep(0.02)",
        r"batch: +\d+%",
        r"epoch: +\d+%",
    ),
    "rich": (
        "%%dip\nfrom rich.progress import Progress",
        "%%dip\nwith Progress() as bars:\n    outer, inner = bars.add_task('epoch', total=3), bars.add_task('batch', total=40)\n"
        "    for i in range(3):\n        bars.reset(inner)\n        for j in range(40): time.sleep(0.02); bars.advance(inner)\n        bars.advance(outer)",
        r"batch .*?\d+%",
        r"epoch .*?\d+%",
    ),
    "fastprogress": (
        "%%dip\nfrom fastprogress import master_bar, progress_bar",
        "%%dip\nouter = master_bar(range(3))\nfor i in outer:\n"
        "    for j in progress_bar(range(40), parent=outer): time.sleep(0.02)",
        r"Epoch \d/3 : .*?\d+\.\d+%",
        r"Epoch \d/3",
    ),
}


@pytest.mark.parametrize("library", list(BARS))
def test_nested_bars_move_in_one_place_and_other_ranks_are_silent(
    open_notebook: Callable[..., Page], tmp_path: Path, library: str
) -> None:
    imports, source, inner, outer = BARS[library]
    page = open_notebook(imports, source)
    page.run(3)  # apart, so that no rank is alone with its bar while another is still importing
    page.watch(4)
    page.start(4)
    page.until(lambda: re.search(inner, page.output(4)), "the inner bar is drawn")
    page.screenshot(tmp_path / "moving.png")
    page.until(lambda: not page.busy(4), "the cell ends")
    states = page.states(4)
    assert len({state for state in states if re.search(inner, state)}) >= 3, states
    for state in states:
        assert len(re.findall(inner, state)) <= 1 and len(re.findall(outer, state)) <= (
            2 if library == "fastprogress" else 1
        ), f"one bar, not one per rank:\n{state}"
        assert "[1]" not in state, f"rank 1 is silent:\n{state}"
        assert "<div" not in state and "\x1b" not in state, f"no raw markup:\n{state}"
        assert len(state.strip().splitlines()) <= 2, f"one region, redrawn in place:\n{state}"
    assert page.cell(4).locator(".jp-OutputArea-output").count() <= 1


@pytest.mark.parametrize("place", ["sleep", "loop"])
def test_stop_ends_a_cell_and_keeps_processes_and_variables(
    open_notebook: Callable[..., Page], tmp_path: Path, place: str
) -> None:
    body = {"sleep": "time.sleep(600)", "loop": "while True: pass"}[place]
    page = open_notebook(f"%%dip\nkept = 'since before'\nprint('in')\n{body}", "%%dip\nprint(kept, r)")
    pids = the_group().pids
    page.start(3)
    page.until(lambda: "in" in page.lines(3), "both ranks are in it")
    with Stopwatch() as watch:
        page.press_stop()
        page.until(lambda: not page.busy(3), "the prompt is back")
    assert watch.seconds < PROMPT_BACK
    assert (
        "KeyboardInterrupt" in page.output(3)
        and "interrupted on ranks 0-1" in page.output(3)
        and "/ddip/magics/" not in page.output(3)
    )
    page.screenshot(tmp_path / "stopped.png")
    assert page.run(4) == ["[0] since before 0", "[1] since before 1"]
    assert the_group().pids == pids


def test_stop_ends_a_blocked_gloo_all_reduce_and_one_call_rebuilds(
    open_notebook: Callable[..., Page], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    page = open_notebook(
        "%%dip\nimport torch, torch.distributed as dist\ndist.init_process_group('gloo')\nkept = r",
        "%%dip\nx = torch.ones(1)\nif r == 0:\n    print('waiting'); dist.all_reduce(x)\nelse:\n    time.sleep(600)",
        "%%dip\nprint(kept)",
        "%dipper group\ngroup.rebuild()",
        "%%dip\nx = torch.ones(1); dist.all_reduce(x); print(x.item())",
        start="import os; os.environ['DDIP_PRELOAD'] = 'torch'\n%makedip -n 2",
    )
    page.run(3)
    pids = the_group().pids
    page.start(4)
    page.until(lambda: "waiting" in page.output(4), "rank 0 waits")
    wait_until(lambda: "all_reduce" in "".join(ddip._client.explain(the_group().why())), 20, "in the collective")
    with Stopwatch() as watch:
        page.press_stop()
        page.until(lambda: not page.busy(4), "the prompt is back")
    assert watch.seconds < PROMPT_BACK
    page.screenshot(tmp_path / "stopped.png")
    assert "all_reduce" in page.output(4) and "rebuild" in page.output(4), page.output(4)
    assert page.run(5) == ["[0] 0", "[1] 1"] and the_group().pids == pids
    assert page.run(6) == []
    assert page.run(7) == ["2.0"]


@pytest.mark.parametrize("attach", ["%makedip --attach", "%makedip"])
def test_the_kernel_restarts_in_the_middle_and_every_line_comes_once(
    open_notebook: Callable[..., Page], tmp_path: Path, attach: str
) -> None:
    count, gate = 300, tmp_path / "gate"
    page = open_notebook(
        f"%%dip\nfor i in range(1, {count + 1}):\n    print('line', i)\n    if i == 100:\n        while not os.path.exists({str(gate)!r}): time.sleep(0.01)",
        f"%load_ext ddip\n{attach}",
    )
    page.start(3)
    page.until(lambda: "line 100" in page.lines(3), "a hundred lines")
    pids = the_group().pids
    page.restart_kernel()
    assert the_group().pids == pids and len(the_group().info()["cells"]) == 1, "the group goes on"
    page.start(4)
    page.until(lambda: "line 100" in page.lines(4), "the past is shown")
    assert page.busy(4), "and what goes on is shown live"
    gate.touch()
    page.until(lambda: not page.busy(4), "the cell is over")
    shown = [line for line in page.lines(4) if line.startswith("line")]
    assert shown == [f"line {i}" for i in range(1, count + 1)], shown
    assert not any(line.startswith("[") for line in page.lines(4)), "what both ranks said is shown once"
    page.screenshot(tmp_path / "attached.png")
    page.start(4)
    page.until(lambda: not page.busy(4), "attached again")
    assert not any(line.startswith("line") for line in page.lines(4)), "what was shown is not shown again"


def test_an_async_cells_output_appears_under_its_own_cell(open_notebook: Callable[..., Page], tmp_path: Path) -> None:
    gates = [tmp_path / "first", tmp_path / "second"]
    page = open_notebook(
        f"%%dip --async job\nfor i, gate in enumerate({[str(gate) for gate in gates]!r}):\n    while not os.path.exists(gate): time.sleep(0.01)\n    print('async', i)\n    print('rank', r)",
        "import time\nprint('local begins')\nwhile not done: time.sleep(0.01)\nprint('local ends')",
        "job.wait(30); job.status",
        "import threading, os\ndone = []\ndef look():\n"
        f"    while not os.path.exists({str(tmp_path / 'done')!r}): time.sleep(0.01)\n    done.append(1)\nimport time\nthreading.Thread(target=look).start()",
    )
    page.run(6)
    assert "job" in page.run(3)[0]
    page.start(4)
    page.until(lambda: "local begins" in page.lines(4), "another cell runs")
    gates[0].touch()
    page.until(lambda: "async 0" in page.lines(3), "output of the async cell while another runs")
    assert page.busy(4) and "async 0" not in page.output(4)
    (tmp_path / "done").touch()
    page.until(lambda: not page.busy(4), "the local cell ends")
    gates[1].touch()
    page.until(lambda: "async 1" in page.lines(3), "output of the async cell while nothing runs")
    assert page.run(5)[-1] == "'done'"
    assert page.lines(3)[1:] == ["async 0", "[0] rank 0", "[1] rank 1", "async 1", "[0] rank 0", "[1] rank 1"], (
        page.lines(3)
    )
    assert page.lines(4) == ["local begins", "local ends"]
    page.screenshot(tmp_path / "async.png")


def test_input_on_one_rank_is_answered_in_the_browser(open_notebook: Callable[..., Page], tmp_path: Path) -> None:
    page = open_notebook("%%dip\nif r == 1:\n    name = input('your name? ')\n    print('hello', name)")
    page.start(3)
    page.until(lambda: "[1] your name?" in page.output(3), "the question")
    page.screenshot(tmp_path / "asked.png")
    page.answer(3, "Ada")
    page.until(lambda: not page.busy(3), "answered")
    assert page.lines(3)[-1] == "[1] hello Ada" and sum("your name" in line for line in page.lines(3)) == 1, page.lines(
        3
    )


def test_debug_after_an_error_is_a_conversation_with_one_rank(
    open_notebook: Callable[..., Page], tmp_path: Path
) -> None:
    page = open_notebook("%%dip\ndef broken(secret):\n    return 1 / 0\nbroken(40 + r)", "%%dip --ranks 1\n%debug")
    page.run(3)
    page.start(4)
    page.answer(4, "p secret")
    page.answer(4, "q")
    page.until(lambda: not page.busy(4), "left")
    talk = page.lines(4)[-3:]
    assert re.match(r"\[1\] ipdb> +p secret", talk[0]) and talk[1] == "41" and re.match(r"\[1\] ipdb> +q", talk[2]), (
        page.lines(4)
    )
    page.screenshot(tmp_path / "debug.png")


def test_tab_completes_a_name_that_only_the_workers_know(open_notebook: Callable[..., Page], tmp_path: Path) -> None:
    page = open_notebook(
        "%%dip\nonly_on_workers_alpha = 1; only_on_workers_beta = 2",
        "%autodip on",
        "only_on_w",
        "print(only_on_workers_alpha)",
    )
    page.run(3)
    page.run(4)
    page.type(5, "")
    page.raw.keyboard.press("Tab")
    names = page.raw.locator(".jp-Completer:visible .jp-Completer-match")
    page.until(lambda: names.count() >= 2, "both names are offered")
    offered = [text.split()[0] for text in names.all_inner_texts()]
    page.screenshot(tmp_path / "completer.png")
    assert {"only_on_workers_alpha", "only_on_workers_beta"} <= set(offered), offered
    page.raw.keyboard.press("Escape")
    assert page.run(6) == ["1"]


def test_a_flood_leaves_the_page_usable_with_one_marker(open_notebook: Callable[..., Page], tmp_path: Path) -> None:
    page = open_notebook("%%dip\nfor i in range(100_000): print('line', i)", "%%dip\nprint('next')")
    page.run(3, 90)
    lines = page.lines(3)
    assert len(lines) < 2500 and sum("elided" in line for line in lines) == 1
    assert lines[0] == "line 0" and lines[-1] == "line 99999"
    with Stopwatch() as watch:
        assert page.run(4) == ["next"]
    assert watch.seconds < 10, "the page still takes keys and draws"
    page.screenshot(tmp_path / "flood.png")


TRAINING = [
    "%load_ext ddip\n%makedip -n 2\n%autodip on",
    """import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from tqdm.auto import tqdm

dist.init_process_group('gloo')
rank = dist.get_rank()
print('rank', rank, 'of', dist.get_world_size())""",
    """torch.manual_seed(0)
layers = torch.nn.Linear(2, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1)
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.Adam(model.parameters(), 0.01)

torch.manual_seed(rank)                       # each rank has its own data
x = torch.randn(512, 2)
y = x.prod(1, keepdim=True)
losses = []
for epoch in tqdm(range(300)):
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    losses.append(loss.item())
print(f'loss {loss.item():.4f} on my data')
print(f'sum of the weights {sum(p.sum() for p in model.parameters()).item():.6f}')""",
    """import matplotlib.pyplot as plt
dist.all_reduce(total := torch.tensor(losses))
plt.figure(figsize=(5, 2)); plt.semilogy(total / 2)
plt.xlabel('epoch'); plt.ylabel('loss');""",
]


def test_a_small_training_session_looks_as_in_the_readme(
    server: jupyter.Server, browser: Any, tmp_path: Path, monkeypatch: Any, open_notebook: Any
) -> None:
    pytest.importorskip("torch")
    server.write(
        "training.ipynb",
        [
            "import os; from ddip.magics import group_commands; os.environ['DDIP_PRELOAD'] = 'torch'; group_commands._warned_root = True",
            *TRAINING,
        ],
    )
    page = Page(browser, server.url_of("training.ipynb"))
    try:
        for index in range(5):
            page.run(index)
        assert page.lines(2) == ["[0] rank 0 of 2", "[1] rank 1 of 2"]
        output = page.lines(3)
        assert any("300/300" in line for line in output), output
        assert (
            sum(line.startswith("[0] loss") for line in output)
            == sum(line.startswith("[1] loss") for line in output)
            == 1
        )
        assert sum(line.startswith("sum of the weights") for line in output) == 1, "the replicas agree"
        assert page.cell(4).locator("img").count() == 1
        page.select(0)
        page.raw.keyboard.press("d")
        page.raw.keyboard.press("d")
        page.raw.wait_for_function("document.querySelectorAll('.jp-Notebook .jp-Cell').length === 4")
        picture = os.environ.get("DDIP_PICTURES")  # a folder: make the README's picture anew
        page.raw.set_viewport_size({"width": 860, "height": 1110})
        page.screenshot(Path(picture) / "notebook.png" if picture else tmp_path / "training.png")
    finally:
        page.close()


def test_a_pipelines_timeline_moves_while_it_runs_and_stop_ends_it(
    open_notebook: Callable[..., Page], tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    page = open_notebook(
        "%%dip\nimport torch, ddip\nfrom torch import nn\ntorch.set_num_threads(1)\ntorch.manual_seed(0)\n"
        "stages = [nn.Sequential(nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512)), nn.Sequential(nn.Tanh(), nn.Linear(512, 4))]\n"
        "pipe = ddip.Pipeline(stages, loss=nn.functional.mse_loss, optimizer=lambda p: torch.optim.SGD(p, 0.02, momentum=0.9))\n"
        "x = torch.randn(512, 64); y = x[:, :4].sin()",
        "%%dip\nreport = pipe.run([(x, y)] * 4000, show=True)",
        "%%dip\nreport = pipe.run([(x, y)] * 20, show=True)",
    )
    page.run(3)
    page.watch(4)
    page.start(4)

    def far() -> bool:
        found = re.search(r"micro-batch (\d+) of", page.output(4))
        return found is not None and int(found[1]) > 100

    page.until(far, "the run is seen to go on")
    assert page.cell(4).locator("svg rect.backward").count() > 10
    page.screenshot(tmp_path / "running.png")
    with Stopwatch() as watch:
        page.press_stop()
        page.until(lambda: not page.busy(4), "the prompt is back")
    assert watch.seconds < PROMPT_BACK
    numbers = [int(found[1]) for state in page.states(4) if (found := re.search(r"micro-batch (\d+) of", state))]
    assert numbers == sorted(numbers) and len(set(numbers)) >= 3, numbers
    page.until(lambda: ", stopped" in page.output(4), "it says so")
    page.run(5)
    page.until(lambda: "forwards by staleness" in page.output(5), "the report")
    assert "micro-batch " not in page.output(5) and page.cell(5).locator("svg rect.forward").count() > 4
