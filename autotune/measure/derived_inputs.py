"""Further inputs for the check of results, made of the example's where the author gives none. NumPy only.

An input that is made up must be one that the model takes. What an argument means is not known, so nothing is done that
breaks what arguments usually are: rows that belong together, indices that must exist, offsets that must not decrease,
boxes, distributions, covariances, masks. Still each value should move: code that holds on to a value of the example, or
to the path that it took, must give another result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_SCALE = 0.75
"""Floats shrink by this: ranges that begin at zero, orders and positive definite matrices stay what they are."""
_NO_NUMBER = 1e4
"""Floats of this size and beyond stand for infinity in a mask."""
_LONG = 16
"""Axes that are longer hold positions; shorter ones may hold the parts of a box, a quaternion, a matrix."""
_FEW_ROWS = 4
"""Rows of a table of indices: users and items, or the coordinates of entries."""


def derived_inputs(arrays: Sequence[Array | None], seed: int) -> list[Array | None]:
    """Further inputs of the same shapes and types, made from the values of the example inputs: rows in another order,
    floats smaller and perhaps of the other sign, whole numbers never greater. docs/decisions/0050-made-up-inputs.md has
    what becomes of which input, and why."""
    generator = np.random.default_rng(seed)
    batch = next((array.shape[0] for array in arrays if array is not None and array.ndim), 1)
    order = _other_order(batch, generator)
    return [None if array is None else _derived(array, order, generator) for array in arrays]


def _derived(array: Array, order: Array, generator: np.random.Generator) -> Array:
    if not array.size:
        return array
    if is_mask(array):
        return _in_order(array, order)
    return _floats(array, order) if np.issubdtype(array.dtype, np.inexact) else _integers(array, order, generator)


def _floats(array: Array, order: Array) -> Array:
    is_ordered, is_special = _is_ordered(array), _is_special_matrix(array)
    moved = array if (array.ndim < 2 and is_ordered) or _is_square(array) else _in_order(array, order)
    if moved is array and array.ndim and array.shape[-1] > _LONG and not (is_ordered or _is_square(array)):
        moved = np.flip(array, axis=-1)
    is_signed = np.iscomplexobj(array) or bool((array < 0).any() and (array > 0).any())
    sign = -1 if is_signed and not (is_ordered or is_special) else 1
    return np.asarray(moved * array.dtype.type(sign * (1 if is_normalised(array) else _SCALE)))


def _integers(array: Array, order: Array, generator: np.random.Generator) -> Array:
    if not array.ndim or _is_ordered(array):
        return array
    if array.ndim == 1:
        is_long = len(array) > _LONG
        return _in_order(array, order) if len(array) == len(order) or not is_long else generator.permutation(array)
    if len(array) == 1 or _holds_indices(array):
        moved = array[..., _other_order(array.shape[-1], generator)]
    else:
        moved = _in_order(array, order)
    return np.minimum(array, moved)


def _other_order(size: int, generator: np.random.Generator) -> Array:
    """A permutation that is not the order as it is, unless there is no other."""
    order = generator.permutation(size)
    return np.roll(order, 1) if np.array_equal(order, np.arange(size)) else order


def _in_order(array: Array, order: Array) -> Array:
    """With the rows of the batch in this order, if there are as many; else as it is."""
    return array[order] if array.ndim and len(order) > 1 and len(array) == len(order) else array


def is_mask(array: Array) -> bool:
    """Flags, or a mask: nothing but 0, 1, -1 and what stands for infinity."""
    if array.dtype == np.bool_:
        return True
    size = np.abs(array)
    is_float = np.issubdtype(array.dtype, np.inexact)
    return bool(((size == 0) | (size == 1) | (is_float & (size >= _NO_NUMBER))).all())


def _is_ordered(array: Array) -> bool:
    """Sorted: a vector, most rows, any row of indices, or all columns. Two or three numbers are so by chance."""
    if array.ndim == 0 or np.iscomplexobj(array):
        return False
    if array.ndim == 1:
        return bool(_sorted(array))
    rows = _sorted(array) if array.shape[-1] > 3 else np.zeros(1, bool)
    if _holds_indices(array):
        return bool(rows.any())
    return bool(rows.mean() >= 0.5 or (array.ndim == 2 and len(array) > 2 and _sorted(array.T).all()))


def _sorted(array: Array) -> Any:
    """Whether each row along the last axis never decreases, or never increases."""
    before, after = array[..., :-1], array[..., 1:]
    return (before <= after).all(-1) | (before >= after).all(-1)


def _holds_indices(array: Array) -> bool:
    """A few long rows of whole numbers, each of a range of its own: edges, or the places of entries."""
    is_flat = array.ndim == 2 and array.shape[1] > max(_LONG, 8 * len(array))
    return is_flat and len(array) <= _FEW_ROWS and np.issubdtype(array.dtype, np.integer)


def _is_square(array: Array) -> bool:
    """One square matrix, whose rows may mean the same as its columns."""
    return array.ndim == 2 and array.shape[0] == array.shape[1] > 1


def is_normalised(array: Array) -> bool:
    """Distributions, whose rows add up to 1, or directions and rotations, whose rows have a norm of 1."""
    if array.ndim < 2 or array.shape[-1] < 2:
        return False
    wide = array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)
    return any(bool(np.allclose(norms, 1, atol=1e-3)) for norms in (wide.sum(-1), np.linalg.norm(wide, axis=-1)))


def _is_special_matrix(array: Array) -> bool:
    """Symmetric or triangular matrices: covariances, kernels, and their factors, whose sign matters."""
    if array.ndim < 2 or array.shape[-1] != array.shape[-2] or array.shape[-1] < 2:
        return False
    other = np.swapaxes(array, -1, -2).conj()
    is_triangular = not np.triu(array, 1).any() or not np.tril(array, -1).any()
    return is_triangular or bool(np.allclose(array, other, rtol=1e-3, equal_nan=True))
