"""From latencies, or whatever else is minimised, to a verdict. Pure functions of numbers; nothing here measures.

The unit of evidence is the process: samples within one agree far better with each other than with those of the next,
so an interval over samples would claim a certainty that is not there (docs/measurement.md). Processes are compared
in blocks: in each, every config runs once, all at the same time, sampled in turns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autotune.schema import Record

MARGIN = 0.01
"""A speed-up below this share is not worth a compile setting; `faster` needs the whole interval beyond it."""
ERROR = 0.02
"""Error of the intervals, half on either side: a config that is no faster is called so in one study of a hundred."""
TOO_WIDE = 1.15
"""An interval whose ends differ by more than this factor, and that leaves a gain possible, decides nothing."""
SMALL_GAIN = 0.05
"""A config that does not look faster, and for which a gain of this share is ruled out, need not be measured further:
what more blocks could prove of it is next to nothing (docs/decisions/0044-when-nothing-looks-faster.md)."""
RULED_OUT_ERROR = 0.05
"""One look rules out a gain that a config truly has so often at most."""
NUM_RESAMPLES = 20_000
BLOCKS_PER_OUTLIER = 6
"""One block in so many is set aside on either side."""
POOLED_FREEDOM = 4
"""Where a config's variance is below the middle one of all, the latter counts as much as so many degrees of freedom of
its own. A larger one stays as it is: that config may be a wild one."""
CORRELATIONS = {0.0: 0.85, 0.9: 0.15}
"""How alike successive blocks may be (lag-1 correlation of log ratios), and how likely each is before any block is
seen. Chosen by simulation: up to 0.8 no more than 2 % of studies find a false winner, also with one config alone or one
far noisier than the rest (docs/decisions/0017-blocks-alike-in-time.md)."""
NO_SCATTER = 1e-12
"""Log ratios that differ by less are the same number, rounded."""
ALIKE = 0.4
"""From this estimated correlation on, a verdict that found nothing names it as the reason."""
AS_GOOD = 0.02
"""A finalist that looks faster than the answer by more than this share, and may be, keeps the blocks going. What is
closer counts as equally fast: further blocks for each that looks faster would be 6 more where three are equal."""


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


@dataclass(frozen=True)
class Comparison:
    """Blocks of what is minimised (latencies in seconds, or bytes): one row a block, the base in the first column, the
    configs in the others.

    A config's interval is `centre -+ q * scale` of its log ratios over blocks. Centre and scale are a trimmed mean and
    its standard error: from six blocks on, the most extreme ones on either side are set aside, since on a shared
    machine some block is always hit by somebody else (Yuen, Biometrika 61, 1974). The quantile q is that of the largest
    |centre / scale| among all configs, so the intervals hold for all at once and the best may be picked after looking.
    It comes from a parametric bootstrap: rows drawn from a normal distribution with the correlations of the observed
    log ratios (Westfall and Young, Resampling-Based Multiple Testing, 1993). It keeps its error rate from four blocks
    on; resampling the rows themselves, the other bootstrap, is far too narrow with as few blocks as one can afford
    (docs/decisions/0005-verdict-in-blocks.md). Two things make the scale less a matter of chance than the deviation of
    a few blocks is: a config's small variance is moderated by that of all (Smyth, Statistical Applications in Genetics
    and Molecular Biology 3, 2004), and the drawn rows are as alike from one to the next as the observed ones may be
    (docs/decisions/0017-blocks-alike-in-time.md).
    """

    values: tuple[tuple[float | None, ...], ...]
    num_looks: int = 1
    """How often the same data may be looked at in all; each look gets an equal share of the error (Bonferroni)."""

    @cached_property
    def speedups(self) -> tuple[Speedup, ...]:
        """Each config's speed-up over the base, in the order of the columns. Needs at least two blocks (ValueError)."""
        return _simultaneous(self._logs, self._errors, ERROR / self.num_looks)

    @cached_property
    def upper_limits(self) -> tuple[float, ...]:
        """The largest speed-up that each config may have: one-sided, at 95 %, for that config and this look alone.

        It says when to stop looking for a gain, and never proves one, so no share of its error is set aside for the
        other configs and looks.
        """
        centres, scales = _centre_and_scale(self._logs)
        quantiles = np.quantile(self._errors, 1 - 2 * RULED_OUT_ERROR, axis=0)
        return tuple(np.exp(centres + quantiles * scales).tolist())

    def verdict(self, config: int, margin: float = MARGIN) -> Verdict:
        """About one config: `verdict_of` its speed-up; but where a gain is ruled out a wide interval is no obstacle."""
        verdict = verdict_of(self.speedups[config], margin)
        if verdict is Verdict.UNDECIDED and self.rules_out(config):
            return Verdict.TIE if self.upper_limits[config] >= 1 else Verdict.KEEP_UNTUNED
        return verdict

    def rules_out(self, config: int) -> bool:
        """The config does not look faster than the base, and a gain of `SMALL_GAIN` is ruled out."""
        return self.speedups[config].median <= 1 + MARGIN and self.upper_limits[config] <= 1 + SMALL_GAIN

    def is_clear(self, margin: float = MARGIN) -> bool:
        """More blocks would not change the verdict: one is proven faster, or none even looks it and none may be."""
        if any(verdict_of(speedup, margin) is Verdict.FASTER for speedup in self.speedups):
            return True
        return all(
            _cannot_win(speedup, margin) or self.rules_out(config) for config, speedup in enumerate(self.speedups)
        )

    @cached_property
    def inverse(self) -> Comparison:
        """The base compared with the config, where there are two."""
        return Comparison(tuple(row[::-1] for row in self.values), self.num_looks)

    def between(self, config: int, other: int) -> Speedup:
        """How many times as fast as `other` is `config` (both columns), with an interval of its own."""
        values = self._array()
        logs = np.log(values[:, [other]] / values[:, [config]])
        return _simultaneous(logs, _studentised_errors(logs), ERROR / self.num_looks)[0]

    @cached_property
    def correlation(self) -> float:
        """Expected correlation of log ratios from one block to the next; few blocks leave it near the prior's 0.1."""
        weights = _weights_of_correlations(self._logs)
        return float(weights @ list(CORRELATIONS))

    def has_faster_finalist(self, answer: int) -> bool:
        """Some other config looks faster than this one (by number) by a share worth having, and may be so."""
        least = (1 + AS_GOOD) * self.speedups[answer].median
        others = (other for other, speedup in enumerate(self.speedups) if speedup.median > least)
        return any(self.between(other + 1, answer + 1).high > 1 + AS_GOOD for other in others)

    @cached_property
    def _logs(self) -> NDArray[np.float64]:
        """Log speed-ups: one row a block, one column a config."""
        values = self._array()
        return np.asarray(np.log(values[:, :1] / values[:, 1:]))

    @cached_property
    def _errors(self) -> NDArray[np.float64]:
        return _studentised_errors(self._logs)

    def _array(self) -> NDArray[np.float64]:
        if len(self.values) < 2:
            raise ValueError(f"an interval over blocks needs at least 2 of them, got {len(self.values)}")
        return np.asarray(self.values, dtype=float)


def _simultaneous(logs: NDArray[np.float64], errors: NDArray[np.float64], error: float) -> tuple[Speedup, ...]:
    """Intervals of the columns' centres that hold together with 1 - `error`."""
    centres, scales = _centre_and_scale(logs)
    half = float(np.quantile(errors.max(axis=-1), 1 - error)) * scales
    lows, highs = np.exp(centres - half), np.exp(centres + half)
    # The middle block speaks for the point, but never from outside of the interval.
    medians = np.clip(np.exp(np.median(logs, axis=0)), lows, highs)
    return tuple(Speedup(median=m, low=lo, high=hi) for m, lo, hi in zip(medians, lows, highs, strict=True))


def _centre_and_scale(logs: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Trimmed mean and its standard error (from the winsorised, moderated deviation) over the last axis but one."""
    num_blocks, num_columns = logs.shape[-2:]
    num_aside = num_blocks // BLOCKS_PER_OUTLIER
    ordered = np.sort(logs, axis=-2)
    kept = ordered[..., num_aside : num_blocks - num_aside, :]
    own = np.clip(ordered, kept[..., :1, :], kept[..., -1:, :]).var(axis=-2, ddof=1)
    middle = (num_columns - 1) // 2
    pooled = np.sort(own, axis=-1)[..., middle : middle + 1]
    freedom = num_blocks - 2 * num_aside - 1
    variance = (freedom * own + POOLED_FREEDOM * np.maximum(own, pooled)) / (freedom + POOLED_FREEDOM)
    return kept.mean(axis=-2), np.sqrt(variance / num_blocks) / (1 - 2 * num_aside / num_blocks)


def _studentised_errors(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """|centre / scale| of each column in so many drawn sets of blocks whose true centres are 0."""
    draws = np.random.default_rng(0).standard_normal((NUM_RESAMPLES, *logs.shape))
    _make_alike(draws, _weights_of_correlations(logs))
    centres, scales = _centre_and_scale(draws @ _root(logs))
    return np.asarray(np.abs(centres) / scales)


def _make_alike(draws: NDArray[np.float64], weights: NDArray[np.float64]) -> None:
    """Give each correlation its share of the draws, and these draws that correlation from one block to the next."""
    ends = np.round(np.cumsum(weights) * len(draws)).astype(int)
    correlation = np.repeat(list(CORRELATIONS), np.diff(ends, prepend=0))[:, None]
    for block in range(1, draws.shape[1]):
        draws[:, block] = correlation * draws[:, block - 1] + np.sqrt(1 - correlation**2) * draws[:, block]


def _weights_of_correlations(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """How likely each of `CORRELATIONS` is: its prior times its likelihood, level and scale of each column unknown."""
    num_blocks, num_columns = logs.shape
    # All ratios share the base: without this step its blocks would be counted once for each config.
    separate = logs - (1 - 1 / math.sqrt(num_columns + 1)) * logs.mean(axis=1, keepdims=True)
    separate = separate - separate.mean(axis=0)
    separate = separate[:, np.abs(separate).max(axis=0) > NO_SCATTER]
    log_weights = []
    for correlation, prior in CORRELATIONS.items():
        ones = _innovations(np.ones((num_blocks, 1)), correlation)
        steps = _innovations(separate, correlation)
        ones_squared = float((ones**2).sum())
        squares = (steps**2).sum(axis=0) - (ones * steps).sum(axis=0) ** 2 / ones_squared
        level = 0.5 * math.log((1 - correlation**2) / ones_squared)
        log_weights.append(math.log(prior) + len(squares) * level - (num_blocks - 1) / 2 * float(np.log(squares).sum()))
    weights = np.exp(np.array(log_weights) - max(log_weights))
    return np.asarray(weights / weights.sum())


def _innovations(columns: NDArray[np.float64], correlation: float) -> NDArray[np.float64]:
    """What is new in each block, if every block repeats so much of the one before."""
    first = math.sqrt(1 - correlation**2) * columns[:1]
    return np.concatenate([first, columns[1:] - correlation * columns[:-1]])


def _root(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """A matrix that gives independent standard normal columns the correlations of `logs`."""
    deviations = logs - logs.mean(axis=0)
    norms = np.linalg.norm(deviations, axis=0)
    unit = np.divide(deviations, norms, out=np.zeros_like(deviations), where=norms > 0)
    values, vectors = np.linalg.eigh(unit.T @ unit + np.diag((norms == 0).astype(float)))
    root: NDArray[np.float64] = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    return root


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


def _cannot_win(speedup: Speedup, margin: float) -> bool:
    """The interval leaves no gain, or does not look like one and is narrow."""
    return speedup.high <= 1 + margin or (speedup.median <= 1 + margin and speedup.high <= TOO_WIDE * speedup.low)


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
