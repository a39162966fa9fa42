"""I8–I12, I16, I17, I19: notebooks executed by nbclient with a real kernel; what is asserted is what the file holds."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.kernel import Home, Kernel, open_kernel
from lab.shell import plain_text
from support import processes
from support.waiting import wait_until

import ddip

pytest.importorskip("nbclient", reason="the notebook tests need nbclient (pip install nbclient)")
pytest.importorskip("ipykernel", reason="the notebook tests need ipykernel")


# In a cell: meet() returns on both ranks at the same time, so that what follows is as simultaneous as it gets.
MEET = """
import os, time
def meet(place):
    open(f'met-{place}-{r}', 'w').close()
    while not os.path.exists(f'met-{place}-{1 - r}'): time.sleep(0.001)
"""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: Any) -> Iterator[Kernel]:
    """One kernel with two workers for all tests that leave it as it was."""
    place = Home()
    environment = {**place.environment, "DDIP_PRELOAD": "", "JPY_SESSION_NAME": "", "PYTHONUNBUFFERED": ""}
    try:
        for kernel in open_kernel(environment, str(tmp_path_factory.mktemp("notebook"))):
            kernel.do("%load_ext ddip")
            kernel.do("%makedip -n 2 --settle 0.5")
            kernel.do("%%dip\nimport os, sys, time\nr = int(os.environ['RANK'])")
            yield kernel
            kernel.do("%makedip -k")
    finally:
        place.close()


@pytest.fixture
def notebook(shared: Kernel) -> Iterator[Kernel]:
    yield shared
    shared.do("%autodip off")


@pytest.fixture
def kernel(home: Path, tmp_path: Path) -> Iterator[Kernel]:
    """A kernel of the test's own, in the test's own folders."""
    yield from open_kernel({"JPY_SESSION_NAME": str(tmp_path / "own.ipynb")}, str(tmp_path))
    for name in ddip.groups():
        ddip.attach(name).stop()


def own_name(tmp_path: Path) -> str:
    (name,) = ddip.groups()
    assert name.startswith("own-"), f"named after the notebook: {name}"
    return name


# ---- text


def test_output_by_difference_is_one_block_of_text(notebook: Kernel) -> None:
    said = notebook.do("%%dip\nprint('same'); print('mine', r); print('end')")
    assert said.kinds == ["text/plain"] and said.lines == ["same", "[0] mine 0", "[1] mine 1", "end"]


def test_the_last_value_is_shown(notebook: Kernel) -> None:
    assert notebook.do("%%dip\n{'a': 1}").lines == ["{'a': 1}"]
    assert notebook.do("%%dip\nr").lines == ["[0] 0", "[1] 1"]


def test_both_streams_a_child_and_c_come_in(notebook: Kernel) -> None:
    said = notebook.do(
        "%%dip\nimport ctypes, subprocess\nprint('python', flush=True)\nprint('error', file=sys.stderr)\n"
        "subprocess.run('echo child', shell=True)\nctypes.CDLL(None).puts(b'native')\nNone"
    )
    assert sorted(said.lines) == ["child", "error", "native", "python"]


def test_a_cell_that_prints_nothing_leaves_no_output(notebook: Kernel) -> None:
    assert notebook.do("%%dip\nx = 1").all == [] and notebook.do("%%dip -q\nprint('x')").all == []


def test_plain_output_is_one_stream_with_ranks(notebook: Kernel) -> None:
    said = notebook.do("%%dip --plain\nprint('a'); print('b')")
    assert set(said.kinds) == {"stdout"} and sorted(said.lines) == ["[0] a", "[0] b", "[1] a", "[1] b"]


def test_the_footer_comes_after_the_output(notebook: Kernel) -> None:
    lines = notebook.do("%%dip -v\nprint('out')").lines
    assert lines[0] == "out" and re.fullmatch(
        r"rank 0: [\d.]+ s, memory \d+ MiB \([+-][\d.]+\), peak \d+ MiB", lines[1]
    ), lines


# ---- rich display


def test_a_picture_that_is_equal_on_all_ranks_is_shown_once(notebook: Kernel) -> None:
    said = notebook.do("%%dip\nfrom PIL import Image\nImage.new('RGB', (8, 8), 'red')")
    assert said.kinds == ["image/png"]


def test_pictures_that_differ_carry_their_rank(notebook: Kernel) -> None:
    said = notebook.do("%%dip\nfrom PIL import Image\nImage.new('RGB', (8, 8), ['red', 'blue'][r])")
    assert (
        sorted(said.kinds) == ["image/png", "image/png", "text/plain", "text/plain"]
        and said.kinds[::2] == ["text/plain"] * 2
    )
    assert sorted(said.of_type("text/plain")[::2]) == ["[0]", "[1]"]


def test_an_equal_picture_that_comes_late_is_not_shown_again(notebook: Kernel) -> None:
    said = notebook.do(
        "%%dip\nfrom PIL import Image\nfrom IPython.display import display\ntime.sleep(0.8 * r)\ndisplay(Image.new('RGB', (8, 8), 'green'))"
    )
    assert len(said.of_type("image/png")) == 1 and "[" not in said.text.replace("size=", ""), said.text


def test_a_picture_of_one_rank_alone_carries_its_rank(notebook: Kernel) -> None:
    said = notebook.do(
        "%%dip\nfrom PIL import Image\nfrom IPython.display import display\nif r == 1: display(Image.new('RGB', (8, 8)))"
    )
    assert said.kinds == ["text/plain", "image/png"] and said.lines[0] == "[1]"
    assert notebook.do("%%dip --ranks 1\nImage.new('RGB', (8, 8))").kinds == ["image/png"], (
        "where one rank runs there is nothing to tell apart"
    )


def test_matplotlib_figures_appear_between_the_text_around_them(notebook: Kernel) -> None:
    notebook.do("%%dip\nimport matplotlib.pyplot as plt\nplt.figure(figsize=(1, 1)); plt.show()")
    notebook.do("%%dip\n" + MEET)
    said = notebook.do(
        "%%dip\nprint('before')\nplt.figure(figsize=(1, 1)); plt.plot([1, 2, 3])\nmeet('figure'); plt.show()\nprint('after')"
    )
    assert said.kinds == ["text/plain", "image/png", "text/plain"]
    assert [output.data["text/plain"] for output in said.all][::2] == ["before", "after"]
    assert notebook.do("%%dip\nplt.plot([3, 2, 1]);").kinds == ["image/png"], (
        "shown at the cell's end without plt.show()"
    )


def test_matplotlib_under_autodip(notebook: Kernel) -> None:
    notebook.do("%autodip on")
    said = notebook.do("%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2]);")
    assert said.kinds == ["image/png"]
    assert notebook.do("%config InlineBackend.figure_format = 'svg'\nplt.plot([1, 2]);").of_type("image/svg+xml")
    notebook.do("%config InlineBackend.figure_format = 'png'")


def test_html_and_other_reprs_travel(notebook: Kernel) -> None:
    said = notebook.do(
        "%%dip\nfrom IPython.display import HTML, Markdown, Latex, display\ndisplay(HTML('<b>bold</b>'), Markdown('*x*'))"
    )
    assert said.of_type("text/html") == ["<b>bold</b>"] and said.of_type("text/markdown") == ["*x*"]
    said = notebook.do("%%dip\nclass Table:\n    def _repr_html_(self): return f'<i>{r}</i>'\nTable()")
    assert said.of_type("text/html") == ["<i>0</i>", "<i>1</i>"]


def test_a_display_that_is_updated_shows_its_last_state_once(notebook: Kernel) -> None:
    said = notebook.do(
        "%%dip\nfrom IPython.display import HTML, display\nhandle = display(HTML('first'), display_id=True)\n"
        "for i in range(5):\n    handle.update(HTML(f'state {i}'))"
    )
    assert said.of_type("text/html") == ["state 4"]


def test_a_display_of_an_earlier_cell_is_updated_where_it_is(notebook: Kernel) -> None:
    first = notebook.do(
        "%%dip\nfrom IPython.display import HTML, display\nhandle = display(HTML('first'), display_id=True)"
    )
    second = notebook.do("%%dip\nother = display(HTML(f'rank {r}'), display_id='named')")
    later = notebook.do("%%dip\nhandle.update(HTML('from another cell'))\ndisplay(HTML('own'))")
    assert later.of_type("text/html") == ["own"]
    assert first.of_type("text/html") == ["from another cell"]
    notebook.do("%%dip\nother.update(HTML(f'rank {r} again'))")
    assert second.of_type("text/html") == ["rank 0 again"], "of the rank that is shown"


def test_what_a_thread_says_after_its_cell_is_shown_under_that_cell(notebook: Kernel, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    code = f"""
import os, threading, time
from IPython.display import HTML, display
def late():
    while not os.path.exists({str(gate)!r}): time.sleep(0.005)
    print('late')
    if r == 0:
        handle.update(HTML('new'))
        display(HTML('begun late'), display_id=True).update(HTML('and changed'))
handle = display(HTML('old'), display_id=True)
threading.Thread(target=late).start()
print('in time')
"""
    own = "print(get_ipython().get_parent()['header']['msg_id'])"
    said = notebook.do(f"{own}\nget_ipython().run_cell_magic('dip', '', {code!r})")
    parent, *lines = said.lines
    assert lines[-1] == "in time" and "late" not in said.text
    notebook.do("%%dip\nprint('another cell')")
    gate.touch()
    messages = notebook.messages(
        lambda seen: (
            sum("] late" in str(one["content"]) for one in seen) == 2
            and any("changed" in str(one["content"]) for one in seen)
        )
    )
    late = [one for one in messages if one["msg_type"] in ("stream", "display_data", "update_display_data")]
    assert {one["parent_header"]["msg_id"] for one in late} == {parent}
    lines = [one["content"]["text"] for one in late if one["msg_type"] == "stream"]
    assert sorted(line for line in lines if "late" in line) == ["[0] late\n", "[1] late\n"]
    shown = [one["content"] for one in late if one["msg_type"] != "stream"]
    assert [one["data"]["text/html"] for one in shown] == ["new", "begun late", "and changed"]
    assert shown[1]["transient"] == shown[2]["transient"] != shown[0]["transient"]


def test_clear_output_wipes_what_each_rank_said_before(notebook: Kernel) -> None:
    assert notebook.do(
        "%%dip\nfrom IPython.display import clear_output\nprint('old', r); clear_output(); print('new')"
    ).lines == ["new"]
    assert notebook.do("%%dip\nfor i in range(10):\n    clear_output(wait=True)\n    print('frame', i)").lines == [
        "frame 9"
    ]


def test_clear_output_of_one_rank_leaves_the_others(notebook: Kernel) -> None:
    said = notebook.do(
        "%%dip\nfrom IPython.display import clear_output\nprint('old', r)\nif r == 0: clear_output()\nprint('new', r)"
    )
    assert sorted(said.lines) == ["[0] new 0", "[1] new 1", "[1] old 1"]


def test_clear_output_replaces_figures(notebook: Kernel) -> None:
    notebook.do("%%dip\n" + MEET)
    said = notebook.do(
        "%%dip\nimport matplotlib.pyplot as plt\nfrom IPython.display import clear_output\n"
        "for i in range(3):\n    clear_output(wait=True)\n    plt.figure(figsize=(1, 1)); plt.plot([1, i]); meet(f'frame {i}'); plt.show(); print('frame', i)"
    )
    assert len(said.of_type("image/png")) == 1 and said.lines[-1] == "frame 2" and "frame 1" not in said.text


# ---- bars


def test_tqdm_ends_as_one_bar_of_the_lowest_rank(notebook: Kernel) -> None:
    said = notebook.do("%%dip\nfrom tqdm.auto import tqdm\nfor i in tqdm(range(50)): time.sleep(0.002 * (r + 1))")
    assert (
        len(said.lines) == 1
        and "100%" in said.lines[0]
        and "50/50" in said.lines[0]
        and said.lines[0].startswith("[0] ")
    ), said.lines


def test_nested_tqdm_with_text_between_keeps_the_text_once(notebook: Kernel) -> None:
    said = notebook.do(
        "%%dip\nfrom tqdm.auto import tqdm\nfor i in tqdm(range(3), desc='outer'):\n"
        "    for j in tqdm(range(20), desc='inner', leave=False): time.sleep(0.001)\n    tqdm.write(f'epoch {i}')"
    )
    assert [line for line in said.lines if line.startswith("epoch")] == ["epoch 0", "epoch 1", "epoch 2"], said.lines
    assert sum("outer" in line for line in said.lines) == 1 and not any("inner" in line for line in said.lines), (
        said.lines
    )


def test_rich_and_fastprogress_leave_no_raw_markup(notebook: Kernel) -> None:
    said = notebook.do(
        "%%dip\nfrom rich.progress import track\nfor i in track(range(20), description='work'): time.sleep(0.005)"
    )
    assert len(said.lines) == 1 and "work" in said.lines[0] and "100%" in said.lines[0], said.lines
    said = notebook.do(
        "%%dip\nfrom fastprogress import progress_bar\nfor i in progress_bar(range(20)): time.sleep(0.005)"
    )
    assert "<" not in said.text.replace("[20/20 00:00<00:00]", "") and len(said.lines) <= 1, said.text


# ---- errors


def test_a_failing_rank_is_named_first_in_an_error_output(notebook: Kernel) -> None:
    said = notebook.run("%%dip\nprint('before')\nif r == 1: raise ValueError('boom')")
    assert said.lines[0] == "before" and said.error.ename == "CellFailed"
    assert said.error.evalue == "rank 1: ValueError: boom"
    text = "\n".join(said.lines[1:])
    assert text.startswith("rank 1 (1 of 2 ranks):") and "ValueError: boom" in text and "/ddip/" not in text


def test_tracebacks_and_help_are_in_colour(notebook: Kernel) -> None:
    said = notebook.run("%%dip\ndef shown(a, b=2):\n    'Says what it does.'\nshown?\n1/0")
    assert any("\x1b[" in line for line in said.error.traceback), said.error.traceback
    assert "\x1b[" not in said.error.evalue
    assert any("\x1b[" in text for text in said.of_type("text/plain")), said.all


def test_run_all_stops_at_the_failing_cell(home: Path, tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError

    sources = [
        "%load_ext ddip",
        "%makedip -n 2 --on-exit stop",
        "%%dip\nimport os\nassert os.environ['RANK'] != '1', 'here'",
        "%%dip local\nopen('after', 'w').close()",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    with pytest.raises(CellExecutionError) as error:
        NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute(
            env=dict(os.environ)
        )
    text = plain_text(str(error.value))
    assert "rank 1 (1 of 2 ranks)" in text and "AssertionError: here" in text
    assert not (tmp_path / "after").exists()
    wait_until(lambda: not processes.of_runtime(str(home)), 10, "--on-exit stop: the group went with the kernel")


def test_bad_input_is_one_line_on_stderr(notebook: Kernel) -> None:
    for source in (
        "%makedip --wrokers 2",
        "%%dip --raks 0\n1",
        "%dipull nothing_there",
        "%makedip -g 7",
        "%makedip --slurm",
    ):
        said = notebook.run(source)
        assert said.kinds == ["stderr"] and len(said.lines) == 1 and said.lines[0].startswith("UsageError: "), said.text


def test_input_where_nobody_can_answer_is_a_clear_error(notebook: Kernel) -> None:
    said = notebook.run("%%dip --ranks 0\ninput('name? ')")
    assert "input() needs a front end that can ask" in said.error.evalue


# ---- life


def test_workers_have_the_notebooks_folder_and_path(kernel: Kernel, tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("value = 'imported'")
    kernel.do("%load_ext ddip\nimport sys; sys.path.insert(0, 'extra')")
    os.makedirs(tmp_path / "extra")
    (tmp_path / "extra" / "further.py").write_text("value = 'further'")
    kernel.do("%makedip -n 2")
    assert own_name(tmp_path)
    assert kernel.do("%%dip\nimport os; print(os.getcwd())").lines == [str(tmp_path)]
    assert kernel.do("%%dip\nimport beside; print(beside.value)").lines == ["imported"]


def test_a_restarted_kernel_finds_its_group_and_every_line_once(home: Path, tmp_path: Path) -> None:
    environment = {"JPY_SESSION_NAME": str(tmp_path / "own.ipynb")}
    gate = tmp_path / "gate"
    for first in open_kernel(environment, str(tmp_path)):
        first.do("%load_ext ddip")
        first.do("%makedip -n 2")
        first.do(
            f"%%dip --async job\nimport os, time\nfor i in range(1, 1001):\n    print('line', i)\n    if i == 500:\n        while not os.path.exists({str(gate)!r}): time.sleep(0.01)"
        )
        pids = ddip.attach(own_name(tmp_path), "looker").pids
    for second in open_kernel(environment, str(tmp_path)):
        second.do("%load_ext ddip")
        second.do("import threading, pathlib\nthreading.Timer(1, pathlib.Path('gate').touch).start()")
        said = second.do("%makedip --attach")
        lines = [line for line in said.lines if line.startswith("line")]
        assert lines == [f"line {i}" for i in range(1, 1001)] or "elided" in said.text, said.text[:2000]
        assert ddip.attach(own_name(tmp_path), "looker").pids == pids
        assert "line 1000" not in second.do("%makedip").text, "what was shown is not shown again"
        assert sum(line.startswith("[0] line") for line in second.do("%diplog 1").lines) == 1000
        second.do("%makedip -k")


def test_the_first_cell_of_a_restarted_kernel_shows_what_was_missed(home: Path, tmp_path: Path) -> None:
    environment = {"JPY_SESSION_NAME": str(tmp_path / "own.ipynb")}
    for first in open_kernel(environment, str(tmp_path)):
        first.do("%load_ext ddip")
        first.do("%makedip -n 2")
        first.do("%%dip\nkeep = 'kept'; print('seen')")
        first.do(
            "%%dip --async job\nimport os, time\nprint('missed', flush=True)\nwhile not os.path.exists('gate'): time.sleep(0.01)\nprint('and its end')"
        )
    for second in open_kernel(environment, str(tmp_path)):
        second.do("%load_ext ddip\nimport threading, pathlib\nthreading.Timer(0.5, pathlib.Path('gate').touch).start()")
        lines = second.do("%%dip\nprint(keep)").lines
        assert lines[0].startswith("attached to group own-"), lines
        assert [line for line in lines if line in ("seen", "missed", "and its end", "kept")] == [
            "missed",
            "and its end",
            "kept",
        ], lines
        assert second.do("%%dip\nprint(keep)").lines == ["kept"]
        assert "missed" not in second.do("%makedip").text, "what was shown is not shown again"
        second.do("%makedip -k")


def test_a_kernel_that_is_killed_leaves_its_group(home: Path, tmp_path: Path) -> None:
    import signal

    for kernel in open_kernel({"JPY_SESSION_NAME": str(tmp_path / "own.ipynb")}, str(tmp_path)):
        kernel.do("%load_ext ddip")
        kernel.do("%makedip -n 2")
        kernel.do("%%dip\nkept = 41")
        pid = kernel.pid
        os.kill(pid, signal.SIGKILL)
    processes.assert_gone([pid], 10.0, "the kernel")
    group = ddip.attach(own_name(tmp_path), "looker")
    assert [result.value for result in group.run("kept + 1")] == [42, 42]
    group.stop()


def test_torch_trains_in_cells_and_replicas_agree(kernel: Kernel, tmp_path: Path, monkeypatch: Any) -> None:
    pytest.importorskip("torch")
    kernel.do("%load_ext ddip\nimport os; os.environ.pop('DDIP_PRELOAD', None)")
    kernel.do("%makedip -n 2")
    kernel.do("%autodip on")
    kernel.do("import torch, torch.distributed as dist\ndist.init_process_group('gloo')")
    kernel.do(
        "torch.manual_seed(0)\nmodel = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))\noptimizer = torch.optim.SGD(model.parameters(), 0.1)"
    )
    said = kernel.do(
        "torch.manual_seed(dist.get_rank())\nfor step in range(5):\n    loss = model(torch.randn(8, 4)).square().mean()\n"
        "    optimizer.zero_grad(); loss.backward(); optimizer.step()\n    print('step', step)"
    )
    assert said.lines == [f"step {i}" for i in range(5)]
    kernel.do("weights = model.module.weight.detach().clone()")
    kernel.do("%dipull -r all weights")
    assert kernel.do("%%dip local\nimport torch\nprint(torch.equal(*weights), weights[0].shape)").lines == [
        "True torch.Size([1, 4])"
    ]


def test_a_flood_is_elided_with_one_marker(kernel: Kernel) -> None:
    kernel.do("%load_ext ddip")
    kernel.do("%makedip -n 2")
    said = kernel.do("%%dip\nfor i in range(100_000): print('line', i)")
    assert len(said.text) < 200_000
    markers = [line for line in said.lines if "elided" in line]
    assert len(markers) == 1 and "%diplog" in markers[0]
    assert said.lines[0] == "line 0" and said.lines[-1] == "line 99999"
    counts = [int(number) for number in re.findall(r"\d+", markers[0])]
    missing = []
    for rank in range(2):
        told = [re.sub(r"^\[0-1\] |^\[\d\] ", "", line) for line in said.lines if not line.startswith(f"[{1 - rank}] ")]
        missing.append(100_000 - len([line for line in told if line.startswith("line")]))
    assert sorted({min(missing), max(missing)}) == sorted(counts), (missing, markers)
