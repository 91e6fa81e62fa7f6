"""Is one array what another says? Errors that must be seen, and differences that must not matter."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.measure.accuracy import default_tolerance
from autotune.measure.agreement import compare, spread_of, why_incomparable

Array = NDArray[Any]
NAN, INF = float("nan"), float("inf")


def of(*values: float) -> Array:
    return np.array(values, dtype=float)


def error(reference: Array, output: Array, tolerance: float = 10.0) -> float:
    return compare(reference, output, tolerance).error


@pytest.mark.parametrize(
    ("reference", "output", "expected"),
    [
        (of(1, -4), of(1, -4), 0.0),
        (of(1, -4), of(1.2, -4), 0.05),
        (of(1, -4.0), of(1, 4.0), 2.0),
        (of(1e-9, 1), of(2e-9, 1), 1e-9),
        (of(100, 200), of(101, 198), 0.01),
        (of(0.25), of(0.5), 1.0),
        (of(0, 0), of(0, 0.5), 0.5),
        (of(), of(), 0.0),
        (np.array(2.0), np.array(3.0), 0.5),
        (np.array([60000], np.float16), np.array([-60000], np.float16), 2.0),  # Nothing overflows.
        (np.array([3 + 4j]), np.array([3 - 4j]), 8 / 5),  # An imaginary part counts.
    ],
)
def test_error_is_relative_to_the_largest_magnitude(reference: Array, output: Array, expected: float) -> None:
    """The error is max|y - r| / max|r|: a wrong sign counts, an element near zero does not count as all wrong."""
    assert error(reference, output) == pytest.approx(expected)


def test_one_wrong_element_in_a_large_output_is_seen() -> None:
    """One element of a million that is off does not drown in a mean."""
    reference = np.random.default_rng(0).normal(size=(1000, 1000))
    output = reference.copy()
    output[123, 456] += 0.1
    assert error(reference, output) == pytest.approx(0.1 / np.abs(reference).max())
    assert error(reference, output) > default_tolerance(["float32"])


def test_rounding_of_float32_passes() -> None:
    """Summing in another order stays far below the default tolerance: only real differences are refused."""
    values = np.random.default_rng(0).normal(size=(256, 4096)).astype(np.float32)
    weights = np.random.default_rng(1).normal(size=(4096, 8)).astype(np.float32)
    order = np.random.default_rng(2).permutation(4096)
    assert error(values @ weights, values[:, order] @ weights[order]) < default_tolerance(["float32"]) / 10


@pytest.mark.parametrize(
    ("reference", "output", "is_right"),
    [
        (of(1, 2), of(1, NAN), False),
        (of(1, NAN), of(1, NAN), True),
        (of(1, NAN), of(1.5, NAN), False),
        (of(1, NAN), of(1, 2), False),
        (of(NAN, NAN), of(NAN, NAN), True),
        (of(1, INF), of(1, NAN), False),
        (of(NAN, 1), of(1, NAN), False),
    ],
)
def test_nan_stands_where_the_reference_has_it(reference: Array, output: Array, is_right: bool) -> None:
    """Rows that a mask hides are NaN in both, and the rest is compared; NaN elsewhere, or a lost one, is wrong."""
    assert (compare(reference, output, 0.1).wrong is None) is is_right


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (of(1, INF, -INF, 2), 0.0),
        (of(1.5, INF, -INF, 2), 0.25),
        (of(1, -INF, -INF, 2), INF),
        (of(1, 1e308, -INF, 2), INF),
        (of(INF, INF, -INF, 2), INF),
        (of(INF, 1, -INF, 2), INF),
    ],
)
def test_infinities_must_stand_where_the_reference_has_them(output: Array, expected: float) -> None:
    """A mask's infinities in the same places are right, and the rest is compared; moved, new or lost ones are wrong."""
    assert error(of(1, INF, -INF, 2), output) == pytest.approx(expected)


def test_an_output_of_infinities_only_can_be_right() -> None:
    """Where the reference has no finite element, equal infinities are no error."""
    assert error(of(INF, -INF), of(INF, -INF)) == 0
    assert error(of(INF, -INF), of(-INF, INF)) == INF


@pytest.mark.parametrize(
    ("reference", "output", "words"),
    [
        (np.ones((2, 3)), np.ones((3, 2)), "shape (3, 2) instead of (2, 3)"),
        (np.array([1, 2, 3]), np.array([1, 5, 6]), "2 of 3 integers differ"),
        (np.array("cat"), np.array("dog"), "dog instead of cat"),
        (of(1, 2, 3), of(NAN, 2, NAN), "2 of 3 elements are NaN"),
        (of(NAN, 2, 3), of(NAN, NAN, 3), "1 of 3 elements are NaN beside those of the reference"),
        (of(NAN, 2), of(1, 2), "1 of 2 elements are numbers where the reference is NaN"),
        (of(1, INF), of(INF, INF), "infinity where the reference is finite"),
        (of(1, INF), of(1, -INF), "another value where the reference is infinite"),
        (of(1, INF), of(1, 7), "another value where the reference is infinite"),
        (of(1, INF), of(2, INF), None),
        (np.array([1, 2]), np.array([1, 2]), None),
        (np.zeros((0, 3)), np.zeros((0, 3)), None),
    ],
)
def test_what_no_number_can_tell_is_named(reference: Array, output: Array, words: str | None) -> None:
    """An infinite error has a reason in words (shape, integers, NaN, infinity); a finite one has none."""
    assert why_incomparable(reference, output) == words
    assert (error(reference, output) == INF) is (words is not None)


RANDOM = np.random.default_rng(0)
BOXES_AND_SCORES = np.concatenate([640 * RANDOM.random((2, 4, 100)), 0.2 * RANDOM.random((2, 80, 100))], axis=1)
"""Boxes in pixels and class scores in one tensor, as detectors return them."""
MEAN_AND_VARIANCE = np.stack([RANDOM.normal(50, 10, 8), 1e-3 * RANDOM.random(8)], axis=-1)
LOG_PROBABILITIES_AND_INDICES = np.stack([-5 * RANDOM.random(16), RANDOM.integers(0, 30_000, 16)], axis=-1)


def changed(array: Array, where: Any, value: Any) -> Array:
    made = array.copy()
    made[where] = value(made[where]) if callable(value) else value
    return made


HIDDEN = {
    "all scores are zero": (BOXES_AND_SCORES, (slice(None), slice(4, None)), 0),
    "one class is never seen": (BOXES_AND_SCORES, (slice(None), 17), 0),
    "a constant is added to one class": (BOXES_AND_SCORES, (slice(None), 17), lambda each: each + 0.05),
    "two classes are swapped": (BOXES_AND_SCORES, (slice(None), [17, 18]), lambda each: each[:, ::-1]),
    "the variance is a tenth too large": (MEAN_AND_VARIANCE, (slice(None), 1), lambda each: 1.1 * each),
    "log-probabilities are 1 % off": (LOG_PROBABILITIES_AND_INDICES, (slice(None), 0), lambda each: 1.01 * each),
    "a small last image is lost": (np.stack([RANDOM.normal(size=(3, 5)), 1e-4 * RANDOM.normal(size=(3, 5))]), 1, 0),
}


def spread_by(share: float, reference: Array) -> Array | None:
    """The spread of two nudges that move each element by this share."""
    moved = [reference * (1 + share * RANDOM.normal(size=reference.shape)) for _ in range(2)]
    return spread_of(reference, [each.astype(reference.dtype) for each in moved])


@pytest.mark.parametrize("case", HIDDEN.values(), ids=HIDDEN)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_small_is_compared_beside_what_is_large(case: tuple[Array, Any, Any], dtype: type) -> None:
    """By one scale for the whole array each of these is within the tolerance; by its own slice's it is wrong."""
    array, where, value = case
    reference = array.astype(dtype)
    found = compare(reference, changed(reference, where, value), 1e-3, spread_by(1e-4, reference))
    assert found.wrong is not None
    assert "is off by" in found.wrong
    assert found.error < 1e-3
    assert compare(reference, reference, 1e-3, spread_by(1e-4, reference)).wrong is None


@pytest.mark.parametrize("case", HIDDEN.values(), ids=HIDDEN)
def test_what_is_lost_shows_without_a_spread(case: tuple[Array, Any, Any]) -> None:
    """A job knows nothing of nudges. There a slice shows that is zero in place of what it was."""
    array, where, _ = case
    reference = array.astype(np.float32)
    assert compare(reference, changed(reference, where, 0), 1e-3).wrong is not None


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_scores_beside_boxes_in_half_precision(dtype: type) -> None:
    """With the spread known, scores that are lost show in float16 too, and rounding does not count as wrong."""
    reference = BOXES_AND_SCORES.astype(dtype)
    tolerance = default_tolerance([np.dtype(dtype).name])
    spread = spread_by(0.1 * tolerance, reference)
    rounded = (reference.astype(np.float64) * (1 + 0.2 * tolerance * RANDOM.uniform(-1, 1, reference.shape))).astype(
        dtype
    )
    assert compare(reference, rounded, tolerance, spread).wrong is None
    assert compare(reference, changed(reference, (slice(None), slice(4, None)), 0), tolerance, spread).wrong is not None


def test_a_slice_that_cancels_may_be_as_far_off_as_nudges_move_it() -> None:
    """A difference of large numbers is rounded by their scale; what nudges do to it says so, whatever its own scale."""
    large = RANDOM.normal(size=(64, 8))
    reference = np.concatenate([large, 1e-6 * RANDOM.normal(size=(64, 8))], axis=1)
    rounded = reference + np.concatenate([np.zeros((64, 8)), 3e-5 * RANDOM.normal(size=(64, 8))], axis=1)
    moved = [reference + 1e-4 * RANDOM.normal(size=reference.shape) for _ in range(2)]
    assert compare(reference, rounded, 1e-3).wrong is not None
    assert compare(reference, rounded, 1e-3, spread_of(reference, moved)).wrong is None


_BFLOAT16 = 2**-7


def detections(num: int, box: float, step: float) -> Array:
    """Boxes, scores and class numbers of as many rows, rounded to a type of this step."""
    random = np.random.default_rng(num)
    columns = [random.uniform(box / 2, box, (num, 4)), random.uniform(0, 1, (num, 1)), random.integers(0, 80, (num, 1))]
    return rounded(np.concatenate(columns, axis=1), step)


def rounded(values: Array, step: float) -> Array:
    steps = step * 2.0 ** np.floor(np.log2(np.maximum(np.abs(values), 1e-30)))
    return (np.round(values / steps) * steps).astype(np.float32)


def nudged(reference: Array, num_flips: int, step: float, seed: int) -> Array:
    """Boxes and scores a little off, and some rows of another class."""
    random = np.random.default_rng(seed)
    moved = reference.copy()
    moved[:, :5] *= 1 + 0.05 * max(step, 2e-3) * random.normal(size=(len(reference), 5))
    moved[random.choice(len(reference), num_flips, replace=False), 5] += random.integers(1, 10, num_flips)
    return rounded(moved, step)


@pytest.mark.parametrize("num_flips", [0, 1, 20])
@pytest.mark.parametrize(
    ("num", "box", "step", "tolerance"),
    [(3000, 4096.0, 2**-23, 1e-1), (100, 640.0, _BFLOAT16, 3e-2), (300, 640.0, _BFLOAT16, 3e-2)],
)
def test_classes_in_a_floating_type_are_classes(
    num: int, box: float, step: float, tolerance: float, num_flips: int
) -> None:
    """Some rows that change their class under a nudge leave no other row free, however large the boxes beside it are;
    as many rows as that may differ, and rounding is right."""
    reference = detections(num, box, step)
    spread = spread_of(reference, [nudged(reference, num_flips, step, seed) for seed in (1, 2)], step)
    shifted = reference.copy()
    shifted[:, 5] += 7
    for known in (spread, None):
        wrong = compare(reference, shifted, tolerance, known, step).wrong
        assert wrong is not None
        assert "slice 5 of axis 1" in wrong
    assert compare(reference, nudged(reference, num_flips, step, 3), tolerance, spread, step).wrong is None


def test_what_jumps_frees_no_neighbour() -> None:
    """The same for fractions: an angle beside boxes, of rows that may change places."""
    reference = detections(500, 4096.0, 2**-23)
    reference[:, 5] = np.random.default_rng(5).uniform(-3, 3, 500)
    moved = nudged(reference, 0, 2**-23, 1)
    moved[:, 5] *= 1 + 1e-4
    moved[[7, 300], 5] = moved[[300, 7], 5]
    spread = spread_of(reference, [moved])
    mirrored = reference.copy()
    mirrored[:, 5] *= -1
    assert compare(reference, mirrored, 1e-2, spread).wrong is not None
    assert compare(reference, moved, 1e-2, spread).wrong is None


@pytest.mark.parametrize("step", [2**-23, _BFLOAT16])
def test_numbers_that_happen_to_be_whole_may_be_rounded(step: float) -> None:
    """Large ones of a coarse type, saturated ones, and the few beside many zeros."""
    random = np.random.default_rng(0)
    large = random.uniform(130, 640, (50, 4))
    saturated = np.clip(random.normal(size=(50, 4)), -1e-3, 1e-3) * 6000
    sparse = np.where(random.uniform(size=(50, 4)) < 0.02, 66.0, 0.0)
    for values in (large, saturated, sparse):
        reference = rounded(values, step)
        off = rounded(reference * (1 + step), step)
        assert compare(reference, off, max(1e-3, 2 * step), spread_of(reference, [off], step), step).wrong is None


def test_an_element_near_zero_is_no_slice_of_its_own_scale() -> None:
    """Logits of one image: each is a slice of one element, whose scale nobody knows."""
    reference = np.linspace(-5, 5, 1001)[None]
    assert compare(reference, reference + 1e-4, 1e-3).wrong is None


def test_without_a_number_that_moves_there_is_no_spread() -> None:
    """Nudges that change shapes, integers or nothing tell nothing."""
    assert spread_of(np.ones(3), [np.ones(4)]) is None
    assert spread_of(np.arange(3), [np.arange(3) + 1]) is None
    assert spread_of(np.ones(3), [np.ones(3)]) is None
    assert spread_of(np.ones(3), []) is None


def told(reference: Array, where: tuple[Any, ...], value: float) -> str:
    found = compare(reference, changed(reference, where, value), 1e-3)
    assert found.wrong is not None
    return found.wrong.partition("; ")[2]


class TestWhereItIsWrong:
    """The place and the two values, and what the wrong places have in common."""

    ARRAY = np.arange(1.0, 61.0, dtype=np.float32).reshape(3, 4, 5)

    def test_one_element(self) -> None:
        assert told(self.ARRAY, (1, 2, 3), 7.5) == "at [1, 2, 3] it is 7.5 instead of 34, and nowhere else"

    def test_one_channel(self) -> None:
        """The axis along which the fewest slices are wrong."""
        assert told(self.ARRAY, (slice(None), slice(None), 4), -1.0).endswith("and wrong only in 4 of axis 2 (of 5)")

    def test_everywhere(self) -> None:
        assert told(self.ARRAY, (...,), 0.0) == "at [2, 3, 4] it is 0 instead of 60"

    def test_padded_places_that_a_fast_path_leaves_zero(self) -> None:
        padded = self.ARRAY.copy()
        padded[:, 3] = 0
        words = told(padded, (slice(None), 3), 9.0)
        assert words.endswith(
            "wrong only in 3 of axis 1 (of 4); wherever it is wrong the untuned model gives zero, which `compare` may "
            "leave out"
        )

    def test_many_slices_are_not_all_named(self) -> None:
        tall = np.ones((20, 2), np.float32)
        assert "wrong only in 0, 1, 2, 3, ... of axis 0 (of 20)" in told(tall, (slice(0, 8),), 3.0)

    def test_one_number_has_no_place(self) -> None:
        assert compare(np.float32([2.0]), np.float32([3.0]), 1e-3).wrong == "relative error 0.5, tolerance 0.001"
