"""Mean and 95% confidence interval of a few numbers, and what two of them say about each other."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

# Student's t, two-sided 95%, for 1, 2, … degrees of freedom.
QUANTILES = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
]  # fmt: skip


@dataclass(frozen=True)
class Interval:
    mean: float
    half: float  # the interval is mean ± half; nan: too few numbers for one

    @property
    def low(self) -> float:
        return self.mean - self.half

    @property
    def high(self) -> float:
        return self.mean + self.half


def quantile(freedom: int) -> float:
    if freedom <= len(QUANTILES):
        return QUANTILES[freedom - 1]
    # Cornish and Fisher's first two terms beyond the normal's 1.96: right to three digits from here on.
    z = 1.959964
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def interval(values: list[float]) -> Interval:
    """A run that diverged makes the mean infinite: leaving it out would flatter."""
    if not values:
        return Interval(math.nan, math.nan)
    if not all(math.isfinite(value) for value in values):
        return Interval(math.inf, 0.0)
    mean = statistics.fmean(values)
    if len(values) == 1:
        return Interval(mean, math.nan)
    return Interval(mean, quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values)))


def verdict(loss: Interval, reference: Interval) -> str:
    """Of losses: smaller is better. Intervals that overlap prove nothing."""
    if loss.high < reference.low:
        return "helps"
    if loss.low > reference.high:
        return "hurts"
    return "no difference"
