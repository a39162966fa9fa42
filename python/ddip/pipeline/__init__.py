"""Pipelines: a model in stages, what runs when, which weights are used, and the proof of it."""

from __future__ import annotations

from ddip.pipeline.front import Pipeline, auxiliary_loss
from ddip.pipeline.report import Report

__all__ = ["Pipeline", "Report", "auxiliary_loss"]
