"""Does a config compute what the untuned model computes? The check of a trial, in the child.

The first untuned run of a study writes the reference, every other run is compared with it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from autotune import numerics
from autotune.errors import AutotuneError, HarnessError
from autotune.trial import TrialRequest


class WrongResultError(Exception):
    """The output leaves the tolerance."""

    def __init__(self, message: str, relative_error: float) -> None:
        super().__init__(message)
        self.relative_error = relative_error


def check(request: TrialRequest, seen: list[list[Any]], tolerance: float) -> float | None:
    """Largest relative error of the outputs `seen` (a list of arrays for each input); None for the reference itself.

    The last inputs are the first ones again: a capture that is right at first may be stale later.
    """
    if not seen[0]:
        raise AutotuneError(f"{request.workload.model}: the model's output holds no tensor to compare")
    reference_file = Path(request.reference)
    if request.untuned and not reference_file.exists():
        _refuse_unusable(request, tolerance, seen)
        numerics.save_reference(reference_file, seen)
        return None
    try:
        reference = numerics.load_reference(reference_file)
    except (OSError, ValueError, KeyError) as error:
        raise HarnessError(f"the reference outputs cannot be read: {reference_file}: {error}") from None
    return _worst_error(tolerance, reference, seen)


def _worst_error(tolerance: float, reference: list[list[Any]], seen: list[list[Any]]) -> float:
    worst = 0.0
    for number, (expected, got) in enumerate(zip(reference, seen, strict=True)):
        if any(np.isnan(each).any() for each in expected):
            continue  # A derived input outside the model's domain: the untuned model has no answer to compare with.
        error = numerics.relative_error(expected, got)
        if not error <= tolerance:
            size = (
                f"{error:.3g}" if np.isfinite(error) else "not comparable (another shape or integer, NaN or infinity)"
            )
            raise WrongResultError(
                f"output on input {number + 1} of {len(seen)}: relative error {size}, tolerance {tolerance:g}",
                error,
            )
        worst = max(worst, error)
    return worst


def _refuse_unusable(request: TrialRequest, tolerance: float, seen: list[list[Any]]) -> None:
    """An untuned model that gives NaN, or another output for the same input, is nothing to compare with."""
    if any(np.isnan(each).any() for each in seen[0]):
        raise WrongResultError("the untuned model itself gives NaN on its example inputs", float("nan"))
    if numerics.relative_error(seen[0], seen[-1]) > tolerance:
        raise AutotuneError(
            f"{request.workload.model}: the untuned model gives another output when called again with the same input",
            tip="is dropout on (call model.eval())? are random numbers drawn in forward? does it write into its input?",
        )
