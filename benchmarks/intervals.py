"""How sure a benchmark may be: intervals of ratios over pairs, and bounds of rates from counts.

Not the product's own statistics: what is judged here must not judge itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

Pair = tuple[float, float]


@dataclass(frozen=True)
class Ratio:
    """A ratio with its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"


def ratio_over_pairs(pairs: Sequence[Pair]) -> Ratio:
    """Geometric mean of first over second, with the t interval of the log ratios. Needs two pairs."""
    if len(pairs) < 2:
        raise ValueError(f"an interval needs at least 2 pairs, got {len(pairs)}")
    logs = np.log([first / second for first, second in pairs])
    half = stats.t.ppf(0.975, len(logs) - 1) * stats.sem(logs)
    mean, low, high = np.exp([logs.mean(), logs.mean() - half, logs.mean() + half])
    return Ratio(mean=float(mean), low=float(low), high=float(high))


def rate_is_below(num_hits: int, num_tries: int, confidence: float = 0.95) -> float:
    """The rate below which the true one lies with this confidence (Clopper and Pearson's one-sided bound)."""
    if num_hits == num_tries:
        return 1.0
    return float(stats.beta.ppf(confidence, num_hits + 1, num_tries - num_hits))
