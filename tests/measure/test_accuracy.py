"""Inputs to look with, the tolerance, and the file of the reference."""

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
    derived_inputs,
    load_reference,
    save_reference,
)

Array = NDArray[Any]
NAN, INF = float("nan"), float("inf")


def of(*values: float) -> Array:
    return np.array(values, dtype=float)


def test_varied_inputs_have_the_same_shapes_and_types() -> None:
    """Other inputs have the shapes and element types of the examples; what is no array stays None."""
    examples = [np.ones((2, 3, 4), np.float32), None, np.arange(6, dtype=np.int64), np.array(3.0), np.ones((0, 5))]
    for example, other in zip(examples, derived_inputs(examples, seed=0), strict=True):
        if example is None or other is None:
            assert example is other
        else:
            assert (other.shape, other.dtype) == (example.shape, example.dtype)


@pytest.mark.parametrize(
    "example",
    [
        np.arange(1000, dtype=np.int64),
        np.arange(-500, 500, dtype=np.int32),
        np.arange(200, dtype=np.uint8),
        np.arange(1000) < 300,
        np.linspace(0, 1, 1000, dtype=np.float32),
        np.linspace(0, 255, 1000),
        np.linspace(-5, 0, 1000),
        np.linspace(1, 2, 1000).astype(np.float16),
    ],
    ids=lambda a: f"{a.dtype} {a.min()}..{a.max()}",
)
def test_varied_inputs_keep_their_values(example: Array) -> None:
    """Token ids, masks, pixels and one-sided floats are only permuted: no value appears that was not there."""
    (other,) = derived_inputs([example], seed=0)
    assert other is not None
    assert np.array_equal(np.sort(other), np.sort(example))
    assert not np.array_equal(other, example)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 100.0])
def test_floats_of_both_signs_are_negated_too(scale: float) -> None:
    """Floats that hold both signs change the sign of their mean, which flips a branch taken on it."""
    example = np.random.default_rng(0).normal(0.3 * scale, scale, size=(50, 20)).astype(np.float32)
    (other,) = derived_inputs([example], seed=0)
    assert other is not None
    assert np.array_equal(np.sort(other, axis=None), np.sort(-example, axis=None))
    assert example.mean() > 0 > other.mean()
    assert not np.array_equal(other, -example)


def test_values_move_through_the_whole_array() -> None:
    """Values are shuffled over all axes, not only along the first: rows do not stay rows."""
    example = np.arange(400).reshape(20, 20)
    (other,) = derived_inputs([example], seed=0)
    assert other is not None
    assert {tuple(sorted(row)) for row in other} != {tuple(sorted(row)) for row in example}


def test_the_seed_decides_the_varied_inputs() -> None:
    """One seed gives one set of inputs in every process, another seed another set; the examples stay untouched."""
    example = np.arange(100)
    (one,), (same,), (other,) = (derived_inputs([example], seed=seed) for seed in (7, 7, 8))
    assert np.array_equal(one, same)  # type: ignore[arg-type]
    assert not np.array_equal(one, other)  # type: ignore[arg-type]
    assert np.array_equal(example, np.arange(100))


def test_two_inputs_are_not_shuffled_alike() -> None:
    """Each input is permuted on its own, so that pairs of ids and masks are new pairs."""
    one, other = derived_inputs([np.arange(100), np.arange(100)], seed=0)
    assert not np.array_equal(one, other)  # type: ignore[arg-type]


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
