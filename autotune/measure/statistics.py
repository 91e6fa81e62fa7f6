"""What a verdict is made of: a speed-up with its interval, the margin that it must exceed, and the words for both.

The unit of evidence is the process: samples within one agree far better with each other than with those of the next,
so an interval over samples would claim a certainty that is not there (docs/measurement.md). Processes are compared
in blocks (`blocks.Blocks`): in each, every config runs once, all at the same time, sampled in turns. `looks.Look` makes
intervals of them, and `proof.Proof` says what they prove.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

import numpy as np

from autotune.schema import Record

MARGIN = 0.01
"""A speed-up below this share is not worth a compile setting; `faster` needs the whole interval beyond it."""
ERROR = 0.02
"""Error of the intervals, half on either side: a config that is no faster is called so in one study of a hundred."""
TOO_WIDE = 1.15
"""An interval whose ends differ by more than this factor, and that leaves a gain possible, decides nothing."""


class Verdict(StrEnum):
    """What the study says. `COMPILED` are those that make an export compile anything."""

    FASTER = "faster"
    """In terms of the objective: it may need less memory, or give its first result sooner."""
    TIE = "tie"
    KEEP_UNTUNED = "keep_untuned"
    UNDECIDED = "undecided"
    """The machine is too noisy to tell, or the time was used up."""
    FEASIBLE = "feasible"
    """The untuned model breaks a constraint; this config keeps them all, and need not be faster."""
    INFEASIBLE = "infeasible"
    CHOSEN = "chosen"
    """For an export only: the user took another trial than the study's answer."""


COMPILED = frozenset({Verdict.FASTER, Verdict.FEASIBLE, Verdict.CHOSEN})


class Speedup(Record):
    """The base's value divided by the config's, with its 98 % interval. Above 1: the config is better."""

    median: float
    low: float
    high: float


def inverse(speedup: Speedup) -> Speedup:
    """The speed-up of the base over the config."""
    return Speedup(median=1 / speedup.median, low=1 / speedup.high, high=1 / speedup.low)


def verdict_of(speedup: Speedup, margin: float = MARGIN) -> Verdict:
    """`faster` if the whole interval lies above 1 + margin, `keep_untuned` if it lies below 1, else `tie`.

    `undecided` where the interval is so wide that a gain worth having is neither shown nor ruled out.
    """
    if speedup.low > 1 + margin:
        return Verdict.FASTER
    if speedup.high < 1:
        return Verdict.KEEP_UNTUNED
    if speedup.high > 1 + margin and speedup.high > TOO_WIDE * speedup.low:
        return Verdict.UNDECIDED
    return Verdict.TIE


def margin_above(noise_floor: float, num_blocks: int) -> float:
    """What a mean over `num_blocks` must exceed: `MARGIN`, or what the same config twice would show by itself.

    `noise_floor` is the spread of the log ratio of two processes of one config; that of a mean is smaller.
    """
    return max(MARGIN, noise_floor / math.sqrt(num_blocks))


def spread_of_pairs(pairs: Sequence[tuple[float, float]]) -> float:
    """Noise floor: root mean square of the log ratio of two processes that ran the same config, as a share."""
    return math.sqrt(float(np.mean([math.log(one_s / other_s) ** 2 for one_s, other_s in pairs])))


def break_even_calls(compile_s: float, untuned_s: float, tuned_s: float) -> int | None:
    """Calls after which the compile time has been earned back; None if a call saves nothing."""
    saved_s = untuned_s - tuned_s
    if saved_s <= 0:
        return None
    return math.ceil(max(compile_s, 0.0) / saved_s)
