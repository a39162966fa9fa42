"""Groups whose ranks have the models and runs of tests/support."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import ddip


@contextlib.contextmanager
def pipeline_group(name: str, *modules: str, workers: int = 2) -> Iterator[ddip.Group]:
    """`modules`: of tests/support beside pipelines, each under its own name or "name as short"."""
    imports = ", ".join(["torch", "ddip", "pipelines as p", *modules])
    with ddip.Group(workers=workers, name=name) as group:
        group.run(f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nimport {imports}")
        yield group
