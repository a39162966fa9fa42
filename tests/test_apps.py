"""Apps (%makedip -a): what is refused, in one line and before anything is started; what fastai does: test_fastai.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from support import program

import ddip
from ddip import _client, apps

without_fastai = pytest.mark.skipif(importlib.util.find_spec("fastai") is not None, reason="this Python has fastai")


def test_every_app_of_the_flag_is_there_and_the_other_way_round() -> None:
    assert ["none", *apps.names()] == _client.app_names()
    for name in apps.names():
        app = apps.module_of(name)  # without its library
        assert (
            callable(app.enter)
            and callable(app.leave)
            and callable(app.cell)
            and all(map(callable, app.COMMANDS.values()))
        )


@pytest.mark.parametrize("arguments", [["up", "-a", "keras"], ["up", "x", "--app=keras"]])
def test_up_refuses_an_unknown_app_and_lists_those_there_are(home: Path, arguments: list[str]) -> None:
    done = program.ddip(*arguments, code=2)
    assert "keras" in done.stderr and "none|fastai" in done.stderr and len(done.stderr.splitlines()) == 1
    assert list(home.iterdir()) == []


@without_fastai
def test_a_python_without_the_library_is_named_before_anything_starts(home: Path) -> None:
    with pytest.raises(ddip.ConfigError) as error:
        ddip.Group(2, app="fastai")
    assert str(error.value).startswith(f"ddip.Group -a fastai: {sys.executable} has no fastai; expected")
    with pytest.raises(ddip.ConfigError, match="has no fastai"):
        ddip.Group(2, app="fastai", python=str(Path(sys.executable).with_name("python3")))
    done = program.ddip("up", "-n", "2", "-a", "fastai", "--python", sys.executable, code=2)
    assert "ddip up -a fastai:" in done.stderr and "has no fastai" in done.stderr and len(done.stderr.splitlines()) == 1
    assert list(home.iterdir()) == []


@without_fastai
def test_a_running_group_whose_python_has_not_the_library_stays_as_it_is(plain: Any) -> None:
    with pytest.raises(ddip.ConfigError) as error:
        plain.use_app("fastai")
    assert "has no fastai" in str(error.value) and "\n" not in str(error.value)
    with pytest.raises(ddip.ConfigError, match=r"app='keras' is unknown; expected none\|fastai"):
        plain.use_app("keras")
    assert plain.info()["app"] == ""
    assert [result.value for result in plain.run("from ddip import apps; apps.current()")] == ["", ""]
    plain.use_app("none")


def test_a_command_needs_an_app(dip: Any) -> None:
    said = dip.run("%%dip -a alone\nprint(1)")
    assert said.error is not None and "%%dip -a alone: the group is in no app" in said.text


def test_up_with_another_app_needs_a_word(start: Any) -> None:
    group = start(2, name="busy")
    group.run("x = 1")
    done = program.ddip("up", "busy", "-a", "fastai", code=2)
    assert "ddip up busy: this group runs with 2 CPU workers" in done.stderr and "no app" in done.stderr
    assert program.ddip("up", "busy", "-a", "none").stdout.startswith("group busy is running already")
    assert group.pull("x", "all") == [1, 1]
