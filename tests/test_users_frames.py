"""What a traceback shows of a cell that failed: the user's own code, and ddip's only where the mistake may be ddip's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ddip.errors import RankError
from ddip.worker.shell import format_error

import ddip

PIPELINE = """
import torch, ddip

class Shout(torch.nn.Module):
    def forward(self, x):
        raise ValueError("too loud")

def made(stages, **arguments):
    return ddip.Pipeline(stages, loss=torch.nn.functional.mse_loss, optimizer=lambda ps: torch.optim.SGD(ps, 0.1), **arguments)

def stages(last):
    return [torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(2, 2), last)]

batches = [(torch.ones(8, 2), torch.ones(8, 2))]
"""


@pytest.fixture(scope="module")
def two() -> Iterator[ddip.Group]:
    with ddip.Group(workers=2, name="users-frames") as group:
        group.run(PIPELINE)
        yield group


def tracebacks(group: ddip.Group, code: str) -> dict[int, str]:
    with pytest.raises(RankError) as error:
        group.run(code)
    return error.value.tracebacks


def test_a_refused_call_shows_the_users_lines_alone(two: ddip.Group) -> None:
    for text in tracebacks(two, "made(stages(torch.nn.ReLU()), schedule='1f2b')").values():
        assert text.count("File <cell") == 2, "the cell's line, and that of its function"
        assert ".py" not in text and "did you mean 1f1b?" in text


def test_an_error_in_a_users_forward_shows_it_without_what_called_it(two: ddip.Group) -> None:
    found = tracebacks(two, "pipe = made(stages(Shout())); pipe.run(batches)")
    assert "/ddip/pipeline/" not in found[1] and 'raise ValueError("too loud")' in found[1]
    assert "too loud" in found[0] and "stage 1" in found[0] and ".py" not in found[0]


def test_an_error_of_our_own_is_shown_whole(two: ddip.Group) -> None:
    broken = "import ddip.pipeline.front as front; front.Batches = None; made(stages(torch.nn.ReLU())).run(batches)"
    for text in tracebacks(two, broken).values():
        assert text.count("/ddip/pipeline/front.py") == 2 and "NoneType" in text


def test_what_led_to_a_refusal_is_shortened_too(two: ddip.Group) -> None:
    code = """
try:
    made(stages(torch.nn.ReLU()), schedule="1f2b")
except ddip.ConfigError:
    1 / 0
"""
    for text in tracebacks(two, code).values():
        assert "ZeroDivisionError" in text and "did you mean 1f1b?" in text and ".py" not in text


def test_a_stop_that_comes_twice_is_shown_once() -> None:
    """The second may come while the first is on its way out."""

    def once() -> None:
        raise KeyboardInterrupt

    def twice() -> None:
        try:
            once()
        finally:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as stop:
        twice()
    shown = format_error(stop.value)
    assert shown.count("KeyboardInterrupt\n") == 1 + 1, "in a line of code, and as the error"
    assert "in once" in shown and "During handling" not in shown


def test_a_librarys_frames_stay(two: ddip.Group) -> None:
    for text in tracebacks(two, "import json; json.loads('{')").values():
        assert "json/decoder.py" in text
