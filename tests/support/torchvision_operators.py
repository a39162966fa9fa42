"""Importing this makes torchvision importable beside a CPU torch. A registry's torchvision has compiled operators for CUDA
only: they cannot be loaded, yet it describes two of them when it is imported. So those two are declared here."""

import contextlib

import torch

with contextlib.suppress(ImportError):
    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        # Kept: a library that is collected takes its operators with it.
        LIBRARY = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            LIBRARY.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
