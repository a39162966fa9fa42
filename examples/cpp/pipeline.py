"""What examples/cpp/pipeline.cpp trains, in Python: `ddip replay FILE` calls this to compute its ledger again."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def factory() -> tuple[list[nn.Module], Any, list[tuple[torch.Tensor, torch.Tensor]]]:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    xs = [torch.randn(32, 8) for _ in range(200)]
    stages: list[nn.Module] = [layers[:2], layers[2:]]  # as ddip::pipeline::cut cuts it for two ranks
    return stages, nn.functional.mse_loss, [(x, x.sum(1, keepdim=True)) for x in xs]
