"""The accuracy check of a trial, in the child: does a config compute what the untuned model computes?

The first untuned run of a study writes the reference; every other run is compared with it. A `Gate` decides what is
compared and how much it may differ: `OutputGate` for a model's outputs, `training.StepGate` for training steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from autotune.errors import AutotuneError, HarnessError
from autotune.measure import accuracy
from autotune.trial.request import TrialRequest


class WrongResultError(Exception):
    """The output differs from the reference by more than the tolerance."""

    def __init__(self, message: str, relative_error: float) -> None:
        super().__init__(message)
        self.relative_error = relative_error


class Gate(Protocol):
    """What two runs must agree in. `seen` and `reference` are lists of lists of arrays of one run each."""

    def refuse_unusable(self, seen: list[list[Any]], tolerance: float) -> None:
        """Raises AutotuneError or WrongResultError if the untuned model's run cannot be the reference."""

    def errors(self, reference: list[list[Any]], seen: list[list[Any]], tolerance: float) -> tuple[float, ...]:
        """The relative errors to record. Raises WrongResultError beyond the tolerance."""


def reference_tolerance(request: TrialRequest, dtypes: Iterable[str]) -> float | None:
    """The tolerance with which others are held to what this run computes; None for a run that writes no reference."""
    return request.tolerance_for(dtypes) if request.judged and _is_reference(request) else None


def check(request: TrialRequest, seen: list[list[Any]], tolerance: float, gate: Gate) -> tuple[float, ...] | None:
    """The relative errors against the reference; None for the run that writes it."""
    reference_file = Path(request.reference)
    if _is_reference(request):
        write_reference(request, seen, tolerance, gate)
        return None
    _require_tensors(request, seen)
    try:
        reference = accuracy.load_reference(reference_file)
    except (OSError, ValueError, KeyError) as error:
        raise HarnessError(f"the reference outputs cannot be read: {reference_file}: {error}") from None
    try:
        return gate.errors(reference, seen, tolerance)
    except WrongResultError as error:
        if not request.untuned or request.reference_precision == "model":
            raise
        raise WrongResultError(
            f"the untuned model itself leaves the tolerance of its {request.reference_precision} reference: {error}; "
            "allow more with --tolerance, or take --reference model",
            error.relative_error,
        ) from None


def write_reference(request: TrialRequest, seen: list[list[Any]], tolerance: float, gate: Gate) -> None:
    """Save the outputs of the untuned model, unless they cannot be the reference."""
    _require_tensors(request, seen)
    gate.refuse_unusable(seen, tolerance)
    accuracy.save_reference(Path(request.reference), seen)


@dataclass(frozen=True)
class OutputGate:
    """The outputs of a model. `seen` is a list of output arrays for each input.

    The last inputs are the first ones again: a capture that is right at first may be stale later. `why_unrepeatable`
    gives the cause if the untuned model itself is not repeatable.
    """

    model: str
    why_unrepeatable: Callable[[], str | None]

    def refuse_unusable(self, seen: list[list[Any]], tolerance: float) -> None:
        """An untuned model that gives NaN, or different outputs for the same input, cannot be the reference."""
        for place, output in enumerate(seen[0], start=1):
            if np.isnan(output).any():
                raise WrongResultError(
                    f"the untuned model itself gives NaN on its example inputs (output {place} of {len(seen[0])})",
                    float("nan"),
                )
        if accuracy.relative_error(seen[0], seen[-1]) > tolerance:
            why = self.why_unrepeatable()
            raise AutotuneError(
                f"{self.model}: the untuned model gives another output when called again with the same input"
                + (f": {why}" if why else ""),
                tip=None if why else "does it sample with a generator of its own, or keep state from call to call?",
            )

    def errors(self, reference: list[list[Any]], seen: list[list[Any]], tolerance: float) -> tuple[float, ...]:
        """Largest relative error of each output over all inputs."""
        if len(seen) != len(reference):
            given, wanted = len(seen) - 1, len(reference) - 1
            raise WrongResultError(
                f"{given} sets of inputs instead of {wanted}: the outputs cannot be paired", float("inf")
            )
        worst: dict[int, float] = {}
        for number, (expected, got) in enumerate(zip(reference, seen, strict=True), start=1):
            if any(np.isnan(each).any() for each in expected):
                continue  # A derived input outside the model's domain: the reference is NaN.
            where = f"input {number} of {len(seen)}"
            if len(got) != len(expected):
                raise WrongResultError(f"{len(got)} outputs instead of {len(expected)} on {where}", float("inf"))
            for place, (r, y) in enumerate(zip(expected, got, strict=True)):
                error = accuracy.output_error(r, y)
                if not error <= tolerance:
                    what = accuracy.why_incomparable(r, y) or f"relative error {error:.3g}, tolerance {tolerance:g}"
                    raise WrongResultError(f"output {place + 1} of {len(got)} on {where}: {what}", error)
                worst[place] = max(worst.get(place, 0.0), error)
        return tuple(worst[place] for place in sorted(worst))


def _is_reference(request: TrialRequest) -> bool:
    return request.untuned and not Path(request.reference).exists()


def _require_tensors(request: TrialRequest, seen: list[list[Any]]) -> None:
    if not seen[0]:
        raise AutotuneError(f"{request.workload.model}: the model's output holds no tensor to compare")
