"""What an evaluation measures beside the loss, on the last stage; all ranks learn it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ddip.errors import ConfigError
from ddip.pipeline.counted import in_words, is_count
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
            whole = type(value) is tuple and len(value) == 2 and is_count(value[1])  # not torch's own kinds of tuples
            try:
                total = float(value[0]) if whole else float(value) * samples
                count = float(value[1]) if whole else float(samples)
            # What float() says of a list, a word, a larger tensor, a number that is too large.
            except (TypeError, ValueError, RuntimeError, OverflowError):
                raise ConfigError(
                    f"metrics[{name!r}] gave {in_words(value)}; expected one number, the mean over the samples, or (sum, count)"
                ) from None
            if count:
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
