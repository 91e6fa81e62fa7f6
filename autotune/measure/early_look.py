"""What few blocks say: a closed-form posterior, the early look at one, two or three blocks, and what is left to gain.

A log ratio of a block is taken as normal about the config's true log gain, as alike from one block to the next as
`correlations` allow, each of them with its own weight. Nothing is known of the gain beforehand. Of the scale a little
is: as much as `PRIOR_FREEDOM` blocks would tell at `PRIOR_SCALE`. That stands in for what one or two blocks cannot
say, and takes from two that agree by chance the power to prove anything. The posterior of the gain is then a mixture of
Student distributions, one a correlation (Gelman et al., Bayesian Data Analysis, 3.3).

A posterior after two blocks is only as good as its model: somebody else's work may hit the untuned process of both, and
a process may stay slow for minutes. What such things can fake is bounded, though, so an early look asks for three
things at once: the posterior, a mean gain beyond that bound, and a gain as large in the search's own trial, which was
another process at another time. The bound is lower the more blocks there are, and rises with the square of the noise
that the blocks show: where processes scatter widely, nothing but a very large gain is proven early. One that is far
beyond all noise is enough whatever they scatter by (docs/decisions/0060-early-looks.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autotune.measure.statistics import Speedup

PRIOR_SCALE = 0.05
"""Scale of a log ratio before any block is seen: each of two processes scatters by 3.5 %."""
PRIOR_FREEDOM = 4
"""Blocks that the prior scale counts as much as."""
EARLY_GAINS = {1: 3.0, 2: 1.5, 3: 1.28}
"""Blocks of a config after which it is looked at early -> the speed-up that they, and the search, have to show where
nothing scatters more than usual."""
BEYOND_NOISE, BEYOND_SCALES = 10.0, 12.0
"""A speed-up that no noise fakes: this, or so many scales of it where that is more. No larger one is asked for."""
EARLY_ERROR = 0.005
"""An early look leaves this probability, shared by all configs that take part, to a gain below the margin."""
SHARE_OF_SEARCH = 0.5
"""Share of the log gain that such a look at three blocks asks for and that the search's own trial has to show."""
NUM_DRAWS = 4000
"""Draws of who is the best."""


@dataclass(frozen=True)
class Posterior:
    """What a config's log ratios say of its true log gain."""

    logs: NDArray[np.float64]
    """One a block, in their order; at least one."""
    correlations: Mapping[float, float]
    """Lag-1 correlation -> how likely it is before any block is seen."""

    def above(self, log_gain: float) -> float:
        """Probability of a larger gain."""
        from scipy.special import stdtr

        centres, scales, freedom = self._students
        return float(self._weights @ stdtr(freedom, (centres - log_gain) / scales))

    def quantile(self, probability: float) -> float:
        """The log gain below which the truth lies with this probability."""
        centres, scales, _ = self._students
        low, high = float((centres - 1e3 * scales).min()), float((centres + 1e3 * scales).max())
        for _ in range(80):
            middle = (low + high) / 2
            low, high = (middle, high) if 1 - self.above(middle) < probability else (low, middle)
        return (low + high) / 2

    def speedup(self, error: float, widened: float = 1.0) -> Speedup:
        """The middle block with the interval that leaves half of the error on either side; each half of the interval
        is `widened` so many times."""
        centre, low, high = (self.quantile(share) for share in (0.5, error / 2, 1 - error / 2))
        low, high = math.exp(centre - widened * (centre - low)), math.exp(centre + widened * (high - centre))
        return Speedup(median=min(max(math.exp(float(np.median(self.logs))), low), high), low=low, high=high)

    @cached_property
    def _parts(self) -> NDArray[np.float64]:
        """Row a correlation: centre, scale and log weight."""
        num_blocks = len(self.logs)
        freedom = PRIOR_FREEDOM + num_blocks - 1
        parts = []
        for correlation, prior in self.correlations.items():
            alone = 1 - correlation**2
            ones = whitened(np.ones(num_blocks), correlation)
            steps = whitened(self.logs, correlation)
            information = float(ones @ ones) / alone
            centre = float(ones @ steps) / float(ones @ ones)
            squares = PRIOR_FREEDOM * PRIOR_SCALE**2 + float(((steps - centre * ones) ** 2).sum()) / alone
            scale = math.sqrt(squares / freedom / information)
            log_weight = math.log(prior) - ((num_blocks - 1) * math.log(alone) + math.log(information)) / 2
            parts.append((centre, scale, log_weight - freedom / 2 * math.log(squares)))
        return np.array(parts)

    @property
    def _students(self) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
        return self._parts[:, 0], self._parts[:, 1], PRIOR_FREEDOM + len(self.logs) - 1

    @cached_property
    def _weights(self) -> NDArray[np.float64]:
        weights = np.exp(self._parts[:, 2] - self._parts[:, 2].max())
        return np.asarray(weights / weights.sum())


def whitened(columns: NDArray[np.float64], correlation: float) -> NDArray[np.float64]:
    """What is new in each block, if every block repeats so much of the one before."""
    first = math.sqrt(1 - correlation**2) * columns[:1]
    return np.concatenate([first, columns[1:] - correlation * columns[:-1]])


def noise_of(squares: float, freedom: int) -> float:
    """Scale of a log ratio: the usual one, together with a sum of squares that was seen, of so many degrees of
    freedom."""
    return math.sqrt((PRIOR_FREEDOM * PRIOR_SCALE**2 + squares) / (PRIOR_FREEDOM + freedom))


def is_proven_early(
    posterior: Posterior,
    log_searched: float | None,
    noise: float,
    log_margin: float,
    num_configs: int,
    *,
    is_final: bool = False,
) -> bool:
    """Whether few blocks prove that a config gains more than the margin; `num_configs` take part.

    One to three do, and more where the clock has ended the run (`is_final`): no later look can find a false winner
    then. Three blocks or more ask for less in that case: noise raises their bound in proportion, and the search's trial
    has to show half of it (docs/decisions/0060-early-looks.md).
    """
    num_blocks, most = len(posterior.logs), max(EARLY_GAINS)
    if log_searched is None or (num_blocks > most and not is_final):
        return False
    asks_less = is_final and num_blocks >= most
    # One block says little of the noise, and asks for a gain far beyond it as it is.
    power = 1 if asks_less or num_blocks == 1 else 2
    least = math.log(EARLY_GAINS[min(num_blocks, most)]) * max(1.0, noise / PRIOR_SCALE) ** power
    least = min(least, max(math.log(BEYOND_NOISE), BEYOND_SCALES * noise))
    if float(posterior.logs.mean()) < least or log_searched < (SHARE_OF_SEARCH if asks_less else 1.0) * least:
        return False
    return posterior.above(log_margin) >= 1 - EARLY_ERROR / num_configs


@dataclass(frozen=True)
class Gains:
    """Log gains over the untuned model, jointly normal, from all rows and the search's trials.

    A row says how its columns differ, and nothing about its own level, so rows with gaps are put together by least
    squares. The search's trials are one more row. All scatter by one scale, pooled over the rows, since it is a
    question of the next step and not of a proof.
    """

    logs: NDArray[np.float64]
    """Log values: a row a block, and one of the search; the untuned model in the first column; NaN in a gap."""

    @cached_property
    def known(self) -> NDArray[np.intp]:
        """Columns beside the first that some row holds."""
        return 1 + np.flatnonzero(np.isfinite(self.logs[:, 1:]).any(axis=0))

    @cached_property
    def centres(self) -> NDArray[np.float64]:
        """Expected log gain of each column; -inf where nothing is known."""
        information, known = self._information, self.known
        weighted = np.nansum(self.logs - np.nanmean(self.logs, axis=1, keepdims=True), axis=0)
        centres = np.full(len(weighted), -np.inf)
        centres[0] = 0.0
        centres[known] = -np.linalg.solve(information[np.ix_(known, known)], weighted[known])
        return centres

    @cached_property
    def draws(self) -> NDArray[np.float64]:
        """Drawn log gains: a row a draw, a column a config."""
        known, has = self.known, np.isfinite(self.logs)
        left = np.where(has, self.logs + np.where(np.isfinite(self.centres), self.centres, 0.0), np.nan)
        squares = float(np.nansum((left - np.nanmean(left, axis=1, keepdims=True)) ** 2))
        freedom = int(has.sum()) - len(self.logs) - len(known)
        # The scale of one process: a ratio is of two.
        variance = noise_of(2 * squares, freedom) ** 2 / 2
        root = np.linalg.cholesky(variance * np.linalg.inv(self._information[np.ix_(known, known)]))
        drawn = np.tile(self.centres, (NUM_DRAWS, 1))
        drawn[:, known] += np.random.default_rng(0).standard_normal((NUM_DRAWS, len(known))) @ root.T
        return drawn

    @cached_property
    def _information(self) -> NDArray[np.float64]:
        """What the rows tell of each column against the others of its row."""
        information = np.zeros((self.logs.shape[1], self.logs.shape[1]))
        for row in self.logs:
            has = np.flatnonzero(np.isfinite(row))
            information[np.ix_(has, has)] += np.eye(len(has)) - 1 / len(has)
        return information

    def of_each_over(self, column: int) -> NDArray[np.float64]:
        """Expected log gain that each column would bring over this one if it is better; 0 where nothing is known."""
        return np.asarray(np.maximum(self.draws - self.draws[:, [column]], 0.0).mean(axis=0))

    def of_best_over(self, column: int) -> float:
        """Expected log gain that the best of all configs would bring over this column."""
        best = self.draws[:, 1:].max(axis=1)
        return float(np.maximum(best - self.draws[:, column], 0.0).mean())
