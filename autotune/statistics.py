"""From latencies to a verdict. Pure functions of numbers; nothing here measures.

The unit of evidence is a pair of fresh processes (untuned, candidate), started one after the other, the order
swapped from pair to pair. Samples within one process agree far better with each other than with those of the next
process, so an interval over samples would claim a certainty that is not there (docs/measurement.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

import numpy as np

from autotune.measurement import Record

MARGIN = 0.02
"""A speed-up below this share is not worth a compile setting; `faster` needs the whole interval beyond it."""


class Verdict(StrEnum):
    """What the study says. Only `FASTER` makes an export compile anything."""

    FASTER = "faster"
    TIE = "tie"
    KEEP_UNTUNED = "keep_untuned"
    INFEASIBLE = "infeasible"


class Speedup(Record):
    """Untuned latency divided by tuned latency, with its 95 % interval. Above 1: the tuned model is faster."""

    median: float
    low: float
    high: float


def speedup_over_pairs(pairs: Sequence[tuple[float, float]], confidence: float = 0.95) -> Speedup:
    """Ratio of the medians of each process pair `(untuned_s, tuned_s)`, with the t interval of the log ratios.

    `median` is the pairs' median ratio, held inside the interval. Needs at least two pairs (ValueError).
    """
    # Imported here: it takes most of a second, and a job that loads a tuned config needs only the names above.
    from scipy import stats

    if len(pairs) < 2:
        raise ValueError(f"an interval over process pairs needs at least 2 pairs, got {len(pairs)}")
    logs = np.log([untuned_s / tuned_s for untuned_s, tuned_s in pairs])
    half = stats.t.ppf(0.5 + confidence / 2, len(logs) - 1) * stats.sem(logs)
    low, high = math.exp(logs.mean() - half), math.exp(logs.mean() + half)
    return Speedup(median=min(max(math.exp(np.median(logs)), low), high), low=low, high=high)


def verdict_of(speedup: Speedup, margin: float = MARGIN) -> Verdict:
    """`faster` if the whole interval lies above 1 + margin, `keep_untuned` if it lies below 1, else `tie`."""
    if speedup.low > 1 + margin:
        return Verdict.FASTER
    if speedup.high < 1:
        return Verdict.KEEP_UNTUNED
    return Verdict.TIE


def break_even_calls(compile_s: float, untuned_s: float, tuned_s: float) -> int | None:
    """Calls after which the compile time has been earned back; None if a call saves nothing."""
    saved_s = untuned_s - tuned_s
    if saved_s <= 0:
        return None
    return math.ceil(max(compile_s, 0.0) / saved_s)
