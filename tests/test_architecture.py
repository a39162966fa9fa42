"""The include arrows of DESIGN §3: a folder of src/ddip may include only what lies below it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Folder -> folders directly below it. What lies below those may be included too.
ARROWS: dict[str, set[str]] = {
    "base": set(),
    "net": {"base"},
    "wire": {"net"},
    "membership": {"base"},
    "launch": {"base"},
    "coordinator": {"wire", "membership", "launch"},
    "agent": {"wire"},
    "client": {"wire"},
    "comm": {"base"},
    "mpi": {"comm"},
    "tensors": {"comm", "checkpoint"},
    "data_parallel": {"tensors"},
    "staleness": {"tensors"},
    "schedule": {"base"},
    "pipeline": {"staleness", "schedule", "partition", "checkpoint"},
    "checkpoint": {"base"},
    "partition": {"base"},
    "data": {"base"},
    "parquet_events": {"data"},
    "models": {"data_parallel", "data", "checkpoint"},
    "worker": {"wire", "data_parallel", "pipeline", "checkpoint"},
    "study": {"pipeline", "data_parallel", "models"},
}
# These join the planes and may include anything. A test may include testing/ besides what its folder may.
FREE = {"testing"}
# comm works on plain memory: tensors are the layer above it (docs/decisions/0005).
WITHOUT_TORCH = {
    "base",
    "net",
    "wire",
    "membership",
    "launch",
    "coordinator",
    "agent",
    "client",
    "comm",
    "mpi",
    "data",
    "parquet_events",
    "checkpoint",
    "partition",
    "schedule",
}

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
TORCH = re.compile(r"^(torch|ATen|c10|caffe2)/")
MODULE = re.compile(r"^ddip_module\((\w+) DEPS ([^)]*)\)", re.MULTILINE)


def below(folder: str) -> set[str]:
    found: set[str] = set()
    todo = list(ARROWS[folder])
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += ARROWS[name]
    return found


def complaint(folder: str, file: Path, included: str) -> str | None:
    """What is wrong with this include, or None."""
    if ".." in included.split("/"):
        return "climbs out of its folder: write ddip/FOLDER/FILE"
    if TORCH.match(included):
        return "is torch, which this folder never includes" if folder in WITHOUT_TORCH else None
    parts = included.split("/")
    if parts[0] != "ddip":
        return None
    allowed = below(folder) | {folder} | (FREE if file.stem.endswith("_test") else set())
    if len(parts) < 3:
        return "is the umbrella header, which is for users"
    return None if parts[1] in allowed else f"is not below {folder}/"


def violations(source: Path) -> list[str]:
    """Every forbidden include of SOURCE/FOLDER/**, as 'file includes what: why'."""
    found = []
    for file in sorted(source.glob("*/**/*")):
        if file.suffix not in {".h", ".cpp", ".cu"}:
            continue
        folder = file.relative_to(source).parts[0]
        if folder in FREE:
            continue
        if folder not in ARROWS:
            found.append(f"{file}: folder {folder}/ has no arrows in {Path(__file__).name}")
            continue
        for included in INCLUDE.findall(file.read_text(encoding="utf-8")):
            if why := complaint(folder, file, included):
                found.append(f"{file.relative_to(source)} includes {included}: it {why}")
    return found


def test_every_folder_includes_only_what_lies_below_it() -> None:
    assert violations(ROOT / "src" / "ddip") == []


def test_cmake_targets_follow_the_same_arrows() -> None:
    """Links may leave out an arrow that no file uses yet, never add one."""
    targets = MODULE.findall((ROOT / "CMakeLists.txt").read_text(encoding="utf-8"))
    assert targets
    for name, libraries in targets:
        linked = set(re.findall(r"ddip::(\w+)", libraries))
        assert name in FREE or linked <= below(name), f"ddip_module({name}) links {linked - below(name)}"


@pytest.mark.parametrize(
    ("file", "line", "why"),
    [
        ("base/clock.h", '#include "ddip/net/frame.h"', "not below base/"),
        ("agent/agent.cpp", '#include "ddip/coordinator/journal.h"', "not below agent/"),
        ("coordinator/table.cpp", '#include "ddip/agent/agent.h"', "not below coordinator/"),
        ("membership/quorum.cpp", "  #  include <ddip/wire/codec.h>", "not below membership/"),
        ("comm/shm/ring.cpp", '#include "ddip/wire/codec.h"', "not below comm/"),
        ("launch/ssh/plan.cpp", '#include "../../wire/codec.h"', "climbs out"),
        ("client/client.cpp", "#include <torch/torch.h>", "is torch"),
        ("client/client.cpp", "#include <ddip/ddip.h>", "umbrella"),
        ("client/client.cpp", '#include "ddip/testing/fake_clock.h"', "not below client/"),
        ("gossip/gossip.h", "#include <vector>", "has no arrows"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, file: str, line: str, why: str) -> None:
    planted = tmp_path / file
    planted.parent.mkdir(parents=True)
    planted.write_text(f"#pragma once\n{line}\n", encoding="utf-8")
    (found,) = violations(tmp_path)
    assert file in found and why in found


@pytest.mark.parametrize(
    ("file", "line"),
    [
        ("client/client.cpp", '#include "ddip/base/fd.h"'),
        ("worker/worker.cpp", '#include "ddip/comm/communicator.h"'),
        ("worker/worker.cpp", "#include <torch/torch.h>"),
        ("launch/ssh/plan.cpp", '#include "ddip/launch/launcher.h"'),
        ("client/client_test.cpp", '#include "ddip/testing/fake_clock.h"'),
        ("testing/cluster.h", '#include "ddip/coordinator/journal.h"'),
        ("wire/codec.cpp", "#include <nlohmann/json.hpp>"),
    ],
)
def test_a_downward_include_is_accepted(tmp_path: Path, file: str, line: str) -> None:
    allowed = tmp_path / file
    allowed.parent.mkdir(parents=True)
    allowed.write_text(f"{line}\n", encoding="utf-8")
    assert violations(tmp_path) == []
