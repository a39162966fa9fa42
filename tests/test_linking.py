from __future__ import annotations

from pathlib import Path

import pytest
from support.linking import asks_torch_before_the_cpp_library

pytest.importorskip("torch")
_engine = pytest.importorskip("ddip._engine")


@pytest.mark.parametrize("what", ["_engine", "ddip-torch"])
def test_functions_of_the_cpp_library_are_not_torchs(what: str) -> None:
    engine = Path(_engine.__file__)
    assert not asks_torch_before_the_cpp_library(engine if what == "_engine" else engine.parent / "_bin" / what)
