from __future__ import annotations

from pathlib import Path

import pytest
from support.linking import loads_all_of_torch, takes_filesystem_from_torch

pytest.importorskip("torch")
_engine = pytest.importorskip("ddip._engine")


@pytest.mark.parametrize("what", ["_engine", "ddip-torch"])
def test_functions_of_the_cpp_library_are_not_torchs_and_torch_is_whole(what: str) -> None:
    engine = Path(_engine.__file__)
    file = engine if what == "_engine" else engine.parent / "_bin" / what
    assert not takes_filesystem_from_torch(file)
    assert loads_all_of_torch(file)
