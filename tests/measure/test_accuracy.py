"""Is the output right? Errors that must be seen, and differences that must not matter."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from autotune.measure.accuracy import (
    default_tolerance,
    load_reference,
    num_compared,
    relative_error,
    save_reference,
    why_incomparable,
)

Array = NDArray[Any]
NAN, INF = float("nan"), float("inf")


def of(*values: float) -> Array:
    return np.array(values, dtype=float)


def error(reference: Array, output: Array) -> float:
    return relative_error([reference], [output])


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


def test_the_worst_of_all_outputs_counts() -> None:
    """A model with several outputs is as wrong as its worst one, each measured on its own scale."""
    reference = [of(1000.0), of(1.0), of(10.0)]
    assert relative_error(reference, [of(1000.0), of(1.5), of(10.0)]) == pytest.approx(0.5)
    assert relative_error(reference, reference) == 0
    assert relative_error([], []) == 0


def test_rounding_of_float32_passes() -> None:
    """Summing in another order stays far below the default tolerance: only real differences are refused."""
    values = np.random.default_rng(0).normal(size=(256, 4096)).astype(np.float32)
    weights = np.random.default_rng(1).normal(size=(4096, 8)).astype(np.float32)
    order = np.random.default_rng(2).permutation(4096)
    assert error(values @ weights, values[:, order] @ weights[order]) < default_tolerance(["float32"]) / 10


@pytest.mark.parametrize(
    ("reference", "output"),
    [
        (of(1, 2), of(1, NAN)),
        (of(1, NAN), of(1, NAN)),
        (of(1, NAN), of(1, 2)),
        (of(NAN, NAN), of(NAN, NAN)),
        (of(1, INF), of(1, NAN)),
        (of(NAN, 1), of(1, NAN)),
    ],
)
def test_a_nan_never_passes(reference: Array, output: Array) -> None:
    """A NaN on either side, even in the same place, is an infinite error."""
    assert error(reference, output) == INF


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
    ("reference", "output"),
    [
        (np.ones((2, 3)), np.ones((3, 2))),
        (np.ones(4), np.ones((1, 4))),
        (np.ones((2, 1)), np.ones((2, 3))),
        (np.ones(1), np.array(1.0)),
        (np.ones(0), np.ones(1)),
        (np.ones((0, 2)), np.ones((2, 0))),
    ],
    ids=str,
)
def test_another_shape_is_an_infinite_error(reference: Array, output: Array) -> None:
    """Shapes are compared exactly; nothing is broadcast until it fits."""
    assert error(reference, output) == INF


@pytest.mark.parametrize("num_outputs", [0, 1, 3])
def test_another_number_of_outputs_is_an_infinite_error(num_outputs: int) -> None:
    """An output that is lost or added is wrong, however good the others are."""
    assert relative_error([of(1), of(2)], [of(1), of(2), of(3)][:num_outputs]) == INF


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.bool_])
def test_a_differing_integer_is_another_answer(kind: type) -> None:
    """Classes, tokens and masks are equal or wrong: 30001 is not nearly the token 30000."""
    assert error(np.array([1, 0, 1], kind), np.array([1, 0, 1], kind)) == 0
    assert error(np.array([1, 0, 1], kind), np.array([1, 1, 1], kind)) == np.inf


@pytest.mark.parametrize(
    ("reference", "output", "words"),
    [
        (np.ones((2, 3)), np.ones((3, 2)), "shape (3, 2) instead of (2, 3)"),
        (np.array([1, 2, 3]), np.array([1, 5, 6]), "2 of 3 integers differ"),
        (of(1, 2, 3), of(NAN, 2, NAN), "2 of 3 elements are NaN"),
        (of(NAN, 2), of(1, 2), "NaN in the reference"),
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


def test_half_floats_are_compared_in_full_precision() -> None:
    """No comparison overflows in the output's own narrow type."""
    assert error(np.array([60000], np.float16), np.array([-60000], np.float16)) == pytest.approx(2, rel=1e-3)


def test_an_imaginary_part_counts() -> None:
    """A complex output (an FFT's) that is wrong in its imaginary part only is wrong."""
    assert error(np.array([3 + 4j]), np.array([3 - 4j])) == pytest.approx(8 / 5)


def test_the_reference_survives_the_file(tmp_path: Path) -> None:
    """What is saved is loaded: every input's outputs, in order, bit for bit, with shape and type."""
    path = tmp_path / "reference.npz"
    many = [np.array(float(number)) for number in range(12)]
    saved = [
        [np.array([[1.5, NAN, -INF]], np.float32), np.array([2**60, -1])],
        [],
        many,
        [np.zeros((0, 3), np.float16), np.array([True])],
    ]
    save_reference(path, saved)
    loaded = load_reference(path)
    assert [len(each) for each in loaded] == [2, 0, 12, 2]
    for expected, got in zip(itertools.chain(*saved), itertools.chain(*loaded), strict=True):
        assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
        assert got.tobytes() == expected.tobytes()


def test_a_reference_says_for_how_many_inputs_it_is(tmp_path: Path) -> None:
    """Without reading the outputs; None where there is none, or one that is broken."""
    path = tmp_path / "reference.npz"
    assert num_compared(path) is None
    save_reference(path, [[of(1)], [], [of(1)]])
    assert num_compared(path) == 3
    path.write_bytes(b"junk")
    assert num_compared(path) is None


def test_saving_a_reference_leaves_one_file(tmp_path: Path) -> None:
    """Saving, and saving again, leaves the file alone in its folder and replaces it as a whole."""
    path = tmp_path / "reference.npz"
    for value in (1.0, 2.0):
        save_reference(path, [[np.full(3, value)]])
        assert os.listdir(tmp_path) == ["reference.npz"]
        assert load_reference(path)[0][0].tolist() == [value] * 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # zipfile's own, at the archive's end
def test_a_save_that_fails_keeps_the_old_reference(tmp_path: Path) -> None:
    """An array that cannot be written fails midway and leaves the reference that was there."""

    class Unwritable:
        def __reduce__(self) -> Any:
            raise RuntimeError("not to be pickled")

    path = tmp_path / "reference.npz"
    save_reference(path, [[of(1)]])
    with pytest.raises(RuntimeError, match="not to be pickled"):
        save_reference(path, [[of(2)], [np.array([Unwritable()], dtype=object)]])
    assert load_reference(path)[0][0].tolist() == [1]


@pytest.mark.parametrize("content", [None, b"junk"], ids=["missing", "junk"])
def test_a_reference_that_is_not_there_raises(tmp_path: Path, content: bytes | None) -> None:
    """A reference that is missing or no archive raises OSError or ValueError, as promised; no pickle is run."""
    path = tmp_path / "reference.npz"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises((OSError, ValueError)):
        load_reference(path)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_half_a_reference_raises(tmp_path: Path, share: float) -> None:
    """A reference that was cut off raises one of the promised errors, so that the machine is blamed, not a config."""
    path = tmp_path / "reference.npz"
    save_reference(path, [[np.arange(1000.0)]])
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises((OSError, ValueError, KeyError)):
        load_reference(path)


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (["float32", "int64"], 1e-3),
        (["float64"], 1e-3),
        (["float32", "bfloat16"], 3e-2),
        (["Float16", "Float32"], 5e-3),
        (["int64"], 1e-3),
    ],
)
def test_the_lowest_precision_sets_the_tolerance(dtypes: list[str], expected: float) -> None:
    """One bfloat16 tensor rounds like bfloat16, however the framework spells it."""
    assert default_tolerance(dtypes) == expected
