"""What can be imported in the client can be imported on its workers, wherever Python itself lies."""

from __future__ import annotations

import os
import sys
import sysconfig
from typing import Any

from ddip import module_path


def test_all_of_pythons_own_folders_are_left_out(monkeypatch: Any) -> None:
    packages = sysconfig.get_path("purelib")
    own = [path for path in sys.path if path.startswith((sys.prefix, sys.base_prefix)) and "ddip" not in path]
    monkeypatch.setattr(
        sys, "path", ["", *own, packages, os.path.join(packages, "some.egg"), "/elsewhere", "/elsewhere"]
    )
    assert own and module_path.to_tell() == ["/elsewhere"]


def test_the_users_code_below_pythons_prefix_is_not(monkeypatch: Any) -> None:
    mine = [
        os.path.join(sys.prefix, "src", "app"),
        os.path.join(sys.base_prefix, "src"),
        sysconfig.get_path("stdlib") + "-mine",
    ]
    monkeypatch.setattr(sys, "path", [*sys.path, *mine])
    assert module_path.to_tell()[-3:] == mine


def test_a_module_below_pythons_prefix_is_found_by_the_workers(start: Any, tmp_path: Any, monkeypatch: Any) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "mine_below_the_prefix.py").write_text("value = 7\n")
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))  # as /usr is for /usr/src
    monkeypatch.syspath_prepend(str(tmp_path / "src"))
    assert start(1).run("import mine_below_the_prefix; mine_below_the_prefix.value")[0].value == 7
