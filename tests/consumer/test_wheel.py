"""pip install . gives the command, the Python package and the CMake package, and none of them needs torch."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from importlib import util
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent
ROOT = SOURCE.parent.parent

pytestmark = pytest.mark.timeout(900)


def run(*command: object, cwd: Path) -> str:
    # The compiler by the name that CMake gives it in build/release: then ccache has every file already.
    environment = {"CXX": "c++", "CCACHE_BASEDIR": str(ROOT), "CCACHE_NOHASHDIR": "1", **os.environ}
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # Without the data plane: compiling it a second time takes minutes, and what is tested here needs no torch.
    return build(folder, "--config-settings=cmake.define.DDIP_WITH_ENGINE=OFF")


def build(folder: Path, *settings: str) -> Path:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", ".", "--no-build-isolation", "--no-deps", "--no-index", "-w", folder, *settings, cwd=ROOT)
    (wheel,) = folder.glob("ddip-*.whl")
    return wheel


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with this wheel and its one dependency: no torch, no IPython."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=ROOT)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", folder / "bin" / "python"]
    run(*pip, "install", "--no-deps", "--no-index", wheel, cwd=folder)
    spec = util.find_spec("cloudpickle")
    assert spec is not None and spec.origin is not None
    (site,) = folder.glob("lib/python3*/site-packages")
    shutil.copytree(Path(spec.origin).parent, site / "cloudpickle")
    return folder


def test_wheel_holds_each_part_once(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for part in ("ddip/__init__.py", "ddip/py.typed", "ddip/_bin/ddip", "Ddip/__init__.py", "ddipp/__init__.py"):
        assert names.count(part) == 1, part
    for start in ("ddip/_client.", "ddip/_worker."):
        assert len([name for name in names if name.startswith(start) and name.endswith(".so")]) == 1, start
    assert any(name.endswith("scripts/ddip") for name in names)
    assert not any("_test" in name or "__pycache__" in name for name in names)


def test_command_runs(environment: Path) -> None:
    assert "up" in run(environment / "bin" / "ddip", "--help", cwd=environment)


def test_package_imports_without_torch_or_ipython(environment: Path) -> None:
    code = "import sys, ddip; assert 'torch' not in sys.modules; print(ddip.__file__, ddip.groups())"
    assert str(environment) in run(environment / "bin" / "python", "-c", code, cwd=environment)


def test_cpp_program_finds_the_package_in_the_environment(environment: Path, tmp_path: Path) -> None:
    run("cmake", "-S", SOURCE, "-B", tmp_path, f"-DCMAKE_PREFIX_PATH={environment}", cwd=tmp_path)
    run("cmake", "--build", tmp_path, cwd=tmp_path)
    cache = (tmp_path / "CMakeCache.txt").read_text(encoding="utf-8")
    assert f"ddip_DIR:PATH={environment}" in cache


@pytest.mark.soak
def test_whole_wheel_holds_the_data_plane(tmp_path: Path) -> None:
    names = zipfile.ZipFile(build(tmp_path)).namelist()
    assert len([name for name in names if name.startswith("ddip/_engine.") and name.endswith(".so")]) == 1
    assert any(name.endswith("ddipEngineTargets.cmake") for name in names)
