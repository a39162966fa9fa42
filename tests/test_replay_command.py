"""`ddip replay`: answers, exit codes, and ledgers that are not ledgers."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from ddip.errors import ConfigError
from ddip.pipeline.ledger import read
from ddip.pipeline.replay_command import main
from ddip.pipeline.simulate import simulate

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "python" / "ddip" / "_bin" / "ddip"

SOURCE = """
import torch
from torch import nn

def loss(output, y):
    return (output - y).square().sum(), len(y)

def pipeline():
    torch.manual_seed(4)
    stages = [nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2)), nn.Linear(4, 2)]
    return stages, loss, [(torch.randn(4, 3), torch.randn(4, 2)) for _ in range(5)]

def raises():
    raise ValueError("no data\\nhere")

def nonsense():
    return 3

def other():
    stages, loss, batches = pipeline()
    stages[1].weight.data[0, 0] += 1
    return stages, loss, batches

def ends():
    raise SystemExit(0)

def ending_loss(output, y):
    raise SystemExit(0)

def ends_later():
    stages, _, batches = pipeline()
    return stages, ending_loss, batches

def talks():
    print("reading")
    return pipeline()

def fewer():
    stages, loss, batches = pipeline()
    return stages[:1], loss, batches
"""


@pytest.fixture(autouse=True)
def programs_leave_no_trace(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name in ("train", "evil", "script"):
        sys.modules.pop(name, None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A program and its ledger."""
    (tmp_path / "train.py").write_text(SOURCE)
    space: dict[str, Any] = {}
    exec(SOURCE, space)
    stages, loss, batches = space["pipeline"]()
    found = simulate(stages, loss, batches, optimizer=lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
                     staleness="msnag", micro_batches=2, program="train.py:pipeline")  # fmt: skip
    found.ledger.write(tmp_path / "ledger.jsonl")
    return tmp_path


def ddip(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(PROGRAM), "replay", *words], cwd=cwd, capture_output=True, text=True, timeout=120)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


def write(folder: Path, lines: list[dict[str, Any]]) -> None:
    (folder / "ledger.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_the_command_says_identical_and_finds_the_first_difference(folder: Path) -> None:
    answer = ddip(str(folder / "ledger.jsonl"), cwd=ROOT)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout.splitlines()[0] == "2 stages, async_1f1b, msnag, 10 micro-batches"
    assert "60 of 60 actions, 20 steps" in answer.stdout and answer.stdout.endswith("\nidentical\n")
    lines = lines_of(folder)
    index = next(i for i, line in enumerate(lines) if line["kind"] == "forward" and line["weights"]["version"] == 3)
    lines[index]["weights"]["version"] = 2
    write(folder, lines)
    answer = ddip("ledger.jsonl", "--json", cwd=folder)
    assert answer.returncode == 1
    told = json.loads(answer.stdout)
    assert not told["identical"] and told["difference"].startswith(f"line {index + 1}: stage 0, forward, micro-batch")


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize(("words", "code", "says"), [
    (["--program", "train.py:raises"], 1, "train.py:raises failed: ValueError: no data here (train.py line 14)"),
    (["--program", "train.py:ends"], 1, "train.py:ends failed: SystemExit: 0 (train.py line 25)"),
    (["--program", "train.py:ends_later"], 1, "the program failed: SystemExit: 0 (train.py line 28)"),
    (["--program", "train.py:nonsense"], 2, "gave int; expected (stages, loss, batches)"),
    (["--program", "train.py:missing"], 2, "train.py has no function missing"),
    (["--program", "train.py"], 2, "expected FILE.py:factory"),
    (["--program", "nowhere.py:f"], 2, "no such file"),
    (["--program", "train.py:fewer"], 2, "the ledger has 2 stages, the program 1"),
    (["--program", "train.py:other"], 1, ""),
    (["--jsn"], 2, "unrecognized arguments"),
])  # fmt: skip
def test_wrong_requests_get_one_line(folder: Path, words: list[str], code: int, says: str, monkeypatch: pytest.MonkeyPatch,
                                     capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.chdir(folder)
    got, out, err = call(capsys, "ledger.jsonl", *words)
    assert got == code and says in err
    if says:
        assert err.startswith("ddip replay: ") and err.count("\n") == 1 and out == ""
    else:
        assert "first difference: line 1: stage 1, version 0: initial weights" in out


def test_a_program_that_ends_while_it_is_imported_has_failed(folder: Path, monkeypatch: pytest.MonkeyPatch,
                                                             capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.chdir(folder)
    (folder / "script.py").write_text("import sys\nsys.exit(0)\n")
    code, out, err = call(capsys, "ledger.jsonl", "--program", "script.py:main")
    assert (code, out) == (1, "") and err == "ddip replay: script.py failed: SystemExit: 0 (script.py line 2)\n"


def test_what_the_program_prints_is_not_in_the_answer_for_programs(folder: Path, monkeypatch: pytest.MonkeyPatch,
                                                                   capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    monkeypatch.chdir(folder)
    code, out, err = call(capsys, "ledger.jsonl", "--json", "--program", "train.py:talks")
    assert code == 0 and json.loads(out)["identical"] and "reading" in err
    assert "reading" in call(capsys, "ledger.jsonl", "--program", "train.py:talks")[1]


def test_a_ledger_cannot_name_any_file_of_the_machine(folder: Path, tmp_path_factory: pytest.TempPathFactory,
                                                      monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "evil.py").write_text(f"open({str(elsewhere / 'ran')!r}, 'w')\ndef f(): pass\n")
    monkeypatch.chdir(folder)
    for program in (f"{elsewhere}/evil.py:f", f"../{elsewhere.name}/evil.py:f"):
        lines = lines_of(folder)
        lines[0]["program"] = program
        write(folder, lines)
        code, _, err = call(capsys, "ledger.jsonl")
        assert code == 2 and "expected --program" in err
    assert not (elsewhere / "ran").exists()


def changed(key: str, value: Any, line: int = 0) -> Callable[[list[dict[str, Any]]], None]:
    def change(lines: list[dict[str, Any]]) -> None:
        place: Any = lines[line]
        *path, last = key.split(".")
        for part in path:
            place = place[int(part)] if part.isdigit() else place[part]
        if value is None:
            del place[last]
        else:
            place[last] = value

    return change


BAD: list[tuple[Callable[[list[dict[str, Any]]], None], str]] = [
    (changed("kind", "forward"), "line 1: not a ledger"),
    (changed("format", 2), "line 1: format 2; this ddip reads format 1"),
    (changed("seed", None), "line 1: seed is missing"),
    (changed("program", "\udc80.py:f"), 'line 1: program is "\\udc80.py:f"; expected text that can be printed or null'),
    (changed("torch", "\x1b[2J"), 'line 1: torch is "\\u001b[2J"; expected text that can be printed'),
    (changed("micro_batch", 10**4000, 1), "line 2: micro_batch is 1000"),
    (changed("sed", 3), "line 1: unknown key 'sed'; did you mean seed?"),
    (changed("stages", 3), "line 1: optimizer has 2 entries; expected one per stage, 3"),
    (changed("threads", 0), "line 1: threads 0; expected at least 1"),
    (changed("precision", "fp8"), "line 1: precision 'fp8'; expected fp32 or bf16 or fp16"),
    (changed("optimizer.0.name", "adan"), "line 1: optimizer 'adan'; expected sgd, adam, adamw, nadam; did you mean"),
    (changed("optimizer.0.groups.0.betas", [1.0]), "line 1: group of sgd: unknown key 'betas'"),
    (changed("staleness", "msnagg"), "staleness 'msnagg'"),
    (
        changed("kind", "foward", 4),
        "line 5: kind 'foward'; expected forward, backward, weight_gradient, step, drain, run; did you mean forward?",
    ),
    (changed("kind", [], 4), "line 5: kind []; expected forward"),
    (
        changed("weights", {"kind": "predicted", "version": 0, "rates": [[0.1]]}, 1),
        "line 2: weights: expected either n or distance",
    ),
    (
        changed("optimizer.0.groups.0.momentum", 1e300),
        "line 1: group of sgd: momentum is 1e+300; expected a number that fits a float32",
    ),
    (changed("options", {"gap_eps": 1}), "option 'gap_eps' of msnag"),
    (changed("stage", 2, 4), "line 5: stage 2; expected less than 2"),
    (changed("stage", True, 4), "line 5: stage is true; expected a whole number from 0 on"),
    (changed("stage", -1, 4), "line 5: stage is -1; expected a whole number from 0 on"),
    (changed("micro_batch", 10, 1), "line 2: micro_batch 10; expected less than 10"),
    (changed("weights.kind", "new", 1), "line 2: weights of kind 'new'; expected true, perturbed, predicted"),
    (changed("weights.version", "1", 1), 'line 2: weights: version is "1"; expected a whole number from 0 on'),
    (changed("count", None, 1), "line 2: expected either count or samples"),
]


@pytest.mark.parametrize(("change", "says"), BAD, ids=[says for _, says in BAD])
def test_bad_ledgers_are_refused_with_the_line(folder: Path, change: Callable[[list[dict[str, Any]]], None], says: str,
                                               capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    lines = lines_of(folder)
    change(lines)
    write(folder, lines)
    code, out, err = call(capsys, str(folder / "ledger.jsonl"))
    assert (code, out) == (2, "") and says in err and err.count("\n") == 1


@pytest.mark.parametrize(("text", "says"), [
    (b"", "line 1: the file is empty"),
    (b"\xff\xfe", "line 1: not a JSON object"),
    (b"[1]\n", "line 1: not a JSON object"),
    (b"{\n", "line 1: not a JSON object"),
    (b"[" * 100000, "line 1: not a JSON object"),
    (b'{"kind": "header", "kind": "header"}', "line 1: 'kind' stands there twice"),
    (b'{"kind": "header", "format": NaN}', "line 1: NaN is not a number"),
    (b'{"kind": "header", "format": 1e999}', "line 1: format inf"),
    (b" " * (1 << 20) + b"{}", "line 1: longer than 1 MiB"),
    (b'{"kind": "header", "format": ' + b"1" * 5000 + b"}", "line 1: not a JSON object (Exceeds the limit"),
])  # fmt: skip
def test_what_is_no_ledger_is_refused(text: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "l").write_bytes(text)
    with pytest.raises(ConfigError) as error:
        read(tmp_path / "l")
    assert says in str(error.value)


def test_files_that_are_none_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "missing", tmp_path, tmp_path / "fifo", Path("/dev/zero")):
        assert call(capsys, str(path))[0] == 2


def test_replay_needs_nothing_of_what_runs_pipelines(folder: Path) -> None:
    """An oracle that shared code with what it judges would share its mistakes."""
    script = (
        "import sys; from ddip.pipeline.replay_command import main; code = main([sys.argv[1]]);"
        "print([name for name in sys.modules if name.startswith('ddip.')]); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder / "ledger.jsonl")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "python")},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.splitlines()[-1].strip("[]").replace("'", "").split(", "))
    judged = {
        "_engine",
        "pipeline.front",
        "pipeline.stepping",
        "pipeline.batches",
        "pipeline.writer",
        "pipeline.report",
    }
    assert "ddip.pipeline.replay" in loaded and not loaded & {f"ddip.{name}" for name in judged}


def test_damaged_ledgers_never_raise_anything_else(folder: Path) -> None:
    """Bytes changed, lines lost or doubled: refused in one line, or read."""
    whole, rng, refused = (folder / "ledger.jsonl").read_bytes(), random.Random(1), 0
    for _ in range(400):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(damaged))
            damaged[place : place + rng.randint(0, 2)] = bytes(
                rng.choices(b'{}[]",:0-9eE.\\\x00\xff\n', k=rng.randint(0, 2))
            )
        (folder / "damaged").write_bytes(damaged)
        try:
            read(folder / "damaged")
        except ConfigError as error:
            refused += 1
            assert "\n" not in str(error) and "line " in str(error)
    assert refused > 200


def test_an_ordinary_ledger_passes_the_checks_of_reading(folder: Path) -> None:
    ledger = read(folder / "ledger.jsonl")
    assert len(ledger.records) == 60 and {r.kind for r in ledger.records} == {"forward", "backward", "step"}
