"""What is expected of configs that were not tried: by how much each would improve on the best, from what was observed.

A trial that failed says nothing about latency; it teaches which configs fail. A measured trial that misses a constraint
teaches its latency all the same, and by how much it missed. Of two configs that promise as much, the one whose trial is
shorter comes first. Figures: docs/decisions/0011-early-stop.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotune.study.sampler.gaussian_process import (
    Array,
    Encoding,
    GaussianPosterior,
    Kernel,
    KernelPrior,
    expected_improvement,
    fit_kernel,
    one_blas_thread,
    prior_kernel,
)

MAX_OBSERVATIONS, MAX_TO_FIT = 300, 120
"""More trials are not learned from, nor used to learn which knobs matter: the cost grows with their cube."""

VALUES, FAILURES = KernelPrior(), KernelPrior(weight=0.1, variance=1.0, noise=0.05)
PRIORS = VALUES, KernelPrior(weight=0.1), KernelPrior(weight=0.3)
"""Priors of the objective, over which the gain is averaged: one that takes effects for additive may be sure, and
wrong, that the best config is bad."""
COST_POWER = 0.5
"""A gain is divided by the seconds of its trial to this power. With 1 the search keeps to what is cheap."""
DOUBT, DOUBT_OF_FAILURES = 0.05, 0.1
"""Variance added to a forecast of feasibility, since bounds are missed and configs fail for reasons that no knob tells:
of standardised margins, and of labels that are -1 or 1."""
SMALLEST_SPREAD = 0.02
"""Standard deviation that log values are taken to have at least: two equal ones say little about a third."""

Rows = npt.NDArray[np.intp]


@dataclass(frozen=True)
class Observations:
    """Finished trials in order, a row each, and the running ones."""

    points: Array
    """Shape `(num_trials, num_features)`."""
    values: Array
    """What is minimised, shape `(num_trials,)`; of no meaning where the trial failed."""
    failed: npt.NDArray[np.bool_]
    violations: Array
    """Misses of bounds, shape `(num_trials, num_constraints)`: 0 or less where kept; of no meaning if it failed."""
    running: Array
    """Points of the trials that are still under way."""
    seconds: Array
    """Seconds of each trial, shape `(num_trials,)`; NaN where that is unknown, as it is of most that failed."""

    @property
    def feasible(self) -> npt.NDArray[np.bool_]:
        """Shape `(num_trials,)`."""
        return np.asarray(~self.failed & (self.violations <= 0).all(axis=1))


@dataclass(frozen=True)
class Forecast:
    """For each config that was asked about, as logarithms."""

    log_feasible: Array
    """Log of the probability that it runs, is right and keeps every constraint."""
    log_gain: Array
    """Log of the improvement to be expected if so, as a share of the best value; 0 as long as nothing is feasible."""
    log_seconds: Array
    """Log of the seconds of its trial; 0 as long as no trial's are known."""

    @property
    def log_expected_gain(self) -> Array:
        """Log of the improvement to be expected of trying it."""
        return self.log_feasible + self.log_gain

    @property
    def score(self) -> Array:
        """The larger the sooner the config should be tried."""
        return self.log_expected_gain - COST_POWER * self.log_seconds


@dataclass(frozen=True)
class _Belief:
    """A posterior of standardised values, and back."""

    posterior: GaussianPosterior
    shift: float
    scale: float

    def at(self, points: Array) -> tuple[Array, Array]:
        mean, sd = self.posterior.predict(points)
        return self.shift + self.scale * mean, self.scale * sd


Standardise = Callable[[Array], tuple[Array, float, float]]
"""Values made standard by what these values are, all of them; with the shift and the scale that lead back."""


@dataclass(frozen=True)
class _Lesson:
    """Values of some trials, and how to learn from them."""

    about: str
    """What is learned; kernels are kept by it."""
    points: Array
    """Shape `(num_trials, num_features)`."""
    values: Array
    """Shape `(num_trials,)`."""
    prior: KernelPrior
    standardise: Standardise


class Forecaster:
    """Keeps what it learned about the knobs until a share of the trials is new.

    It then learns from a certain number of the first trials, made standard by themselves, not from all that there
    happen to be: a study that is resumed goes on as it would have.
    """

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding
        self._kernels: dict[str, tuple[Array, Kernel]] = {}

    def forecast(self, observed: Observations, points: Array) -> Forecast:
        """Forecast for the configs at `points`."""
        with one_blas_thread():
            return Forecast(
                self._log_feasible(observed, points),
                self._log_gain(observed, points),
                self._log_seconds(observed, points),
            )

    def _log_gain(self, observed: Observations, points: Array) -> Array:
        if not observed.feasible.any():
            return np.zeros(len(points))
        gains = [self._gain(prior, observed, points) for prior in PRIORS]
        return np.asarray(np.log(np.maximum(np.mean(gains, axis=0), 1e-300)))

    def _gain(self, prior: KernelPrior, observed: Observations, points: Array) -> Array:
        measured = ~observed.failed
        belief = self._values(prior, observed.points[measured], _logs(observed.values[measured]), observed.running)
        return expected_improvement(*belief.at(points), best=belief.at(observed.points[observed.feasible])[0].min())

    def _log_seconds(self, observed: Observations, points: Array) -> Array:
        known = np.isfinite(observed.seconds) & (observed.seconds > 0)
        if not known.any():
            return np.zeros(len(points))
        logs = np.log(observed.seconds[known])
        return self._believe(_Lesson("seconds", observed.points[known], logs, VALUES, _standard)).at(points)[0]

    def _log_feasible(self, observed: Observations, points: Array) -> Array:
        measured = ~observed.failed
        logs = np.zeros(len(points))
        if observed.failed.any():
            labels = np.where(observed.failed, 1.0, -1.0)
            belief = self._believe(_Lesson("failed", observed.points, labels, FAILURES, _as_labels))
            logs += _log_below_zero(belief, points, doubt=DOUBT_OF_FAILURES)
        for number, missed in enumerate(observed.violations[measured].T if measured.any() else ()):
            about, seen = f"constraint {number}", observed.points[measured]
            belief = self._believe(_Lesson(about, seen, missed, VALUES, lambda shares: _standard(_margins(shares))))
            logs += _log_below_zero(belief, points, doubt=DOUBT * belief.scale**2)
        return logs

    def _values(self, prior: KernelPrior, points: Array, logs: Array, running: Array) -> _Belief:
        belief = self._believe(_Lesson(f"value, weight {prior.weight}", points, logs, prior, _standard))
        return _Belief(belief.posterior.believing(running), belief.shift, belief.scale)

    def _believe(self, lesson: _Lesson) -> _Belief:
        kernel = self._kernel(lesson)
        standard, shift, scale = lesson.standardise(lesson.values)
        rows = _telling(standard, MAX_OBSERVATIONS)
        return _Belief(GaussianPosterior(kernel, lesson.points[rows], standard[rows]), shift, scale)

    def _kernel(self, lesson: _Lesson) -> Kernel:
        """Learned from as many of the first trials as are a multiple of the step.

        The one of an earlier call is taken again only where it was learned from the very same trials: a trial may end
        after later ones, and what is chosen must not depend on when this process began.
        """
        points, values = lesson.points, lesson.values
        step = max(3, len(values) // 10)
        num_learned = len(values) - len(values) % step
        known = self._kernels.get(lesson.about)
        if num_learned == 0:
            return prior_kernel(self._encoding, lesson.prior)
        learned = np.column_stack([points[:num_learned], values[:num_learned]])
        if known is None or not np.array_equal(known[0], learned):
            standard = lesson.standardise(values[:num_learned])[0]
            rows = _telling(standard, MAX_TO_FIT)
            known = learned, fit_kernel(self._encoding, points[rows], standard[rows], lesson.prior)
            self._kernels[lesson.about] = known
        return known[1]


def _standard(values: Array) -> tuple[Array, float, float]:
    shift, scale = float(values.mean()), max(float(values.std()), SMALLEST_SPREAD)
    return (values - shift) / scale, shift, scale


def _as_labels(values: Array) -> tuple[Array, float, float]:
    """Labels, which are -1 or 1: what nothing is known of is a -1."""
    return values + 1.0, -1.0, 1.0


def _logs(values: Array) -> Array:
    """Logarithms of values that are positive throughout: their ratios matter. Others stay as they are."""
    return np.log(values) if (values > 0).all() else values


def _margins(violations: Array) -> Array:
    """Signed logarithms: a quantity is a product of effects, and tenfold over a bound is not ten times as telling.

    What is kept exactly, as in `graph_breaks == 0`, is no near miss: it counts as kept by the typical amount.
    """
    sizes = np.abs(violations[violations != 0])
    typical = float(np.median(sizes)) if len(sizes) else 1.0
    away = np.where(violations == 0, -typical, violations)
    return np.asarray(np.sign(away) * np.log1p(np.abs(away) / typical))


def _log_below_zero(belief: _Belief, points: Array, doubt: float) -> Array:
    from scipy.special import log_ndtr

    mean, sd = belief.at(points)
    return np.asarray(log_ndtr(-mean / np.sqrt(sd**2 + doubt)))


def _telling(values: Array, limit: int) -> Rows:
    """Rows to learn from, in order: the lowest values and the latest ones, half and half, if there are too many."""
    if len(values) <= limit:
        return np.arange(len(values))
    lowest = np.argsort(values, kind="stable")[: limit // 2]
    others = np.setdiff1d(np.arange(len(values)), lowest)
    return np.sort(np.concatenate([lowest, others[-(limit - limit // 2) :]]))
