"""What calls give and leave behind, part by part, and how the parts of two runs are compared. NumPy only.

Parts are paired by name. Tensors and numbers are held to a tolerance (`agreement`), texts and forms are equal. The
author of a model may say otherwise for its outputs (`Compare`): with a function, or part by part.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from autotune.errors import AutotuneError, InputError, quoted
from autotune.measure.agreement import Array, ArrayAgreement, compare
from autotune.measure.sketch import OTHERS, PLACES, SUMS, is_large, sketch_of

INFINITE = float("inf")
CHANGED = "changed"
"""The form of a part whose value is not known."""
FLOAT_FLOOR = 10.0
"""A float that is left behind is compared by so many tolerances where it is less: what is left of larger numbers, such
as a residual, is rounding."""
OBJECT = "object"
"""The form of an object that took another's place: its text says which it is."""


@dataclass(frozen=True)
class Part:
    """A tensor, a number or a text that a call gave, or left behind."""

    name: str
    """As one would write it: `output['boxes']`, `output[1].loc`."""
    form: str
    """What must be equal: the element type, the layout, the input of which it is a view; the class of a number."""
    array: Array
    """A copy of its elements; of a text or None, the text."""
    is_tensor: bool = True
    """False: it is a number or a text of Python."""

    @property
    def step(self) -> float | None:
        """How far 1 is from the next number of its element type; None where that is the array's own."""
        return next((value for name, value in _ROUNDINGS.items() if self.form.startswith(name)), None)

    @property
    def is_float(self) -> bool:
        """A number of Python with a fraction, which may be a time."""
        return self.form == "float" and not self.is_tensor

    def kept(self) -> list[Part]:
        """As it is, or the parts of its sketch, if it is a large tensor."""
        is_whole = not self.name.endswith((SUMS, OTHERS, PLACES))
        to_sketch = self.is_tensor and self.array.dtype.kind in "biufc" and is_whole and is_large(self.array.size)
        kept = sketch_of(self.array) if to_sketch else {"": self.array}
        return [replace(self, name=self.name + end, array=array) for end, array in kept.items()]

    def without_value(self) -> Part:
        """That it was changed is known, and not to what."""
        return Part(self.name, CHANGED, np.asarray(""), is_tensor=False)


Heading = list[tuple[str, str, bool]]
"""What is told of parts beside their arrays."""


def heading_of(parts: Sequence[Part]) -> Heading:
    """What a file holds of parts as text, their arrays apart."""
    return [(part.name, part.form, part.is_tensor) for part in parts]


def parts_with(heading: Heading, arrays: Sequence[Array]) -> list[Part]:
    """The parts that a heading was made of. Raises ValueError for another number of arrays."""
    return [Part(name, form, array, is_tensor) for (name, form, is_tensor), array in zip(heading, arrays, strict=True)]


class DisagreementError(Exception):
    """A part is not what the reference has. The message names it and says how."""

    def __init__(self, message: str, relative_error: float = INFINITE) -> None:
        super().__init__(message)
        self.relative_error = relative_error


@dataclass(frozen=True)
class Strictness:
    """How strict a comparison is."""

    tolerance: float
    with_forms: bool = True
    ignored: frozenset[str] = frozenset()
    """Names of parts that are not compared."""
    authors: AuthorsWord | None = None


def errors(
    expected: Sequence[Part], got: Sequence[Part], terms: Strictness, spreads: Sequence[Array | None] | None = None
) -> dict[str, float]:
    """The error of each tensor and number by its name. Raises DisagreementError for the first part that is wrong.

    `spreads`: for each expected part, what nudges move it by (see `agreement.spread_of`).
    """
    ignored = terms.ignored
    found = {part.name: part for part in got if part.name not in ignored}
    for name in sorted(found.keys() - {part.name for part in expected}):
        raise DisagreementError(f"{name} is there, and the untuned model gives none")
    if terms.authors is not None and terms.authors.function is not None:
        return {"output": terms.authors.error_of(expected, got, terms.tolerance)}
    result = {}
    for place, part in enumerate(expected):
        if part.name in ignored:
            continue
        spread = None if spreads is None else spreads[place]
        agreed = _agreement(part, found.get(part.name), terms, spread)
        if agreed.wrong is not None:
            raise DisagreementError(f"{part.name}: {agreed.wrong}", agreed.error)
        if part.array.dtype.kind not in "US":
            result[part.name] = agreed.error
    return result


def require_same_changes(expected: Sequence[Part], got: Sequence[Part], terms: Strictness) -> None:
    """What the calls left behind: the same things were changed, to the same. Raises DisagreementError."""
    theirs, ours = ({part.name for part in parts} - terms.ignored for parts in (expected, got))
    for name in sorted(theirs - ours):
        raise DisagreementError(f"the untuned model changes {name}, and the config leaves it as it is")
    for name in sorted(ours - theirs):
        raise DisagreementError(f"the config changes {name}, and the untuned model leaves it as it is")
    unknown = frozenset(part.name for part in expected if part.form == CHANGED)
    unknown |= _near(expected, got, FLOAT_FLOOR * terms.tolerance**2)
    try:
        errors(expected, got, replace(terms, ignored=terms.ignored | unknown))
    except DisagreementError as error:
        raise DisagreementError(f"after the calls, {error}", error.relative_error) from None


def _near(expected: Sequence[Part], got: Sequence[Part], distance: float) -> frozenset[str]:
    """Names of the floats that are no further apart."""
    found = {part.name: part.array for part in got if part.is_float}
    both = [(part, found[part.name]) for part in expected if part.is_float and part.name in found]
    return frozenset(part.name for part, other in both if abs(float(part.array) - float(other)) <= distance)


def _agreement(part: Part, other: Part | None, terms: Strictness, spread: Array | None) -> ArrayAgreement:
    if other is None:
        return ArrayAgreement(INFINITE, "it is missing")
    if terms.with_forms and other.form != part.form:
        return ArrayAgreement(INFINITE, f"{other.form} instead of {part.form}")
    tolerance = max(terms.tolerance, part.step or 0.0)
    if terms.authors is None:
        return compare(part.array, other.array, tolerance, spread, part.step)
    return terms.authors.agreement(part, other.array, tolerance, spread)


_ROUNDINGS = {"float8_e5m2": 2**-2, "float8": 2**-3, "bfloat16": 2**-7}
"""Element type that is coarser than some tolerance -> how far 1 is from the next number: right results may be rounded
to neighbours, whatever the precision of the model that they come from."""


Function = Callable[[dict[str, Array], dict[str, Array]], object]
"""Takes the reference's and the config's outputs by name. Returns None or True if these are right, False or a text that
says what is wrong, or an error, which is held to the tolerance."""


Compare = Function | Mapping[str, Any]
"""What an author gives: see `AuthorsWord.of`."""


@dataclass(frozen=True)
class AuthorsWord:
    """What the author of a model said of how its outputs are compared."""

    function: Function | None = None
    rules: tuple[Rule, ...] = ()

    @classmethod
    def of(cls, given: object) -> AuthorsWord:
        """A function, or a mapping from the name of an output, as messages have it, to a tolerance, None (it is not
        compared), or an array of truth values (what counts). A name may end in a slice: `output[..., 4:]`.

        Raises InputError.
        """
        if callable(given):
            return cls(function=given)
        if not isinstance(given, Mapping) or not given:
            raise InputError(
                f"compare is a {type(given).__name__}",
                tip="give a function of the reference and the outputs, or {'output[0]': 0.01, 'output[1]': None}",
            )
        return cls(rules=tuple(Rule.of(name, rule) for name, rule in given.items()))

    def error_of(self, expected: Sequence[Part], got: Sequence[Part], tolerance: float) -> float:
        """By the author's function. Raises DisagreementError, and AutotuneError where it fails itself."""
        assert self.function is not None
        try:
            said = self.function(_by_name(expected), _by_name(got))
        except Exception as error:
            raise AutotuneError(f"the model's compare function failed: {quoted(error)}") from error
        if said is None or said is True:
            return 0.0
        if isinstance(said, str) or said is False:
            raise DisagreementError(f"the model's compare function says: {said or 'they differ'}")
        distance = float(said)  # type: ignore[arg-type]
        if not distance <= tolerance:
            raise DisagreementError(
                f"the model's compare function gives {distance:.3g}, tolerance {tolerance:g}", distance
            )
        return distance

    def agreement(self, part: Part, output: Array, tolerance: float, spread: Array | None) -> ArrayAgreement:
        """By the rules for this part; what none of them is about, by the tolerance of the study."""
        rules = [rule for rule in self.rules if rule.is_about(part.name)]
        if not rules or part.array.shape != output.shape:
            return compare(part.array, output, tolerance, spread, part.step)
        rest = np.ones(part.array.shape, dtype=bool)
        found = []
        for rule in rules:
            rest &= ~rule.covers(part)
            if rule.tolerance is not None or rule.mask is not None:
                found.append(_compare_only(rule.counts(part), part, output, rule.tolerance or tolerance))
        found.append(_compare_only(rest, part, output, tolerance))
        return max(found, key=lambda one: (one.wrong is not None, one.error))

    def leaves_out(self, name: str) -> bool:
        """An output is not compared by its own value."""
        rules = [rule for rule in self.rules if rule.is_about(name)]
        return self.function is not None or any(rule.tolerance is None and rule.mask is None for rule in rules)

    def described(self) -> dict[str, float | None] | Literal["function"]:
        """The rules as data. A function stays a word, and so do masks, since no file holds them."""
        if self.function is not None or any(rule.mask is not None for rule in self.rules):
            return "function"
        return {rule.written: rule.tolerance for rule in self.rules}


@dataclass(frozen=True)
class Rule:
    """What was said of one output, or of a slice of it."""

    written: str
    name: str
    index: tuple[Any, ...] | None = None
    tolerance: float | None = None
    """None: it is not compared, unless there is a mask."""
    mask: Array | None = field(default=None, compare=False)

    @classmethod
    def of(cls, written: object, given: object) -> Rule:
        """Raises InputError."""
        if not isinstance(written, str):
            raise InputError(f"compare: {written!r} is no name of an output")
        name, index = _split(written)
        if given is None:
            return cls(written, name, index)
        if isinstance(given, (int, float)) and not isinstance(given, bool) and given > 0:
            return cls(written, name, index, float(given))
        mask = np.asarray(given)
        if mask.dtype != bool:
            raise InputError(
                f"compare: {written}: {given!r} is neither a tolerance nor None nor an array of truth values"
            )
        return cls(written, name, index, mask=mask)

    def is_about(self, name: str) -> bool:
        """It is this part, or holds it."""
        return name == self.name or (name.startswith(self.name) and name[len(self.name)] in ".[")

    def covers(self, part: Part) -> Array:
        """The elements that no other rule, and not the tolerance of the study, is for."""
        found = np.zeros(part.array.shape, dtype=bool)
        try:
            found[... if self.index is None else self.index] = True
        except IndexError:
            raise InputError(f"compare: {self.written}: {part.name} has shape {part.array.shape}") from None
        return found

    def counts(self, part: Part) -> Array:
        """The elements of these that are compared."""
        if self.mask is None:
            return self.covers(part)
        try:
            return np.asarray(self.covers(part) & np.broadcast_to(self.mask, part.array.shape))
        except ValueError:
            raise InputError(
                f"compare: {self.written}: a mask of shape {self.mask.shape} for {part.name} of {part.array.shape}"
            ) from None


def _compare_only(counts: Array, part: Part, output: Array, tolerance: float) -> ArrayAgreement:
    """Compare the elements that count; all others are as if they were zero."""
    if not counts.any():
        return ArrayAgreement(0.0)
    reference, output = (np.where(counts, array, np.zeros((), array.dtype)) for array in (part.array, output))
    return compare(reference, output, tolerance, step=part.step)


def _split(written: str) -> tuple[str, tuple[Any, ...] | None]:
    """`output[0][..., 4:]` -> its name and the index. Raises InputError for an index that is none."""
    start = written.rfind("[")
    inside = written[start + 1 : -1]
    if start < 0 or not written.endswith("]") or not (":" in inside or "..." in inside) or inside[:1] in "'\"":
        return written, None
    try:
        parsed = ast.parse(f"x[{inside}]", mode="eval").body
        assert isinstance(parsed, ast.Subscript)
        items = parsed.slice.elts if isinstance(parsed.slice, ast.Tuple) else [parsed.slice]
        return written[:start], tuple(map(_index, items))
    except (SyntaxError, ValueError, AssertionError):
        raise InputError(f"compare: {written}: [{inside}] is no index of whole numbers and slices") from None


def _index(item: ast.expr) -> Any:
    if isinstance(item, ast.Slice):
        return slice(
            *(None if bound is None else ast.literal_eval(bound) for bound in (item.lower, item.upper, item.step))
        )
    value = ast.literal_eval(item)
    if value is not ... and not isinstance(value, int):
        raise ValueError(value)
    return value


def _by_name(parts: Sequence[Part]) -> dict[str, Array]:
    return {part.name: part.array for part in parts if part.array.dtype.kind not in "US"}
