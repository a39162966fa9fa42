"""Pipelines of C++ programs: what their ledgers say, computed again in Python, has the same bits."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build" / "release" / "pipeline_test"
if not PROGRAM.exists():
    pytest.skip("the C++ tests are not built", allow_module_level=True)


# As mlp and data of src/ddip/pipeline/pipeline_test.cpp: the same seeds give the same numbers in both languages.


def stages() -> list[Any]:
    torch.manual_seed(0)
    first, last = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)
    return [torch.nn.Sequential(first, torch.nn.Tanh(), torch.nn.Dropout(0.2)), torch.nn.Sequential(last)]


def batches() -> list[tuple[Any, Any]]:
    torch.manual_seed(7)
    return [(torch.randn(size, 6), torch.randn(size, 3)) for size in (12, 12, 12, 12, 12, 7)]


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("ledgers")
    done = subprocess.run(
        [PROGRAM, "--gtest_filter=CppPipeline.ledgers_for_replay"],
        env={**os.environ, "DDIP_TEST_LEDGERS": str(folder)}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return sorted(folder.iterdir())


def test_what_ran_in_cpp_is_computed_again_in_python_bit_for_bit(ledgers: list[Path]) -> None:
    from ddip.pipeline.replay import replay

    torch.set_num_threads(1)
    seen = set()
    for path in ledgers:
        header = json.loads(path.read_text().splitlines()[0])
        cell = (header["schedule"], header["staleness"], header["optimizer"][0]["name"])
        found = replay(path, stages(), torch.nn.functional.mse_loss, batches())
        assert found.difference is None, (cell, found.difference)
        scaled = header["precision"] == "fp16"
        assert found.steps > 10 or header["accumulate"] > 4 or (scaled and found.steps > 1), cell
        assert ('"left_out":true' in path.read_text()) == scaled
        seen.add(cell)
    assert len(ledgers) == 31 and len({schedule for schedule, _, _ in seen}) == 7
    assert {name for _, _, name in seen} == {"sgd", "adam", "adamw"}


def test_a_lie_in_such_a_ledger_is_found(ledgers: list[Path], tmp_path: Path) -> None:
    from ddip.pipeline.replay import replay

    torch.set_num_threads(1)
    lines = [json.loads(line) for line in ledgers[5].read_text().splitlines()]
    assert lines[0]["staleness"] == "msnag"
    rates = next(line["weights"]["rates"] for line in lines if line.get("weights", {}).get("kind") == "predicted")
    rates[0][0] *= 1.001
    (tmp_path / "lie").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = replay(tmp_path / "lie", stages(), torch.nn.functional.mse_loss, batches())
    assert found.difference is not None


def test_such_a_ledger_has_the_policys_options(ledgers: list[Path]) -> None:
    headers = [json.loads(path.read_text().splitlines()[0]) for path in ledgers]
    assert [(header["staleness"], header["options"]) for header in headers if header["options"]] == [
        ("adam", {"second_decays": True}),
        ("pipemare", {"annealing_steps": 9, "pipemare_decay": 0.5}),
        ("gap_aware", {"gap_decay": 0.9, "gap_eps": 1e-3}),
    ]


def test_a_pipeline_of_cpp_ends_where_one_of_python_does(ledgers: list[Path]) -> None:
    """The simulator plans by itself: it must come to the same weights as the C++ run's ledger says."""
    from ddip.pipeline.simulate import simulate

    torch.set_num_threads(1)
    lines = [json.loads(line) for line in ledgers[4].read_text().splitlines()]
    assert lines[0]["staleness"] == "stash" and lines[0]["schedule"] == "async_1f1b"
    found = simulate(  # the first run of two
        stages(), torch.nn.functional.mse_loss, batches()[:3], schedule="async_1f1b", staleness="stash", micro_batches=4,
        optimizer=lambda p: torch.optim.SGD(p, 0.05, momentum=0.9), seed=5,
    )  # fmt: skip
    steps = [line for line in lines if line["kind"] == "step" and line["stage"] == 0]
    first = [record.values for record in found.ledger.records if record.kind == "step" and record.stage == 0]
    assert len(first) == 12 and [line["sha256"] for line in steps[:12]] == [line["sha256"] for line in first]


def test_ledgers_of_cpp_say_what_the_scheduler_and_the_plan_say(ledgers: list[Path]) -> None:
    """Not only what was used: replay believes rates, shares and delays that the ledger names."""
    lines = [json.loads(line) for line in ledgers[6].read_text().splitlines()]
    assert lines[0]["staleness"] == "msnag" and max(lines[0]["mean_staleness"]) > 2
    seen = [line["weights"] for line in lines if line.get("weights", {}).get("kind") == "predicted"]
    assert max(weights["n"] for weights in seen) == 4
    for weights in seen:
        rates = [0.05 * 0.97 ** (weights["version"] + step) for step in range(weights["n"])]
        assert weights["rates"] == [rates]
    clipped = json.loads(ledgers[8].read_text().splitlines()[0])
    assert (clipped["clipping"], clipped["norm_delay"]) == ("global", 2), "staleness 1, and one step more"
    steps = [json.loads(line) for line in ledgers[24].read_text().splitlines()[1:]]
    shares = [line.get("share") for line in steps if line["kind"] == "step" and line["stage"] == 0]
    assert shares == [None, None, [2, 5]] * 2
    assert {tuple(line["rates"]) for line in steps if line["kind"] == "step"} == {(0.05,)}


# As Plain of src/ddip/pipeline/graph_test.cpp, by layer.


class Layers(torch.nn.Module):  # type: ignore[misc]
    """Some layers of it: called with what their stage takes, by name, and gives what it gives."""

    def __init__(self, modules: dict[str, Any], names: list[str], takes: list[str], gives: list[str]) -> None:
        super().__init__()
        for name in names:
            if name in modules:
                self.add_module(name, modules[name])
        self.names, self.takes, self.gives = names, takes, gives

    def forward(self, *came: Any) -> Any:
        v = dict(zip(self.takes, came, strict=True))
        for name in self.names:
            match name:
                case "down":
                    v[name] = torch.tanh(self.down(v["image"]))
                case "split":
                    v[name] = (torch.tanh(self.split.left(v["down"])), self.split.right(v["down"]).sin())
                case "left":
                    v[name] = v["split"][0]
                case "deep":
                    v[name] = torch.relu(self.deep(v["left"]))
                case "join":
                    v[name] = self.join.deep(v["deep"]) + self.join.skip(v["down"])
                case "late":
                    v[name] = self.late(v["image"])
                case "sum":
                    v[name] = v["join"] + v["late"] * v["split"][1].sum(1, keepdim=True)
        return {name: v[name] for name in self.gives} if len(self.gives) > 1 else v[self.gives[0]]


def graph_stages(names: list[list[str]], header: dict[str, Any]) -> list[Any]:
    torch.manual_seed(0)
    linear, group = torch.nn.Linear, torch.nn.ModuleDict
    modules = {
        "down": linear(6, 8),
        "split": group({"left": linear(8, 8), "right": linear(8, 4)}),
        "deep": linear(8, 8),
        "join": group({"deep": linear(8, 3), "skip": linear(8, 3)}),
        "late": linear(6, 3),
    }
    return [
        Layers(modules, some, takes, gives)
        for some, takes, gives in zip(names, header["takes"], header["gives"], strict=True)
    ]


@pytest.fixture(scope="module")
def graph_ledgers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graphs")
    done = subprocess.run(
        [PROGRAM, "--gtest_filter=CppGraph.ledgers_for_replay"],
        env={**os.environ, "DDIP_TEST_LEDGERS": str(folder)}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def batches_of_graphs() -> list[tuple[torch.Tensor, torch.Tensor]]:
    torch.manual_seed(7)
    return [(torch.randn(size, 6), torch.randn(size, 3)) for size in (8, 8, 8, 5)]


def test_stages_of_a_graph_are_computed_again_bit_for_bit(graph_ledgers: Path) -> None:
    from ddip.pipeline.replay import replay

    torch.set_num_threads(1)
    two = [["down", "late"], ["split", "left", "deep", "join", "sum"]]
    three = [["down"], ["split", "left", "deep"], ["join", "late", "sum"]]
    last_still = [["down"], ["split", "left", "deep", "join", "late"], ["sum"]]
    middle_still = [["down", "split"], ["left"], ["deep", "join", "late", "sum"]]
    for number, names in enumerate([two, two, three, three, last_still, middle_still]):
        path = graph_ledgers / f"graph_{number}.jsonl"
        header = json.loads(path.read_text().splitlines()[0])
        found = replay(path, graph_stages(names, header), torch.nn.functional.mse_loss, batches_of_graphs())
        assert found.difference is None, (number, found.difference)
        trained = len(names) - (names in (last_still, middle_still))
        assert found.steps == (4 if header["schedule"] == "1f1b" else 16) * trained, number
    header = json.loads((graph_ledgers / "graph_2.jsonl").read_text().splitlines()[0])
    assert header["takes"] == [["image"], ["down"], ["image", "down", "split", "deep"]]
    assert header["gives"] == [["down", "image"], ["split", "deep"], ["sum"]]


class Lends(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, table: torch.nn.Linear) -> None:
        super().__init__()
        self.table = table

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"shallow": torch.tanh(self.table(x)), "weight": self.table.weight.clone()}


class Borrows(torch.nn.Module):  # type: ignore[misc]
    def __init__(self, deep: torch.nn.Linear) -> None:
        super().__init__()
        self.deep = deep

    def forward(self, shallow: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.matmul(torch.tanh(self.deep(shallow)), weight)[:, :3]


@pytest.mark.parametrize("policy", ["stash", "msnag", "none"])
def test_a_weight_that_is_lent_is_of_one_version_in_both_stages(graph_ledgers: Path, policy: str) -> None:
    """Computed again, where the lender's forward gives the version that the ledger says, and the borrower has no other."""
    from ddip.pipeline.replay import replay

    torch.set_num_threads(1)
    torch.manual_seed(0)
    stages = [Lends(torch.nn.Linear(6, 8)), Borrows(torch.nn.Linear(8, 8))]
    path = graph_ledgers / f"tied_{policy}.jsonl"
    found = replay(path, stages, torch.nn.functional.mse_loss, batches_of_graphs())
    assert found.difference is None, found.difference
    assert found.steps == 32
    lines = [json.loads(line) for line in path.read_text().splitlines()[1:]]
    lent = [line["weights"]["n"] for line in lines if line["kind"] == "forward" and line["stage"] == 0]
    assert len(lent) == 16 and max(lent) > 0, "the weight is lent while steps are to come"
