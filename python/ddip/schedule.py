"""Schedules of pipelines as data: made, checked, simulated and drawn before any process starts (docs/pipeline.md)."""

from __future__ import annotations

import torch.distributed  # noqa: F401  # the engine is torch's guest

from ddip._engine import Plan, PlanAction, PlanSimulation, PlanVerdict, default_window, make_plan, schedule_names

__all__ = ["Plan", "PlanAction", "PlanSimulation", "PlanVerdict", "default_window", "make_plan", "schedule_names"]
