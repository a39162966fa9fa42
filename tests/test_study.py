"""`ddip study staleness`: its arithmetic beside plain torch, its statistics beside the textbook, its life as a command."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.program import ROOT, ddip
from support.waiting import wait_until

pytest.importorskip("torch")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from ddip.study import command  # noqa: E402
from ddip.study.clock import plan_of, times_of  # noqa: E402
from ddip.study.confidence import Interval, interval, quantile, verdict  # noqa: E402
from ddip.study.memory import copies_of  # noqa: E402
from ddip.study.one_run import FINAL_RATE, computed  # noqa: E402
from ddip.study.plan import SWEEP_SEEDS, Cell, Study  # noqa: E402
from ddip.study.plots import accuracy_over_time, losses  # noqa: E402
from ddip.study.policies import POLICIES, choice_of, refusal, with_references  # noqa: E402
from ddip.study.results import VERSIONS  # noqa: E402
from ddip.study.settings import Run, Settings  # noqa: E402
from ddip.study.summary import Line, lines_of  # noqa: E402
from ddip.study.table import assumptions, tables_of  # noqa: E402
from ddip.study.task import accuracy_of, drawn, loss_of, stages_of  # noqa: E402
from ddip.study.tasks import TASKS  # noqa: E402
from torch import nn  # noqa: E402

SMALL = Settings(stages=2, steps=8, micro_batches=4, link=0.0, held_out=40)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """As a study's processes have it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def of(schedule: str, policy: str = "none", task: str = "vision", optimizer: str = "sgd", rate: float = 0.05) -> Run:
    return Run(task, schedule, policy, optimizer, rate, 3, "final")


def factor(step: int, steps: int) -> float:
    return FINAL_RATE + (1 - FINAL_RATE) * 0.5 * (1 + math.cos(math.pi * step / steps))


# ---- statistics


def test_quantiles_are_students() -> None:
    """Against the density, integrated."""
    for freedom in [*range(1, 31), 31, 40, 60, 120, 1000]:
        edges = np.linspace(0.0, quantile(freedom), 400_001)
        middle = (edges[1:] + edges[:-1]) / 2
        scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(freedom * math.pi)
        inside = 2 * scale * float(((1 + middle**2 / freedom) ** (-(freedom + 1) / 2)).sum()) * (edges[1] - edges[0])
        assert inside == pytest.approx(0.95, abs=6e-5), freedom


def test_an_interval_is_the_textbooks() -> None:
    values = [1.0, 2.0, 4.0, 4.5, 9.0]
    found = interval(values)
    assert found.mean == pytest.approx(np.mean(values))
    assert found.half == pytest.approx(2.776 * np.std(values, ddof=1) / math.sqrt(5))
    assert math.isnan(interval([]).mean)
    assert interval([3.0]).mean == 3.0 and math.isnan(interval([3.0]).half)
    assert interval([1.0, math.inf, 2.0]).mean == math.inf  # one that diverged is not left out


def test_the_verdict_has_three_words() -> None:
    none = Interval(1.0, 0.1)
    assert verdict(Interval(0.7, 0.1), none) == "helps"
    assert verdict(Interval(1.3, 0.1), none) == "hurts"
    assert verdict(Interval(0.85, 0.1), none) == verdict(Interval(1.15, 0.1), none) == "no difference"
    diverged = interval([1.0, math.inf])
    assert verdict(diverged, none) == "hurts" and verdict(none, diverged) == "helps"
    assert verdict(diverged, diverged) == "no difference"


# ---- tasks


@pytest.mark.parametrize("name", TASKS)
def test_a_task_is_fixed_by_its_seed_and_its_model_by_no_cut(name: str) -> None:
    task = TASKS[name]
    x, y = drawn(task, 400, 5)
    again, other = drawn(task, 400, 5), drawn(task, 400, 6)
    assert torch.equal(x, again[0]) and torch.equal(y, again[1]) and not torch.equal(x, other[0])
    shares = torch.bincount(y.reshape(-1)).double() / y.numel()
    assert shares.max() < 0.25  # always the same answer is no way out
    outputs = [nn.Sequential(*stages_of(task, stages, 1))(x[:4]) for stages in (1, 3, 4, 8)]
    assert all(torch.equal(outputs[0], output) for output in outputs)
    assert all(len(list(stage.parameters())) > 0 for stage in stages_of(task, 8, 1))


def test_a_letter_is_decided_by_the_two_before_and_no_later_one_is_seen() -> None:
    task = TASKS["language"]
    x, y = drawn(task, 2000, 1)
    assert torch.equal(x[:, 1:], y[:, :-1])
    contexts = x[:, :-1] * 16 + x[:, 1:]
    counts = torch.zeros(256, 16).index_put_((contexts, y[:, 1:]), torch.ones(()), accumulate=True)
    seen = counts[counts.sum(1) > 100]
    likeliest = seen.max(1).values / seen.sum(1)
    assert len(seen) > 80 and likeliest.mean() == pytest.approx(0.6, abs=0.03)
    model = nn.Sequential(*stages_of(task, 4, 1))
    changed = x[:8].clone()
    changed[:, 10:] = (changed[:, 10:] + 1) % 16
    assert torch.allclose(model(x[:8])[:, :10], model(changed)[:, :10], atol=1e-5)
    assert not torch.allclose(model(x[:8])[:, 10], model(changed)[:, 10], atol=1e-3)


# ---- runs


def plain_loop(task: str, rate: float, settings: Settings) -> list[tuple[float, float]]:
    """Ordinary training in one process, in synchronous batches: loss and accuracy at each evaluation."""
    what = TASKS[task]
    model = nn.Sequential(*stages_of(what, 1, 3))
    optimizer = torch.optim.SGD(model.parameters(), rate, momentum=0.9)
    x, y = drawn(what, settings.length * what.micro_batch, 7)
    held_x, held_y = drawn(what, settings.held_out, 8)
    batch, steps = what.micro_batch * settings.micro_batches, settings.length // settings.micro_batches
    found = []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * factor(step, steps)
        optimizer.zero_grad()
        part = slice(step * batch, (step + 1) * batch)
        loss_of(model(x[part]), y[part]).backward()
        optimizer.step()
        if (step + 1) * settings.micro_batches in settings.points:
            with torch.no_grad():
                output = model(held_x)
            found.append((loss_of(output, held_y).item(), accuracy_of(output, held_y)))
    return found


@pytest.mark.parametrize("task", TASKS)
def test_a_synchronous_run_is_a_plain_training_loop(task: str) -> None:
    settings = replace(SMALL, stages=3, steps=16)
    row = computed(of("1f1b", task=task), settings)
    expected = plain_loop(task, 0.05, settings)
    assert len(expected) == 4 and expected[0][0] != pytest.approx(expected[-1][0], rel=1e-3)
    assert row["losses"] == pytest.approx([loss for loss, _ in expected], rel=1e-4)
    assert row["accuracies"] == pytest.approx([accuracy for _, accuracy in expected], abs=0.03)
    assert row["loss"] == row["losses"][-1] and row["accuracy"] == row["accuracies"][-1]
    assert row["cosine_by_stage"] == pytest.approx([1.0] * 3, abs=1e-5)  # every gradient is fresh
    assert row["moved"] is None and row["prediction_error"] is None and row["staleness"] == 0


def test_where_nothing_is_stale_policies_and_schedules_are_equal_to_the_bit() -> None:
    settings = replace(SMALL, accumulate=4)
    rows = [computed(of(*way), settings) for way in (("seq",), ("1f1b",), ("1f1b", "stash"), ("1f1b", "msnag"))]
    assert all(row["losses"] == rows[0]["losses"] for row in rows)
    stale = computed(of("async_1f1b"), settings)
    assert stale["losses"] != rows[0]["losses"]


def delayed(run: Run, settings: Settings) -> tuple[float, float, float]:
    """Two stages, stashed weights, one micro-batch a step: micro-batch k meets version k−1 of the first stage and k of the
    second. Loss at the end, mean move of the first stage and mean cosine at the evaluations, all by hand."""
    task = TASKS[run.task]
    stages = stages_of(task, 2, run.seed)
    optimizers = [torch.optim.SGD(stage.parameters(), run.rate, momentum=0.9) for stage in stages]
    x, y = drawn(task, settings.length * task.micro_batch, 2 * run.seed + 1)
    old = [{name: p.detach().clone() for name, p in stages[0].named_parameters()} for _ in range(2)]
    moved, cosines = [], []
    for k in range(settings.length):
        part = slice(k * task.micro_batch, (k + 1) * task.micro_batch)
        now = {name: p.detach().clone() for name, p in stages[0].named_parameters()}
        gradients = []
        for weights in (now, old[0]):  # fresh, then stale: the last one is applied
            stages[0].load_state_dict(weights)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss_of(stages[1](stages[0](x[part])), y[part]).backward()
            gradients.append(torch.cat([p.grad.reshape(-1) for p in stages[0].parameters()]))
        stages[0].load_state_dict(now)
        if k > 0:  # the first two both meet version 0; no step lies between for the first of them
            moved.append(sum((now[name] - old[0][name]).double().square().sum() for name in now).sqrt().item())
        if k + 1 in settings.points:
            cosines.append(nn.functional.cosine_similarity(gradients[0], gradients[1], dim=0).item())
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = run.rate * factor(k, settings.length)
            optimizer.step()
        old = [now, now]
    held_x, held_y = drawn(task, settings.held_out, 2 * run.seed + 2)
    loss = loss_of(stages[1](stages[0](held_x)), held_y).item()
    return loss, sum(moved) / len(moved), sum(cosines) / len(cosines)


@pytest.mark.parametrize("task", TASKS)
def test_a_stale_run_is_one_written_by_hand(task: str) -> None:
    run = of("async_1f1b", "stash", task, rate=0.3 if task == "language" else 0.05)
    row = computed(run, SMALL)
    loss, moved, cosine = delayed(run, SMALL)
    assert row["loss"] == pytest.approx(loss, rel=1e-4)
    assert row["moved"] == pytest.approx(moved, rel=1e-3)
    assert row["cosine"] == pytest.approx(cosine, abs=1e-5) and row["cosine"] < 0.9995
    assert row["prediction_error"] == 1.0  # it used what was stale


def test_momentum_predicts_nearer_than_stale_weights_and_diverging_runs_say_so() -> None:
    settings = replace(SMALL, steps=24)
    assert 0 < computed(of("async_1f1b", "msnag"), settings)["prediction_error"] < 1
    wild = computed(of("async_1f1b", rate=1e6), settings)
    assert wild["loss"] == math.inf and wild["accuracy"] == 0 and wild["time_to_target"] is None


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_runs(name: str) -> None:
    policy, optimizer = choice_of(name)
    row = computed(of("async_1f1b", policy, "language", optimizer, 0.01), replace(SMALL, steps=4, accumulate=2))
    assert math.isfinite(row["loss"]) and row["copies"] >= (1 if name == "none" else 2)


# ---- time and memory


def test_the_clock_is_that_of_the_formulas() -> None:
    settings = Settings(stages=4, steps=64, micro_batches=8, cost=3.0, link=0.0)
    assert times_of(settings, "1f1b")[-1] == pytest.approx(8 * (8 + 3) * 3.0)  # 8 batches, (p−1)/(m+p−1) of it lost
    assert times_of(settings, "seq")[-1] == pytest.approx(64 * 4 * 3.0)
    slow = replace(settings, link=1.5)
    assert times_of(slow, "seq")[-1] == pytest.approx(64 * (4 * 3.0 + 2 * 3 * 1.5))
    for known in (settings, slow):
        times = times_of(known, "async_1f1b")  # full: one micro-batch after each c
        assert times[-1] - times[3] == pytest.approx(3.0 * (known.points[-1] - known.points[3]), rel=0.02)
    assert times_of(slow, "1f1b")[-1] == min(
        plan_of(slow, name, wide).simulate().makespan
        for name, wide in (("gpipe", False), ("1f1b", False), ("1f1b", True))
    )


def test_a_target_is_reached_at_the_time_of_the_first_evaluation_that_has_it() -> None:
    settings = replace(SMALL, steps=64, target=0.2)
    row = computed(of("async_1f1b"), settings)
    place = next(place for place, accuracy in enumerate(row["accuracies"]) if accuracy >= 0.2)
    assert place < len(settings.points) and row["time_to_target"] == times_of(settings, "async_1f1b")[place]
    assert row["time"] == times_of(settings, "async_1f1b")[-1]


def test_copies_are_those_that_were_measured() -> None:
    """Three in flight on the first stage, two steps between forward and backward: as docs/pipeline_weights.md."""
    settings = Settings(stages=3, link=0.0, steps=16)
    documented = (ROOT / "docs" / "pipeline_weights.md").read_text(encoding="utf-8")
    for policy in ("none", "stash", "msnag", "msnag+stash"):
        line = next(line for line in documented.splitlines() if line.startswith(f"| {policy} | keep graph | fp32"))
        assert copies_of(settings, "async_1f1b", policy)[0] == int(line.split("|")[-2]), policy
    assert copies_of(settings, "async_1f1b", "stash") == [3, 2, 1]  # nothing is stale on the last stage
    assert copies_of(settings, "1f1b", "stash") == [1, 1, 1]
    assert copies_of(replace(settings, accumulate=4), "async_1f1b", "stash") == [2, 2, 1]
    assert copies_of(replace(settings, accumulate=4), "2bw", "none") == [2, 2, 2]
    assert copies_of(settings, "async_1f1b", "gap_aware") == [5, 4, 3]
    assert copies_of(settings, "async_1f1b", "msnag") == [2, 2, 1]


# ---- the plan


def row_with(loss: float, **more: Any) -> dict[str, Any]:
    return {
        "loss": loss, "accuracy": 0.5, "target": 0.5, "time_to_target": None, "time": 10.0, "staleness": 1.0, "moved": None,
        "prediction_error": None, "cosine": 1.0, "copies": 2, "bytes": 2048, "losses": [loss, loss], "accuracies": [0.4, 0.5],
        "moved_by_stage": [], "cosine_by_stage": [], **more,
    }  # fmt: skip


def study_of(*policies: str, **more: Any) -> Study:
    asked: dict[str, Any] = {"seeds": 2, "sweep_seeds": 2, "rates": [0.5, 1.0, 2.0], "settings": SMALL, **more}
    return Study(tasks=["vision"], choices=[choice_of(name) for name in policies], **asked)


def test_each_policy_gets_the_rate_that_was_best_on_other_seeds() -> None:
    study = study_of("msnag")
    usual = TASKS["vision"].rates["sgd"]
    rows = {run: row_with(5.0 + abs(run.rate - 2 * usual)) for run in study.sweep()}
    stash = Cell("vision", "async_1f1b", "msnag", "sgd")
    for run in rows:
        if (
            run.policy == "msnag"
        ):  # the middle one is best in the mean; the lowest has one lucky seed, the highest diverges once
            rows[run] = row_with({0.5: [1.0, 9.0], 1.0: [3.0, 3.5], 2.0: [0.1, math.inf]}[
                round(run.rate / usual, 6)][run.seed - SWEEP_SEEDS])  # fmt: skip
    assert study.best_rate(stash, rows) == usual and not study.at_edge(stash, usual)
    none = Cell("vision", "async_1f1b", "none", "sgd")
    assert study.best_rate(none, rows) == 2 * usual and study.at_edge(none, 2 * usual)
    final = study.final(rows)
    assert {run.rate for run in final if run.policy == "msnag"} == {usual}
    assert not {run.seed for run in final} & {run.seed for run in study.sweep()}
    assert len(study.sweep()) == 4 * 3 * 2 and len(final) == 4 * 2  # seq, 1f1b, none, msnag


def test_every_optimizer_has_its_own_none_to_be_compared_with() -> None:
    choices = with_references([choice_of("adamw"), choice_of("stash"), choice_of("stash@adamw"), choice_of("none")])
    assert choices == [("none", "sgd"), ("stash", "sgd"), ("none", "adamw"), ("adamw", "adamw"), ("stash", "adamw")]
    assert choice_of("nesterov") == ("nesterov", "nadam") and choice_of("spike+lwp") == ("spike+lwp", "sgd")
    assert [name for name in POLICIES if not refusal("2bw", name)] == ["none", "stash"]
    assert not any(refusal("async_1f1b", name) for name in POLICIES)


def lines_with(losses_of: dict[str, list[float]]) -> tuple[Study, list[Line]]:
    study = study_of(*losses_of, rates=[1.0], seeds=3)
    rows = {}
    for run in study.final({}):
        loss = losses_of[run.policy][run.seed] if run.schedule == "async_1f1b" else 0.5 + run.seed / 100
        more = {"moved": 1.0, "prediction_error": 1.5 if run.policy == "lwp" else 0.5} if run.policy != "none" else {}
        rows[run] = row_with(loss, **more)
    return study, lines_of(study, rows)


def test_the_table_says_what_helps_what_does_not_and_what_hurts(tmp_path: Path) -> None:
    study, lines = lines_with(
        {"none": [1.0, 1.1, 1.2], "stash": [1.05, 1.1, 1.15], "msnag": [0.6, 0.61, 0.62], "lwp": [2.0, 2.1, 2.2],
         "spike": [1.0, math.inf, 1.0]}
    )  # fmt: skip
    assert {line.cell.policy: line.verdict for line in lines if line.cell.schedule == "async_1f1b"} == {
        "none": "", "stash": "no difference", "msnag": "helps", "lwp": "hurts", "spike": "hurts",
    }  # fmt: skip
    text = tables_of(study, lines)
    assert "stale weights cost something here (loss 1.100 ± 0.248 against 0.510 ± 0.025)" in text
    assert "helps: msnag; hurts: lwp, spike; no difference: stash" in text
    assert "predicts worse than the stale weights were: lwp." in text and "diverged (1 of 3)" in text
    row = next(line for line in text.splitlines() if line.split()[:1] == ["msnag"])
    assert row.split()[2:6] == ["0.03", "0.610", "±", "0.025"] and row.endswith("helps")
    for picture in (losses(study, lines), accuracy_over_time(study, lines)):
        ElementTree.fromstring(picture)
    drawing = ElementTree.fromstring(losses(study, lines))
    name = "{http://www.w3.org/2000/svg}"
    assert len(drawing.findall(f"{name}circle")) == 6 and len(drawing.findall(f".//{name}title")) == 6
    places = {dot[0].text.split(":")[0]: float(dot.get("cx")) for dot in drawing.findall(f"{name}circle")}  # type: ignore
    assert places["(synchronous)"] < places["msnag"] < places["none"] < places["lwp"]
    assert len(ElementTree.fromstring(accuracy_over_time(study, lines)).findall(f"{name}polyline")) == len(lines) == 7


# ---- the command

TINY = ["--quick", "--tasks", "vision", "--steps", "4", "--micro-batches", "2", "--stages", "2", "--policies", "msnag"]


def run_in(out: Path, *more: str, jobs: int = 1) -> None:
    assert command.main(["staleness", *TINY, "--rates", "0.5,1", "--jobs", str(jobs), "--out", str(out), *more]) == 0


def test_equal_studies_have_equal_files_and_one_that_was_stopped_goes_on(tmp_path: Path, capsys: Any) -> None:
    run_in(tmp_path / "a", jobs=2)
    first = capsys.readouterr()
    assert "sweep: 8 of 8 runs" in first.err and "final: 8 of 8 runs" in first.err
    whole = (tmp_path / "a" / "results.csv").read_bytes()
    rows = list(csv.DictReader(whole.decode().splitlines()))
    assert len(rows) == 16 and {row["phase"] for row in rows} == {"sweep", "final"}
    names = {"results.csv", "summary.csv", "loss_vision.svg", "accuracy_vision.svg"}
    assert {path.name for path in (tmp_path / "a").iterdir()} == names
    # Stopped in the middle of a row, in the middle of the last phase, and in another order.
    lines = whole.splitlines(keepends=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "results.csv").write_bytes(b"".join([lines[0], *reversed(lines[1:12])]) + lines[12][:40])
    run_in(tmp_path / "b")
    second = capsys.readouterr()
    assert "sweep: 8 of 8 runs are there already" in second.err and "final: 5 of 5 runs" in second.err
    for name in names:
        assert (tmp_path / "b" / name).read_bytes() == (tmp_path / "a" / name).read_bytes(), name
    assert second.out.replace(str(tmp_path / "b"), "") == first.out.replace(str(tmp_path / "a"), "")
    summary = list(csv.DictReader((tmp_path / "a" / "summary.csv").read_text().splitlines()))
    assert [row["schedule"] for row in summary] == ["seq", "1f1b", "async_1f1b", "async_1f1b"]
    final = [float(row["loss"]) for row in rows if row["phase"] == "final" and row["policy"] == "msnag"]
    assert float(summary[3]["loss"]) == pytest.approx(sum(final) / 2)
    # Another study in the same folder is refused and changes nothing.
    assert command.main(["staleness", *TINY, "--steps", "8", "--out", str(tmp_path / "a")]) == 2
    said = capsys.readouterr().err
    assert "results.csv: line 2: steps is 4, this study's is 8; expected another folder for --out" in said
    assert (tmp_path / "a" / "results.csv").read_bytes() == whole


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_ctrl_c_keeps_the_runs_that_ended_and_leaves_no_process(sent: signal.Signals, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [*TINY, "--seeds", "200", "--jobs", "1", "--out", str(out)]
    study = subprocess.Popen(
        [sys.executable, "-m", "ddip.study.command", "staleness", *words], stderr=subprocess.PIPE, text=True,
        stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # who runs tests in the background ignores it
    )  # fmt: skip
    assert study.stderr is not None
    line = study.stderr.readline()
    assert "final: 1 of 800 runs" in line, line
    (child,) = Path(f"/proc/{study.pid}/task/{study.pid}/children").read_text().split()
    study.send_signal(sent)
    printed, said = study.communicate(timeout=50)
    assert study.returncode == (130 if sent == signal.SIGINT else -signal.SIGKILL) and printed == ""
    wait_until(lambda: not Path(f"/proc/{child}").exists(), 20, "the end of its process")
    if sent == signal.SIGINT:
        assert said.strip().splitlines()[-1].endswith(f"runs are kept in {out}, the same command goes on")
        assert "Traceback" not in said
    assert len(list(csv.DictReader((out / "results.csv").read_text().splitlines()))) >= 1


def test_beside_a_none_that_diverged_nothing_is_said_to_help() -> None:
    study, lines = lines_with({"none": [1.0, math.inf, 1.2], "stash": [1.05, 1.1, 1.15], "lwp": [2.0, math.inf, 2.2]})
    own = {line.cell.policy: line.verdict for line in lines if line.cell.schedule == "async_1f1b"}
    assert own == {"none": "", "stash": "none diverged in 1 of 3", "lwp": "none diverged in 1 of 3"}
    text = tables_of(study, lines)
    assert "none diverged in 1 of 3: nothing can be compared with it" in text
    assert "helps:" not in text and "stale weights cost" not in text
    ElementTree.fromstring(losses(study, lines))


def test_fresh_weights_are_those_of_one_process_and_not_of_a_policy() -> None:
    settings = replace(SMALL, schedule="seq")
    study = study_of("none", "stash", rates=[1.0], settings=settings)
    rows = {run: row_with(1.0 + run.seed / 100 + (run.policy == "stash")) for run in study.final({})}
    text = tables_of(study, lines_of(study, rows))
    assert "stale weights" not in "\n".join(text.splitlines()[:-8]) and "hurts: stash" in text


def test_the_target_is_in_the_picture_also_where_nobody_came_near_it() -> None:
    study, lines = lines_with({"none": [1.0, 1.1, 1.2]})
    for accuracies in ([0.0, 0.0], [0.01, 0.02]):
        of = [replace(line, accuracies=accuracies) for line in lines]
        drawing = ElementTree.fromstring(accuracy_over_time(study, of))
        target = drawing.findall("{http://www.w3.org/2000/svg}line")[0]
        assert 18 < float(str(target.get("y1"))) < 380


def test_the_table_says_that_nesterov_has_other_settings_than_its_none() -> None:
    assert "nesterov is a preset" in "\n".join(assumptions(study_of("nesterov")))
    assert "nesterov" not in "\n".join(assumptions(study_of("nadam")))


def test_results_of_another_version_are_not_mixed_in(tmp_path: Path, capsys: Any) -> None:
    run_in(tmp_path)
    path = tmp_path / "results.csv"
    whole = path.read_text()
    row = next(csv.DictReader(whole.splitlines()))
    assert {name: row[name] for name in VERSIONS} == VERSIONS and VERSIONS["torch"] == torch.__version__
    capsys.readouterr()
    for changed, said in (
        (
            whole.replace(f",{torch.__version__}\n", ",1.0\n", 1),
            f"line 2: version of torch is 1.0, this study's is {torch.__version__}",
        ),
        (whole.replace(",ddip,torch\n", "\n", 1), "line 1: of a version of ddip that did not say which"),
    ):
        path.write_text(changed)
        assert command.main(["staleness", *TINY, "--out", str(tmp_path)]) == 2
        assert said in capsys.readouterr().err


BAD = [
    (["--schedule", "seq,1f1b"], "--schedule seq,1f1b: expected one, as seq"),
    (["--tasks", "vison"], "--tasks vison: expected vision, language; did you mean vision?"),
    (["--policies", "msang"], "--policies msang: expected msnag, "),
    (["--policies", "msnag@adam"], "--policies msnag@adam: staleness 'msnag' with optimizer adam; expected sgd"),
    (
        ["--policies", "stash@sdg"],
        "--policies stash@sdg: expected an optimizer of sgd, adam, adamw, nadam; did you mean sgd?",
    ),
    (["--policies", "msnag+lwp"], "--policies msnag+lwp: expected at most one prediction"),
    (["--policies", "nesterov@adam"], "--policies nesterov@adam: nesterov is a preset of nadam"),
    (["--policies", "none,,stash"], "--policies 'none,,stash': expected a list with commas between"),
    (["--policies", "msnag", "--schedule", "paci"], "--policies msnag with schedule paci: "),
    (["--schedule", "async1f1b"], "--schedule async1f1b: expected seq, gpipe, 1f1b, async_1f1b"),
    (["--seeds", "1"], "--seeds 1: expected a whole number from 2 to 999"),
    (["--stages", "9"], "--stages 9: expected a whole number from 1 to 8"),
    (["--steps", "-3"], "--steps -3: expected a whole number from 2 to 1000000"),
    (["--rates", "1,nan"], "--rates nan: expected a number from 1e-06 to 1e+06"),
    (["--rates", "0"], "--rates 0: expected a number from 1e-06 to 1e+06"),
    (["--link", "-1"], "--link -1: expected a number from 0 to 1e+09"),
    (["--target", "70"], "--target 70: expected a number from 1e-06 to 1"),
    (["--max-staleness", "2"], "--max-staleness with schedule async_1f1b; expected virtual_async"),
    (["--schedule", "2bw", "--accumulate", "2"], ""),
    (["--jobs", "0"], "--jobs 0: expected a whole number from 1 to 1024"),
    (["--out", "/nowhere/at/all"], "--out /nowhere/at/all: there is no folder /nowhere/at"),
    (["--out", "/dev/null"], "--out /dev/null: not a folder"),
]


@pytest.mark.parametrize(("words", "said"), BAD)
def test_what_is_wrong_is_said_in_one_line_and_nothing_is_changed(
    words: list[str], said: str, tmp_path: Path, capsys: Any
) -> None:
    asked = ["--out", str(tmp_path / "out"), *[f"{a}={b}" for a, b in zip(words[::2], words[1::2], strict=True)]]
    assert command.main(["staleness", *asked]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1 and told.err.startswith(f"ddip study staleness: {said}"), (
        told.err
    )
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_no_result_is_refused_with_its_line(tmp_path: Path, capsys: Any) -> None:
    run_in(tmp_path, "--json")
    told = json.loads(capsys.readouterr().out)
    assert [line["verdict"] for line in told["lines"]][:3] == ["", "", ""] and len(told["lines"][3]["loss"]) == 2
    path = tmp_path / "results.csv"
    good = path.read_text().splitlines(keepends=True)
    for lines, said in [
        (["a,b\n", *good[1:]], "line 1: not the results of a study"),
        ([*good[:3], "1,2\n", *good[3:]], "line 4: 2 values; expected"),
        ([*good[:2], good[2].replace(",0.0", ",zero", 1), *good[3:]], "line 3: 'zero"),
    ]:
        path.write_text("".join(lines))
        assert command.main(["staleness", *TINY, "--out", str(tmp_path)]) == 2
        told = capsys.readouterr()
        assert told.out == "" and told.err.count("\n") == 1 and f"results.csv: {said}" in told.err, told.err
        assert path.read_text() == "".join(lines)


def test_a_run_that_fails_ends_the_study_with_one_line_and_keeps_the_others(
    tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    monkeypatch.setenv("PYTHONSTARTUP", "")
    monkeypatch.setattr("ddip.study.crew.sys.executable", "/bin/false")
    assert command.main(["staleness", *TINY, "--out", str(tmp_path / "out")]) == 1
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1
    assert told.err.startswith("ddip study staleness: vision, seq, none with sgd, rate ")
    assert told.err.endswith("its process ended (exit code 1)\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "ddip study: expected a study: staleness"),
        (["stalenes", "--out", "x"], "ddip study stalenes: expected staleness; did you mean staleness?"),
        (["staleness"], "ddip study staleness: expected --out DIR"),
        (["staleness", "x", "--out", "y"], "ddip study staleness: one word too many: x"),
        (["staleness", "--out", "x", "--sedes", "5"], "ddip study --sedes: there is no such flag; did you mean --seeds?"),
        (["staleness", "--out", "x", "--tasks", "visoin"], "ddip study staleness: --tasks visoin: expected vision, language; did you mean vision?"),
    ],
)  # fmt: skip
def test_the_program_finds_the_study(words: list[str], said: str) -> None:
    done = ddip("study", *words, code=2)
    assert done.stdout == "" and done.stderr == said + "\n"


def test_the_program_passes_its_flags_on(tmp_path: Path) -> None:
    done = ddip("study", "staleness", *TINY, "--out", str(tmp_path / "out"), "--json")
    told = json.loads(done.stdout)
    assert [(line["schedule"], line["policy"], line["seeds"]) for line in told["lines"]] == [
        ("seq", "none", 2), ("1f1b", "none", 2), ("async_1f1b", "none", 2), ("async_1f1b", "msnag", 2),
    ]  # fmt: skip
