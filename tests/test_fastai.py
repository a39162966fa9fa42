"""%makedip -a fastai: an ordinary Learner on two ranks learns what it learns in one process that has the joint batches."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.libraries import ROOT, python_with

import ddip

pytest.importorskip("torch")
if (ROOT / ".setup" / "without_engine").exists():
    pytest.skip("make setup left the data plane out", allow_module_level=True)
pytestmark = pytest.mark.timeout(180)

IMPORTS = "import contextlib, torch, ddip, support.fastai_work as work\nfrom fastai.basics import *\n"


@pytest.fixture(scope="module")
def python() -> str:
    return python_with("fastai")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A runtime folder for the groups that all tests here share."""
    import shutil
    import tempfile

    folder = tempfile.mkdtemp(prefix="dr-", dir="/tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DDIP_RUNTIME_DIR", folder)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        patch.delenv("DDIP_PRELOAD", raising=False)
        yield Path(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def started(environment: Path, python: str) -> Iterator[Any]:
    with ddip.Group(2, app="fastai", python=python, name="learners", threads=1, timeout=120, settle=1) as group:
        group.run(IMPORTS)
        yield group


@pytest.fixture
def two(started: Any) -> Any:
    """Two ranks in the app, whatever a test before has done."""
    if started.info()["app"] != "fastai":
        started.use_app("fastai")
    return started


@pytest.fixture(scope="module")
def one(environment: Path, python: str) -> Iterator[Any]:
    """One process without any of it."""
    with ddip.Group(1, python=python, name="alone", threads=1, timeout=120) as group:
        group.run(IMPORTS)
        yield group


def values(group: Any, code: str, **options: Any) -> list[Any]:
    return [result.value for result in group.run(code, **options)]


def both(one: Any, two: Any, code: str, bs: int = 4) -> tuple[Any, Any]:
    """The value in one process with the joint batches, and the value that both ranks have."""
    (alone,) = values(one, f"bs = {bs * 2}\n{code}")
    first, second = values(two, f"bs = {bs}\n{code}")
    assert first == second
    return alone, first


def close(a: Any, b: Any) -> bool:
    return len(a) == len(b) > 0 and all(abs(x - y) < 2e-5 for x, y in zip(a, b, strict=True))


def test_a_fit_learns_what_one_process_learns_of_the_joint_batches(one: Any, two: Any) -> None:
    """45 samples in batches of 2 × 4: the last step has 3 on one rank and 2 on the other."""
    code = "learn = work.regression(bs); learn.fit(3, 0.1); [work.weights(learn), [float(x) for x in learn.recorder.losses]]"
    (weights, losses), (our_weights, our_losses) = both(one, two, code)
    assert close(weights, our_weights)
    assert close(losses, our_losses) and len(losses) == 3 * 6
    assert values(two, "torch.distributed.get_backend()") == ["ddip"] * 2
    (start,) = values(one, "work.weights(work.regression(bs))")
    assert not close(start, weights)


def test_a_last_step_with_fewer_samples_than_ranks(one: Any, two: Any) -> None:
    alone, ours = both(one, two, "learn = work.regression(bs, train=17); learn.fit(2, 0.1); work.weights(learn)")
    assert close(alone, ours)


def test_metrics_are_those_of_the_whole_set(one: Any, two: Any) -> None:
    """21 samples in batches of 8: neither divides by the ranks."""
    code = (
        "learn = work.classification(bs); learn.fit(2, 0.1); [[float(x) for x in row] for row in learn.recorder.values]"
    )
    alone, ours = both(one, two, code)
    assert all(close(a, b) for a, b in zip(alone, ours, strict=True))
    assert int(ours[-1][-1]) == 21, "the metric saw every sample once"
    alone, ours = both(one, two, "[float(x) for x in learn.validate()]")
    assert close(alone, ours)
    alone, ours = both(one, two, "[t.flatten().tolist() for t in learn.get_preds(with_loss=True)]")
    assert [len(column) for column in ours] == [42, 21, 21]
    assert all(close(a, b) for a, b in zip(alone, ours, strict=True))
    alone, ours = both(one, two, "[t.flatten().tolist() for t in learn.get_preds(with_input=True)]")
    assert [len(column) for column in ours] == [126, 42, 21]
    assert all(close(a, b) for a, b in zip(alone, ours, strict=True))


@pytest.mark.parametrize("loader", ["", "torch_loader=True", "workers=2"])
def test_the_ranks_train_on_different_samples_that_cover_the_set_and_are_shuffled_anew(two: Any, loader: str) -> None:
    first, second = values(two, f"learn = work.numbered(23, 3, {loader}); learn.fit(2); learn.numbers.epochs")
    for a, b in zip(first, second, strict=True):
        assert sorted(a + b) == list(range(23))
        assert len(a) == 12 and len(b) == 11
    assert first[0] != first[1] and first[0] != sorted(first[0])


def test_random_splits_and_new_models_are_alike_and_dropout_is_not(two: Any) -> None:
    code = """
picture = RandomSplitter()(list(range(50)))[1]
class Noise(Callback):
    def before_batch(self): self.learn.noise = torch.rand(1).item()
model = nn.Linear(6, 1)
learn = Learner(work.regression(4).dls, model, loss_func=work.MSELossFlat(), cbs=Noise())
before = torch.rand(1).item(); learn.fit(1); after = torch.rand(1).item()
[list(picture), model.weight.tolist(), before, after], learn.noise
"""
    (first, noise), (second, other_noise) = values(two, code)
    assert first == second and first[2] != first[3] and noise != other_noise


def test_sets_of_different_length_are_refused_in_one_line(two: Any) -> None:
    with pytest.raises(ddip.RankError) as error:
        two.run("work.regression(4, train=40 + ddip.rank()).fit(1)")
    assert "the training set has 40 on rank 0, 41 on rank 1 samples: every rank must make the same one" in str(
        error.value
    )


def test_bars_and_tables_are_rank_0s(two: Any) -> None:
    first, second = two.run("learn = work.regression(4); learn.fit(1); print('done')")
    assert "train_loss" in first.stdout and "100.00%" in first.stdout
    assert second.stdout == "done\n" and second.stderr == ""
    first, second = two.run("with learn.no_bar(): learn.fit(1)")
    assert "[0, " in first.stdout and second.stdout == ""
    assert values(two, "learn.progress.run, learn.logger is print") == [(True, True)] * 2


def test_lr_find_gives_one_curve_and_puts_the_model_back(one: Any, two: Any, tmp_path: Path) -> None:
    code = f"""
learn = work.regression(bs, train=64, path={str(tmp_path)!r}, opt_func=Adam)
learn.fit(1, 0.01)
before = work.weights(learn)
found = learn.lr_find(show_plot=False)
[[float(x) for x in learn.recorder.lrs], [float(x) for x in learn.recorder.losses], found.valley, work.weights(learn) == before]
"""
    alone, ours = both(one, two, code)
    assert len(ours[0]) > 90 and close(alone[0], ours[0])
    assert close(alone[1][:70], ours[1][:70])  # later it diverges, and rounding with it
    assert ours[2] == pytest.approx(alone[2]) and ours[3] is True
    assert not [path for path in (tmp_path / "models").iterdir()], "nothing is left of it"
    alone, ours = both(one, two, "learn.fit(1, 0.01); work.weights(learn)")
    assert close(alone, ours), "the optimizer's state is back too"


def test_fits_in_a_row_one_cycle_and_fine_tuning_with_a_frozen_half(one: Any, two: Any) -> None:
    code = """
learn = work.regression(bs, opt_func=Adam)
learn.fit_one_cycle(2, 0.02); learn.fine_tune(1, 0.02); learn.freeze(); learn.fit(1, 0.01); learn.unfreeze(); learn.fit(1, 0.01)
work.weights(learn)
"""
    alone, ours = both(one, two, code)
    assert close(alone, ours)


def test_a_record_that_differs_between_ranks_is_rank_0s(two: Any) -> None:
    code = """
def mine(pred, y): return torch.tensor(7.0 + ddip.rank())
learn = work.regression(4, metrics=mine); learn.fit(1)
[learn.recorder.values[-1][-1], learn.final_record[-1], learn.validate()[-1]]
"""
    assert values(two, code) == [[7.0, 7.0, 7.0]] * 2


def test_validation_has_the_running_statistics_of_rank_0(two: Any) -> None:
    code = """
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
learn = Learner(work.regression(4).dls, model, loss_func=work.MSELossFlat())
learn.fit(1, 0.05)
[learn.final_record[1], learn.validate()[0], *model[1].running_mean.tolist()]
"""
    first, second = values(two, code)
    assert first == second and first[0] == first[1]


def test_callbacks_that_stop_and_save_decide_alike(one: Any, two: Any, tmp_path: Path) -> None:
    code = f"""
learn = work.regression(bs, path={str(tmp_path)!r})
cbs = [work.SaveModelCallback(), work.EarlyStoppingCallback(patience=1, min_delta=0.2)]
learn.fit(9, 0.1, cbs=cbs)
[float(len(learn.recorder.values)), *work.weights(learn)]
"""
    alone, ours = both(one, two, code)
    assert close(alone, ours) and 1 < ours[0] < 9


def test_options_are_those_of_data_parallel(one: Any, two: Any) -> None:
    two.run("from ddip.apps import fastai as app; app.options.update(compress='bf16')")
    try:
        alone, ours = both(one, two, "learn = work.regression(bs); learn.fit(1, 0.1); work.weights(learn)")
    finally:
        two.run("app.options.clear()")
    assert not close(alone, ours) and all(abs(a - b) < 2e-3 for a, b in zip(alone, ours, strict=True))


def test_batch_norm_over_all_ranks(one: Any, two: Any) -> None:
    code = """
model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
with torch.no_grad():
    for index, parameter in enumerate(model.parameters()): parameter.copy_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter) + index / 10)
if ddip.world_size() > 1: model = ddip.SyncBatchNorm.convert(model)
learn = Learner(work.regression(bs, train=40).dls, model, loss_func=work.MSELossFlat(), opt_func=SGD)
learn.fit(2, 0.05)
[*work.weights(learn), *learn.model[1].running_mean.tolist(), *map(float, learn.final_record)]
"""
    alone, ours = both(one, two, code)
    assert close(alone, ours)


def test_save_load_and_export(two: Any, python: str, tmp_path: Path) -> None:
    code = f"""
learn = work.regression(4, path={str(tmp_path)!r}); learn.fit(1, 0.1)
saved = work.weights(learn); learn.save('kept'); learn.fit(1, 0.1)
moved = work.weights(learn) != saved
learn.load('kept'); learn.export('whole.pkl'); again = load_learner({str(tmp_path / "whole.pkl")!r})
[moved, work.weights(learn) == saved, work.weights(again) == saved, again.get_preds(dl=learn.dls.valid)[0].flatten().tolist()]
"""
    first, second = values(two, code)
    assert first == second and first[:3] == [True, True, True] and len(first[3]) == 21
    # Where there is no ddip, it is an ordinary Learner.
    loaded = subprocess.run(
        [python, "-c", f"""
import sys; sys.modules["ddip"] = None
import support.fastai_work as work
from fastai.basics import *
learn = load_learner({str(tmp_path / "whole.pkl")!r})
dl = work.DataLoader(work.samples(21, 2), bs=8)
print(learn.get_preds(dl=dl)[0].flatten().tolist())
"""],
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert loaded.returncode == 0, loaded.stderr
    assert close(eval(loaded.stdout.splitlines()[-1]), first[3])


def test_a_gans_two_phases(one: Any, two: Any) -> None:
    alone, ours = both(one, two, "learn = work.gan(bs); learn.fit(3, 0.05); work.weights(learn)")
    assert close(alone, ours)
    (start,) = values(one, "work.weights(work.gan(bs))")
    moved = [abs(a - b) > 1e-6 for a, b in zip(start, alone, strict=True)]
    assert sum(moved[:67]) > 50 and sum(moved[67:]) > 30, "both the generator and the critic were trained"


def test_after_an_error_on_one_rank_the_next_fit_works(two: Any) -> None:
    """Rank 0 does the step that rank 1 does not: the optimizers' states differ."""
    two.run("stop = work.StopAt(3, ValueError('not today'), ddip.rank() == 1)")
    two.run("learn = work.regression(4, cbs=stop, opt_func=Adam)")
    code = "learn.fit(2, 0.1)"
    with pytest.raises(ddip.RankError, match="not today"):
        two.run(code)
    # Nothing waits for the others any more: one rank may go on by itself.
    values(two, "learn.model(torch.ones(1, 6)).sum().backward(); learn.opt.zero_grad()", ranks=[0])
    two.run("learn.remove_cb(work.StopAt)")
    first, second = values(two, "learn.fit(2, 0.1); work.weights(learn)")
    assert first == second
    assert two.run("learn.fit(1)")[1].stdout == "", "rank 1 is still quiet"


def test_after_an_error_that_the_cell_catches_the_next_fit_works(one: Any, two: Any) -> None:
    code = """
learn = work.regression(bs, opt_func=Adam)
with contextlib.suppress(ZeroDivisionError):
    learn.fit(1, 0.02, cbs=work.StopAt(2, ZeroDivisionError("by nothing")))
learn.opt.zero_grad()
learn.fit(1, 0.02)
work.weights(learn)
"""
    alone, ours = both(one, two, code)
    assert close(alone, ours)


def test_after_a_stop_in_the_middle_the_next_fit_works(two: Any) -> None:
    two.run("learn = work.regression(4, train=64, opt_func=Adam)")
    cell = two.run("with learn.no_bar(): learn.fit(100_000, 0.001, cbs=work.Tell())", wait=False)
    next(line for _, line in cell.lines() if line == "epoch 2 is over")
    two.interrupt()
    assert cell.wait(20)
    first, second = values(two, "learn.fit(2, 0.01); work.weights(learn)")
    assert first == second


def test_a_cell_of_some_ranks_waits_for_nobody(two: Any, tmp_path: Path) -> None:
    two.run(f"learn = work.classification(4, path={str(tmp_path)!r}); learn.fit(1, 0.1); learn.save('kept')")
    begun = time.monotonic()
    (alone,) = values(two, "[float(x) for x in learn.validate()]", ranks=[1])
    assert alone == values(two, "[float(x) for x in learn.validate()]")[0]
    values(two, "learn.load('kept'); learn.fit(1, 0.1)", ranks=[0])
    weights = values(two, "work.weights(learn)")
    assert weights[0] != weights[1], "rank 0 trained by itself"
    assert time.monotonic() - begun < 20


def test_leaving_restores_the_originals(two: Any) -> None:
    look = """
from fastcore.foundation import defaults
import fastai.torch_core as core, fastai.learner, sys
[[c.__name__ for c in defaults.callbacks], core.maybe_gather.__module__, core.num_distrib.__module__, core.num_distrib(),
 torch.distributed.is_initialized(), any(type(f).__module__ == 'ddip.when_imported' for f in sys.meta_path), type(learn.cbs[-1]).__name__]
"""
    two.run("learn = work.regression(4); learn.fit(1)")
    inside = values(two, look)[0]
    assert "DdipCallback" in inside[0] and inside[1].startswith("ddip.") and inside[4] is True
    two.use_app("none")
    ordinary = ["TrainEvalCallback", "Recorder", "CastToTensor", "ProgressCallback"]
    assert (
        values(two, look)
        == [[ordinary, "fastai.torch_core", "fastai.torch_core", 2, False, False, "ProgressCallback"]] * 2
    )
    assert not any("DdipCallback" in name for name in values(two, "[type(c).__name__ for c in learn.cbs]")[0])
    assert two.info()["app"] == ""
    two.restart([1])
    assert values(two, "from ddip import apps; apps.current()") == ["", ""]
    two.use_app("fastai")
    assert values(two, "apps.current()") == ["fastai", "fastai"]
    two.restart([1])
    assert values(two, "from ddip import apps; apps.current()") == ["fastai", "fastai"]
    two.restart()
    two.run(IMPORTS)
    assert values(two, "learn = work.regression(4); learn.fit(1); 1") == [1, 1]


def test_the_others_begin_when_rank_0_is_through(two: Any, tmp_path: Path) -> None:
    """As fastai's rank0_first: it downloads, they find the files."""
    code = f"""
path = Path({str(tmp_path / "data")!r})
if ddip.rank() == 0: import time; time.sleep(0.2); path.touch()
path.exists()
"""
    cell = two.submit({"kind": "cell", "code": code, "want_value": True, "app_command": "rank0_first"})
    assert [result.value for result in two.finish(cell)] == [True, True]


def test_a_cell_can_leave_by_a_function(two: Any) -> None:
    assert values(two, "from ddip import apps; apps.leave(); apps.current()") == ["", ""]
    assert values(two, "apps.enter('fastai'); apps.current()") == ["fastai", "fastai"]


def test_unloading_the_extension_leaves_the_app(started: Any, environment: Path, python: str) -> None:
    """In a kernel of its own: nothing of fastai is ever imported there."""
    script = f"""
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "ddip")
shell.run_line_magic("makedip", "--name unloaded -n 2 --on-exit stop -a fastai -t 120 --python {python}")
shell.run_cell_magic("dip", "", "from fastai.basics import *\\nprint('callbacks', [c.__name__ for c in defaults.callbacks])")
shell.run_line_magic("makedip", "-a none --name unloaded")
shell.run_cell_magic("dip", "", "print('meanwhile', [c.__name__ for c in defaults.callbacks])")
shell.run_line_magic("makedip", "-a fastai --name unloaded")
shell.run_cell_magic("dip", "-a alone", "from ddip.apps.fastai import session; print('all of us', session.together())")
shell.run_cell_magic("dip", "", "print('all of us', session.together())")
shell.run_line_magic("dipper", "group")
shell.run_line_magic("unload_ext", "ddip")
group = shell.user_ns["group"]
print("left", group.run("from ddip import apps; [apps.current(), [c.__name__ for c in defaults.callbacks]]")[0].value, group.info()["app"])
print("here", "fastai" in sys.modules)
group.stop()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, env=os.environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "callbacks ['TrainEvalCallback', 'Recorder', 'CastToTensor', 'DdipCallback']" in done.stdout, done.stdout
    assert "meanwhile ['TrainEvalCallback', 'Recorder', 'CastToTensor']" in done.stdout, done.stdout
    assert "the app is left" in done.stdout and "the workers are in app fastai" in done.stdout
    assert "all of us False" in done.stdout and "all of us True" in done.stdout
    assert "left ['', ['TrainEvalCallback', 'Recorder', 'CastToTensor']]" in done.stdout, done.stdout
    assert "here False" in done.stdout
