"""Intervals of several configs at once, from a parametric bootstrap of the log ratios of blocks.

A config's interval is `centre -+ q * scale` of its log ratios. Centre and scale are a trimmed mean and its standard
error: from six blocks on, the most extreme ones on either side are set aside, since on a shared machine some block is
always hit by somebody else (Yuen, Biometrika 61, 1974). The quantile q is that of the largest |centre / scale| among
all configs, so the intervals hold for all at once and the best may be picked after looking. It comes from rows drawn
from a normal distribution with the correlations of the observed log ratios (Westfall and Young, Resampling-Based
Multiple Testing, 1993). The bootstrap keeps its error rate from four blocks on; resampling the rows themselves, the
other bootstrap, is far too narrow with as few blocks as one can afford (docs/decisions/0005-verdict-in-blocks.md).

Two things make the scale less a matter of chance than the deviation of a few blocks is: a config's small variance is
moderated by that of all (Smyth, Statistical Applications in Genetics and Molecular Biology 3, 2004), and the drawn rows
are as alike from one to the next as the observed ones may be (docs/decisions/0060-early-looks.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from autotune.measure.early_look import whitened
from autotune.measure.statistics import Speedup

NUM_RESAMPLES = 20_000
BLOCKS_PER_OUTLIER = 6
"""One block in so many is set aside on either side."""
POOLED_FREEDOM = 4
"""Where a config's variance is below the middle one of all, the latter counts as much as so many degrees of freedom of
its own. A larger one stays as it is: that config may be a wild one."""
NO_SCATTER = 1e-12
"""Log ratios that differ by less are the same number, rounded."""


def simultaneous(
    logs: NDArray[np.float64], errors: NDArray[np.float64], error: float | NDArray[np.float64]
) -> tuple[Speedup, ...]:
    """Intervals of the columns' centres that hold together with 1 - `error`, which may be each column's own."""
    centres, scales = centre_and_scale(logs, np.isfinite(logs))
    half = np.quantile(errors.max(axis=-1), 1 - error) * scales
    lows, highs = np.exp(centres - half), np.exp(centres + half)
    # The middle block speaks for the point, but never from outside of the interval.
    medians = np.clip(np.exp(np.nanmedian(logs, axis=0)), lows, highs)
    return tuple(Speedup(median=m, low=lo, high=hi) for m, lo, hi in zip(medians, lows, highs, strict=True))


def centre_and_scale(
    logs: NDArray[np.float64], has: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Trimmed mean and its standard error (from the winsorised, moderated deviation) over the last axis but one; `has`
    says which rows each column has."""
    centres, variances = [], []
    num_blocks = has.sum(axis=0)
    num_aside = num_blocks // BLOCKS_PER_OUTLIER
    for column, (num, aside) in enumerate(zip(num_blocks, num_aside, strict=True)):
        ordered = np.sort(logs[..., has[:, column], column], axis=-1)
        kept = ordered[..., aside : num - aside]
        centres.append(kept.mean(axis=-1))
        variances.append(np.clip(ordered, kept[..., :1], kept[..., -1:]).var(axis=-1, ddof=1))
    own = np.stack(variances, axis=-1)
    middle = (len(num_blocks) - 1) // 2
    pooled = np.sort(own, axis=-1)[..., middle : middle + 1]
    freedom = num_blocks - 2 * num_aside - 1
    variance = (freedom * own + POOLED_FREEDOM * np.maximum(own, pooled)) / (freedom + POOLED_FREEDOM)
    return np.stack(centres, axis=-1), np.sqrt(variance / num_blocks) / (1 - 2 * num_aside / num_blocks)


def studentised_errors(logs: NDArray[np.float64], alike: Mapping[float, float]) -> NDArray[np.float64]:
    """|centre / scale| of each column in so many drawn sets of blocks, with the gaps of `logs`, whose true centres are
    0."""
    draws = np.random.default_rng(0).standard_normal((NUM_RESAMPLES, *logs.shape))
    _make_alike(draws, alike)
    centres, scales = centre_and_scale(draws @ _root(logs), np.isfinite(logs))
    return np.asarray(np.abs(centres) / scales)


def _make_alike(draws: NDArray[np.float64], alike: Mapping[float, float]) -> None:
    """Give each correlation its share of the draws, and these draws that correlation from one block to the next."""
    ends = np.round(np.cumsum(list(alike.values())) * len(draws)).astype(int)
    correlation = np.repeat(list(alike), np.diff(ends, prepend=0))[:, None]
    for block in range(1, draws.shape[1]):
        draws[:, block] = correlation * draws[:, block - 1] + np.sqrt(1 - correlation**2) * draws[:, block]


def winsorised(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """With the blocks that are set aside moved to the nearest one that is not."""
    moved = logs.copy()
    for column in moved.T:
        has = np.isfinite(column)
        ordered = np.sort(column[has])
        aside = len(ordered) // BLOCKS_PER_OUTLIER
        column[has] = np.clip(column[has], ordered[aside], ordered[len(ordered) - 1 - aside])
    return moved


def how_alike(
    logs: NDArray[np.float64], correlations: Mapping[float, float], *, share_base: bool = True
) -> dict[float, float]:
    """How likely each correlation is: its prior times its likelihood, level and scale of each column unknown.

    `share_base`: all are ratios to the processes of the base.
    """
    has = np.isfinite(logs)
    separate = logs - np.nanmean(logs, axis=0)
    if share_base:
        # Without this step the base's blocks would be counted once for each config.
        shared = 1 - 1 / np.sqrt(has.sum(axis=1, keepdims=True) + 1)
        separate = separate - shared * np.nanmean(separate, axis=1, keepdims=True)
    columns = [separate[has[:, column], column] for column in range(logs.shape[1])]
    columns = [column - column.mean() for column in columns]
    columns = [column for column in columns if np.abs(column).max() > NO_SCATTER]
    log_weights = [
        math.log(prior) + sum(_log_likelihood(column, correlation) for column in columns)
        for correlation, prior in correlations.items()
    ]
    weights = np.exp(np.array(log_weights) - max(log_weights))
    return dict(zip(correlations, (weights / weights.sum()).tolist(), strict=True))


def _log_likelihood(column: NDArray[np.float64], correlation: float) -> float:
    """Log likelihood of a correlation, from the blocks of one config."""
    ones = whitened(np.ones(len(column)), correlation)
    steps = whitened(column, correlation)
    ones_squared = float(ones @ ones)
    squares = float(steps @ steps) - float(ones @ steps) ** 2 / ones_squared
    level = 0.5 * math.log((1 - correlation**2) / ones_squared)
    return level - (len(column) - 1) / 2 * math.log(squares)


def _root(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """A matrix that gives independent standard normal columns the correlations of `logs`."""
    deviations = np.nan_to_num(logs - np.nanmean(logs, axis=0))
    norms = np.linalg.norm(deviations, axis=0)
    unit = np.divide(deviations, norms, out=np.zeros_like(deviations), where=norms > 0)
    values, vectors = np.linalg.eigh(unit.T @ unit + np.diag((norms == 0).astype(float)))
    root: NDArray[np.float64] = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    return root
