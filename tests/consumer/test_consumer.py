"""A C++ program outside the tree finds ddip with find_package, links ddip::client, and talks to a group."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent
ROOT = SOURCE.parent.parent


def run(*command: object, **options: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=240, **options)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build_outside(prefix: Path, folder: Path) -> Path:
    """Copies the program out of the tree, so that it can find nothing but what was installed."""
    folder.mkdir()
    for name in ("CMakeLists.txt", "main.cpp"):
        (folder / name).write_bytes((SOURCE / name).read_bytes())
    run("cmake", "-S", folder, "-B", folder / "build", f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Debug")
    run("cmake", "--build", folder / "build")
    return folder / "build" / "consumer"


@pytest.fixture(scope="module")
def consumer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("consumer")
    run("cmake", "--install", ROOT / "build" / "release", "--prefix", folder / "prefix")
    return build_outside(folder / "prefix", folder / "program")


def test_installed_files_name_no_path_of_the_build(consumer: Path) -> None:
    (config,) = (consumer.parents[2] / "prefix").rglob("ddipConfig.cmake")
    texts = [file.read_text(encoding="utf-8") for file in config.parent.iterdir()]
    assert texts and not any(str(ROOT) in text for text in texts)


def test_client_links_no_torch_and_lists_groups(consumer: Path, tmp_path: Path) -> None:
    assert "torch" not in run("ldd", consumer)
    runtime = tmp_path / "runtime"
    assert run(consumer, env={**os.environ, "DDIP_RUNTIME_DIR": str(runtime)}) == ""


def test_client_runs_a_cell_on_every_rank(consumer: Path) -> None:
    import ddip

    with ddip.Group(workers=2) as group:
        output = run(consumer, group.name, "import os; print('hello from', os.environ['RANK'])")
    assert "[0] hello from 0\n" in output and "[1] hello from 1\n" in output
