"""Pipelines: a model in stages, what runs when, which weights are used, and the proof of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ddip.pipeline.auxiliary import auxiliary_loss
    from ddip.pipeline.front import Pipeline
    from ddip.pipeline.report import Report

__all__ = ["Pipeline", "Report", "auxiliary_loss"]

# Loaded on first use: replay proves what the engine did, and must not need it.
_HOME = {"Pipeline": "front", "Report": "report", "auxiliary_loss": "auxiliary"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
