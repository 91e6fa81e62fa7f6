"""The tolerance, and the file of the reference."""

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
    save_reference,
)

Array = NDArray[Any]
NAN, INF = float("nan"), float("inf")


def of(*values: float) -> Array:
    return np.array(values, dtype=float)


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


@pytest.mark.parametrize("left", [None, b"junk", 0.0, 0.5, 0.99], ids=["missing", "junk", "empty", "half", "torn"])
def test_half_a_reference_raises(tmp_path: Path, left: float | bytes | None) -> None:
    """One of the promised errors, so that the machine is blamed, not a config; no pickle is run."""
    path = tmp_path / "reference.npz"
    save_reference(path, [[np.arange(1000.0)]])
    whole = path.read_bytes()
    path.write_bytes(whole[: int(left * len(whole))] if isinstance(left, float) else left or b"")
    if left is None:
        path.unlink()
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
