"""What an evaluation measures beside the loss, on the last stage; all ranks learn it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ddip.errors import ConfigError
from ddip.replicas import gather_objects

Metric = Callable[[Any, Any], Any]


class Metrics:
    """Means over the samples. `functions`: each gives, of (output, target), the mean over a micro-batch, or (sum, count)."""

    def __init__(self, functions: Mapping[str, Metric] | None) -> None:
        if functions is not None and not isinstance(functions, Mapping):
            raise ConfigError(f"metrics={functions!r}: expected names and functions of (output, target), as a dict")
        self.functions = dict(functions or {})
        for name, function in self.functions.items():
            if not isinstance(name, str) or not callable(function):
                raise ConfigError(
                    f"metrics= has {name!r}: {function!r}; expected names and functions of (output, target)"
                )
        self._sums = dict.fromkeys(self.functions, 0.0)
        self._counts = dict.fromkeys(self.functions, 0.0)

    @property
    def names(self) -> list[str]:
        return sorted(self.functions)

    def add(self, output: Any, target: Any, samples: int) -> None:
        for name, function in self.functions.items():
            value = function(output, target)
            try:
                if isinstance(value, tuple) and len(value) == 2:
                    total, count = float(value[0]), float(value[1])
                else:
                    total, count = float(value) * samples, float(samples)
            except (TypeError, ValueError, RuntimeError):  # what float() says of a list, a word, a larger tensor
                got = f"a tensor {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
                raise ConfigError(
                    f"metrics[{name!r}] gave {got}; expected one number, the mean over the samples, or (sum, count)"
                ) from None
            self._sums[name] += total
            self._counts[name] += count

    def means(self, ranks: Any) -> dict[str, float]:
        """All ranks together, if there are any metrics: of the last stages of all replicas. Without samples: not a number."""
        if not self.functions:
            return {}
        everybody = gather_objects((self._sums, self._counts), ranks)
        found = {}
        for name in self.functions:
            count = sum(counts[name] for _, counts in everybody)
            found[name] = sum(sums[name] for sums, _ in everybody) / count if count else math.nan
        return found
