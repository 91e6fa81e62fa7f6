"""The accuracy check of a trial, in the child: does a config compute what the untuned model computes?

The first untuned run of a study writes the reference; every other run is compared with it. A `Gate` decides what is
compared and how much it may differ: `OutputGate` for a model's outputs and what its calls leave behind,
`StepGate` for training steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from autotune.backends.outputs import Observed
from autotune.errors import AutotuneError, SetupError, marked
from autotune.measure import accuracy, parts
from autotune.measure.agreement import Array
from autotune.measure.measurement import Checked
from autotune.measure.parts import AuthorsWord, DisagreementError, Part, Strictness
from autotune.trial.request import TrialRequest


class WrongResultError(Exception):
    """The output differs from the reference by more than the tolerance."""

    def __init__(self, message: str, relative_error: float) -> None:
        super().__init__(message)
        self.relative_error = relative_error


class Gate(Protocol):
    """What two runs must agree in. `seen` is what one run gave; a reference is that of the run that writes it."""

    def refuse_unusable(self, seen: Any, tolerance: float) -> None:
        """Raises AutotuneError or WrongResultError if the untuned model's run cannot be the reference."""

    def errors(self, reference: Any, seen: Any, tolerance: float) -> tuple[float, ...]:
        """The relative errors to record. Raises WrongResultError beyond the tolerance."""

    def packed(self, seen: Any) -> list[list[Array]]:
        """`seen` as arrays, for the file."""

    def unpacked(self, stored: list[list[Array]]) -> Any:
        """What `packed` was made of."""

    def uncompared(self, seen: Any) -> tuple[str, ...]:
        """What the run gave or left behind and cannot be compared, in words."""

    def settled(self, reference: Any, seen: Any, tolerance: float) -> Any:
        """The reference with what a further process of the untuned model tells: the forms of the model's own precision
        that a wide one lacks, and which floats are no times. None if it lacks nothing."""


def reference_tolerance(request: TrialRequest, dtypes: Iterable[str]) -> float | None:
    """The tolerance with which others are held to what this run computes; None for a run that writes no reference."""
    return request.tolerance_for(dtypes) if request.judged and is_reference(request) else None


def check(request: TrialRequest, seen: Any, tolerance: float, gate: Gate) -> Checked:
    """Compare a run with the reference; the first untuned run writes it. Raises WrongResultError.

    There are no errors for the run that writes the reference, nor for one that is not judged.
    """
    if not request.judged:
        return Checked(relative_error=None)
    if is_reference(request):
        write_reference(request, seen, tolerance, gate)
        return Checked(relative_error=None, not_compared=gate.uncompared(seen))
    reference = read_reference(request, gate)
    settled = gate.settled(reference, seen, tolerance) if request.untuned else None
    reference = reference if settled is None else settled
    try:
        errors = gate.errors(reference, seen, tolerance)
    except WrongResultError as error:
        if not request.untuned or request.reference_precision == "model":
            raise
        raise WrongResultError(
            f"the untuned model itself leaves the tolerance of its {request.reference_precision} reference: {error}; "
            f"allow more with {marked('tolerance')}, or take {marked('reference', 'model')}",
            error.relative_error,
        ) from None
    if settled is not None:
        save(request, settled, gate)
    return Checked(relative_error=max(errors), output_errors=errors, not_compared=gate.uncompared(seen))


def write_reference(request: TrialRequest, seen: Any, tolerance: float, gate: Gate) -> None:
    """Save what the untuned model gave, unless it cannot be the reference."""
    gate.refuse_unusable(seen, tolerance)
    save(request, seen, gate)


def save(request: TrialRequest, reference: Any, gate: Gate) -> None:
    """Write the reference, also in place of one that lacks something."""
    accuracy.save_reference(Path(request.reference), gate.packed(reference))


def read_reference(request: TrialRequest, gate: Gate) -> Any:
    """The study's reference. Raises SetupError if it cannot be read."""
    try:
        return gate.unpacked(accuracy.load_reference(Path(request.reference)))
    except (OSError, ValueError, KeyError) as error:
        raise SetupError(f"the reference outputs cannot be read: {request.reference}: {error}") from None


def num_compared(reference: Path) -> int | None:
    """How many inputs a reference was made with; None if it is missing or cannot be read."""
    try:
        return int(heading_of(accuracy.load_reference(reference, most=1))["num_inputs"])
    except (OSError, ValueError, KeyError):
        return None


def is_reference(request: TrialRequest) -> bool:
    """This run writes the reference."""
    return request.untuned and not Path(request.reference).exists()


EARLIER = " before the last call"
"""Ends the name of what was other one call earlier: what takes turns may be back where it was after the last."""


@dataclass(frozen=True)
class Seen:
    """What the calls of one run gave and left behind."""

    calls: list[Observed]
    """What each of the subject's inputs gave. The last inputs are the first ones again: a capture that is right at
    first may be stale later."""
    left: list[Part]
    """What was other after the calls than before: inputs written to, buffers, attributes; and what is no tensor one
    call earlier, too (`EARLIER`)."""
    not_compared: list[str] = field(default_factory=list)
    """State that cannot be looked into, in words."""
    ignored: frozenset[str] = frozenset()
    """In a reference: names of numbers and texts of Python that no two calls share, such as a time."""
    framework: str = ""
    has_forms: bool = True
    """The forms of the parts are the model's own. Not those of a wide reference."""
    has_turns: bool = True
    """Objects that took another's place are in `left`. Not in a reference that was written before November 2026."""
    spreads: list[list[Array | None]] = field(default_factory=list)
    """In a reference: for each call, what nudges move each part by (see `agreement.spread_of`). Empty: not known."""
    times: frozenset[str] = frozenset()
    """In a reference: names of floats in `left` that may be times, as far as is known (see `possible_times`)."""


@dataclass(frozen=True)
class OutputGate:
    """The outputs of a model and what its calls leave behind.

    `why_unrepeatable` gives the cause if the untuned model itself is not repeatable, by the names of what its calls
    changed; `authors` is what the model's author says of how its outputs are compared.
    """

    model: str
    why_unrepeatable: Callable[[Sequence[str]], str | None]
    authors: AuthorsWord | None = None
    num_in_a_row: int = 1
    """So many calls at the beginning go on from each other's state."""

    def refuse_unusable(self, seen: Seen, tolerance: float) -> None:
        """An untuned model without outputs to compare, whose outputs are NaN throughout, or that gives different ones
        for the same input, cannot be the reference."""
        first = seen.calls[0]
        tensors = [part for part in first.parts if part.is_tensor]
        if not tensors:
            found = f" ({'; '.join(first.not_compared)})" if first.not_compared else ""
            raise AutotuneError(
                f"{self.model}: the model's output holds no tensor to compare{found}",
                tip="let it return tensors, or objects whose attributes are tensors",
            )
        for part in tensors:
            if part.array.dtype.kind in "fc" and part.array.size and np.isnan(part.array).all():
                raise WrongResultError(
                    f"the untuned model itself gives NaN on its example inputs ({part.name})", float("nan")
                )
        if self.why_unlike(seen, tolerance) is not None:
            why = self.why_unrepeatable([part.name for part in seen.left if not part.name.endswith(EARLIER)])
            raise AutotuneError(
                f"{self.model}: the untuned model gives another output when called again with the same input"
                + (f": {why}" if why else ""),
                tip=None if why else "does it sample with a generator of its own, or keep state from call to call?",
            )

    def errors(self, reference: Seen, seen: Seen, tolerance: float, way: str | None = None) -> tuple[float, ...]:
        """Largest relative error of each output over all inputs. `way`: what a message says in place of which input it
        was."""
        if len(seen.calls) != len(reference.calls):
            given, wanted = len(seen.calls) - 1, len(reference.calls) - 1
            raise WrongResultError(
                f"{given} sets of inputs instead of {wanted}: the outputs cannot be paired", float("inf")
            )
        if seen.framework != reference.framework:
            reference, seen = _by_place(reference), _by_place(seen)
        terms = Strictness(tolerance, reference.has_forms and seen.has_forms, reference.ignored, self.authors)
        worst: dict[str, float] = {}
        for number, (expected, got) in enumerate(zip(reference.calls, seen.calls, strict=True)):
            spreads = reference.spreads[number] if number < len(reference.spreads) else None
            try:
                found = parts.errors(expected.parts, got.parts, terms, spreads)
            except DisagreementError as error:
                place = way or self._place(number, len(seen.calls))
                raise WrongResultError(f"{place}, {error}", error.relative_error) from None
            for name, largest in found.items():
                worst[name] = max(worst.get(name, 0.0), largest)
        left = seen.left if reference.has_turns else without_turns(seen.left, reference.left)
        try:
            expected_left = without_values(reference.left, reference.times)
            parts.require_same_changes(expected_left, left, replace(terms, authors=None))
        except DisagreementError as error:
            raise WrongResultError(str(error), error.relative_error) from None
        return tuple(worst.values())

    def leaves_out(self, name: str) -> bool:
        """The author does not have this output compared, or compares all in a way of his own."""
        return self.authors is not None and self.authors.leaves_out(name)

    def _place(self, number: int, num_calls: int) -> str:
        num_further = self.num_in_a_row - 1
        if 0 < number <= num_further:
            return f"in call {number + 1} after a reset"
        return f"on input {max(number - num_further, 0) + 1} of {num_calls - num_further}"

    def packed(self, seen: Seen) -> list[list[Array]]:
        """A heading, then the arrays of each call, of what is left, and of the spreads, call by call."""
        lists = [*(call.parts for call in seen.calls), seen.left]
        heading = {
            "num_inputs": len(seen.calls),
            "parts": [parts.heading_of(held) for held in lists],
            "ignored": sorted(seen.ignored | unlike(seen)),
            "has_forms": seen.has_forms,
            "has_turns": seen.has_turns,
            "times": sorted(seen.times),
            "framework": seen.framework,
        }
        arrays = [[part.array for part in held] for held in lists]
        spreads = [[np.zeros(0) if spread is None else spread for spread in call] for call in seen.spreads]
        return [[np.asarray(json.dumps(heading))], *arrays, *spreads]

    def unpacked(self, stored: list[list[Array]]) -> Seen:
        """Raises ValueError for the file of another release."""
        heading = heading_of(stored)
        named = heading["parts"]
        arrays, spreads = stored[1 : 1 + len(named)], stored[1 + len(named) :]
        lists = [parts.parts_with(*named_arrays) for named_arrays in zip(named, arrays, strict=True)]
        # What is large was stored whole before November 2026.
        of_calls = (
            lists[:-1] if self.authors else [[kept for part in held for kept in part.kept()] for held in lists[:-1]]
        )
        lists = [*of_calls, [kept for part in lists[-1] for kept in part.kept()]]
        spreads = spreads if [*map(len, of_calls)] == [*map(len, arrays[:-1])] else []
        return Seen(
            calls=[Observed(held) for held in lists[:-1]],
            left=lists[-1],
            ignored=frozenset(heading["ignored"]),
            has_forms=heading["has_forms"],
            has_turns=heading.get("has_turns", False),
            framework=heading["framework"],
            # Earlier releases kept no jumps beside it, in one dimension: what nudges move is unknown then.
            spreads=[[spread if spread.size and spread.ndim == 2 else None for spread in call] for call in spreads],
            times=frozenset(heading.get("times", ())),
        )

    def uncompared(self, seen: Seen) -> tuple[str, ...]:
        names = [*(name for call in seen.calls for name in call.not_compared), *seen.not_compared]
        return tuple(
            dict.fromkeys([*names, *(f"{name} (another value in each call)" for name in sorted(unlike(seen)))])
        )

    def settled(self, reference: Seen, seen: Seen, tolerance: float) -> Seen | None:
        left = settled_floats(reference.left, reference.times, seen.left, tolerance)
        if left is not None:
            reference = replace(reference, left=left, times=frozenset())
        if not reference.has_forms:
            return _with_forms_of(reference, seen)
        return None if left is None else reference

    def why_unlike(self, seen: Seen, tolerance: float) -> str | None:
        """How the tensors of two calls with the same inputs differ."""
        first, again = ([part for part in call.parts if part.is_tensor] for call in (seen.calls[0], seen.calls[-1]))
        try:
            parts.errors(first, again, Strictness(tolerance, authors=self.authors))
        except DisagreementError as error:
            return str(error)
        return None


def heading_of(stored: list[list[Array]]) -> dict[str, Any]:
    """The text that a reference begins with. Raises ValueError for the file of another release."""
    try:
        heading: dict[str, Any] = json.loads(str(stored[0][0]))
    except (IndexError, json.JSONDecodeError):
        raise ValueError(
            f"it was written by another release of autotune; tune under another name ({marked('study')})"
        ) from None
    return heading


def _with_forms_of(reference: Seen, seen: Seen) -> Seen:
    """A wide reference with the forms of the model's own run."""
    forms = {part.name: part.form for held in (*(call.parts for call in seen.calls), seen.left) for part in held}

    def own(held: Sequence[Part]) -> list[Part]:
        known = (part.name in forms and part.form != parts.CHANGED for part in held)
        return [replace(part, form=forms[part.name]) if has else part for part, has in zip(held, known, strict=True)]

    calls = [Observed(own(call.parts)) for call in reference.calls]
    return replace(reference, calls=calls, left=own(reference.left), has_forms=True)


def _by_place(seen: Seen) -> Seen:
    """For a model of another framework: its tensors and numbers in their order, whatever they are called there. What
    its calls leave behind has names of its own, and is no output."""
    places = [[n for n, part in enumerate(call.parts) if part.array.dtype.kind not in "US"] for call in seen.calls]
    calls = [
        Observed([replace(call.parts[n], name=f"output {place}") for place, n in enumerate(kept, start=1)])
        for call, kept in zip(seen.calls, places, strict=True)
    ]
    spreads = [[spread[n] for n in kept] for spread, kept in zip(seen.spreads, places, strict=False)]
    return replace(seen, calls=calls, left=[], spreads=spreads, ignored=frozenset())


def is_outside(expected: Sequence[Part], example: Sequence[Part]) -> bool:
    """The untuned model gives NaN for these inputs, and none for the example: they are outside of its domain."""
    return _num_nan(expected) > 0 and _num_nan(example) == 0


def possible_times(left: Sequence[Part], first: Sequence[Part], between: Sequence[Part]) -> frozenset[str]:
    """Names of the floats in `left`, as the last call leaves them, that may be times. Not those that two calls with the
    same inputs, `first` and the last, leave alike, and a call with others in `between` does not."""
    once, other = ({part.name: part.array for part in held if part.is_float} for held in (first, between))
    return frozenset(
        part.name
        for part in left
        if part.is_float
        and not (_is_equal(once.get(part.name), part.array) and not _is_equal(other.get(part.name), part.array))
    )


def settled_floats(
    reference: Sequence[Part], times: frozenset[str], left: Sequence[Part], tolerance: float
) -> list[Part] | None:
    """What calls left behind, without the values that two processes of the untuned model do not share: those that may
    be times to the last bit, other floats within the tolerance. None where all is known."""
    now = {part.name: part.array for part in left if part.is_float}
    unlike = frozenset(
        part.name
        for part in reference
        if part.is_float and not _is_equal(now.get(part.name), part.array, 0.0 if part.name in times else tolerance)
    )
    return without_values(reference, unlike) if times or unlike else None


def without_values(left: Sequence[Part], names: frozenset[str]) -> list[Part]:
    """What was left behind; of these parts, that they were changed."""
    return [part.without_value() if part.name in names else part for part in left]


def _is_equal(one: Array | None, other: Array, tolerance: float = 0.0) -> bool:
    return one is not None and bool(np.isclose(one, other, rtol=tolerance, atol=0.0, equal_nan=True).all())


def without_turns(left: Sequence[Part], reference: Sequence[Part]) -> list[Part]:
    """What was left behind, as releases saw it that did not see objects take each other's places."""
    known = {part.name for part in reference}
    new = (parts.OBJECT, parts.CHANGED)
    return [part for part in left if part.name in known or not (part.form in new or part.name.endswith(EARLIER))]


def _num_nan(found: Sequence[Part]) -> int:
    return sum(int(np.isnan(part.array).sum()) for part in found if part.array.dtype.kind in "fc")


def unlike(seen: Seen) -> frozenset[str]:
    """Names of the numbers and texts of Python that two calls with the same inputs do not share."""
    other = {part.name: part.array for part in seen.calls[-1].parts}
    return frozenset(
        part.name
        for part in seen.calls[0].parts
        if not part.is_tensor and not np.array_equal(part.array, other.get(part.name, np.zeros(0)))
    )
