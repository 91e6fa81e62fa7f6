"""The losses of a training step over several draws of its random numbers.

A step with dropout gives another loss with each seed. Compiled code draws other numbers than uncompiled code from the
same seed, so its losses cannot be compared one by one, but their distribution is that of the untuned step: one batch,
the same weights, `NUM_DRAWS` seeds. Three faults show in it: a step that drops nothing, or the same in each call, has
one loss for all seeds; one that drops far more or less scatters by another amount; one that forgets to scale what it
keeps is off on average. Limits are set so that a right step is refused about once in 10,000: six standard errors
between the means, and variances that differ by a factor of 40 (F distribution with 7 and 7 degrees of freedom).

Finer faults are looked for with the untuned step's own numbers: see `same_numbers`.
"""

from __future__ import annotations

import numpy as np

from autotune.measure.agreement import Array
from autotune.trial.worker.accuracy_check import WrongResultError

NUM_DRAWS = 8
"""Seeds with which the loss of the first batch is computed."""
_STANDARD_ERRORS = 6.0
_VARIANCES = 40.0
_ROUNDING = 1e-7
"""Share of the loss by which losses differ where nothing was drawn."""


def scatters(losses: Array) -> bool:
    """The losses differ by more than rounding."""
    return bool(np.ptp(losses) > _ROUNDING * np.abs(losses).max())


def require_alike(expected: Array, got: Array, tolerance: float) -> float:
    """The error of the mean loss. Raises WrongResultError where the losses are not of one distribution."""
    error = float(abs(got.mean() - expected.mean()) / np.abs(expected).max())
    of_draws = f"over {NUM_DRAWS} draws of its random numbers"
    if not scatters(expected):
        if error <= tolerance and not scatters(got):
            return error
        raise WrongResultError(
            f"the untuned step gives the loss {expected[0]:.6g} {of_draws}, this one {_shown(got)}", error
        )
    if not scatters(got):
        raise WrongResultError(
            f"the loss is {got[0]:.6g} {of_draws}, where the untuned step gives {_shown(expected)}: it drops nothing, "
            "or the same in each call",
            error,
        )
    variances = float(got.var(ddof=1) / expected.var(ddof=1))
    if not 1 / _VARIANCES <= variances <= _VARIANCES:
        raise WrongResultError(
            f"the loss scatters by {got.std(ddof=1):.3g} {of_draws}, that of the untuned step by "
            f"{expected.std(ddof=1):.3g}",
            error,
        )
    standard_error = np.sqrt((got.var(ddof=1) + expected.var(ddof=1)) / NUM_DRAWS)
    difference = abs(got.mean() - expected.mean())
    if not difference <= _STANDARD_ERRORS * standard_error + tolerance * np.abs(expected).max():
        raise WrongResultError(
            f"the mean loss {of_draws} is {got.mean():.6g} instead of {expected.mean():.6g}, "
            f"{difference / standard_error:.3g} standard errors away",
            error,
        )
    return error


def _shown(losses: Array) -> str:
    return f"{losses.min():.6g} to {losses.max():.6g}"
