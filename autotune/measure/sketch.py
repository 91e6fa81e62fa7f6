"""`sketch_of`: what of a large array is kept and compared in place of all of it.

* A fixed sample: some slices along the longest axis, the first and the last among them, drawn by a fixed seed.
* Sums over all of it: the array is cut along that axis into pieces, which are added up by weights drawn by a fixed
  seed, over the root of their number. So a sum is about as large as an element is, and rounding moves it by as much.
  What is wrong throughout shows in full, and one wrong element among n of a sum with the root of n-th of its error.
  The same along the axis that is the next in length: there one slice of the longest axis that is wrong shows in full.
  Of whole numbers the sums are modulo 2**64 and by odd numbers: any change shows.
* Where infinities are, if there are any, as such sums of whole numbers.

It takes a pass for each, by operations on elements that NumPy and the frameworks have in common. So whoever holds the
array makes it: a framework on its device, without a copy of it all. The order of additions is the same everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

MOST_WHOLE = 1 << 23
"""Elements up to which an array is kept and compared as it is."""
NUM_SUMS, NUM_SAMPLED = 1 << 21, 1 << 19
"""Elements of the sums and of the sample, about."""
SUMS, OTHERS, PLACES = " (sums over all of it)", " (sums along another axis)", " (where it is infinite)"
"""End the names of what is kept beside the sample, which has the array's name."""
_LEAST_SLICES = 4
"""Slices along one axis. Where so many are too large a sample, they are sampled along another axis, too."""
_SEED = 64


class Pieces(Protocol):
    """How whoever holds an array looks at pieces of it."""

    def numbers(self, piece: Any) -> Any:
        """Its elements in the widest type, whole numbers and truth values as int64."""

    def finite(self, numbers: Any) -> Any:
        """These, with zero in place of infinities."""

    def infinite(self, numbers: Any) -> Any:
        """As int64 1 for an infinity, 2 for a negative one, and 0 else."""

    def array(self, numbers: Any) -> Array:
        """In NumPy."""


class _OfNumpy:
    """NumPy's own."""

    def numbers(self, piece: Any) -> Any:
        return piece.astype({"f": np.float64, "c": np.complex128}.get(piece.dtype.kind, np.int64))

    def finite(self, numbers: Any) -> Any:
        return np.where(np.isinf(numbers), 0, numbers)

    def infinite(self, numbers: Any) -> Any:
        return np.isinf(numbers) * (np.int64(1) + (numbers.real < 0))

    def array(self, numbers: Any) -> Array:
        return np.asarray(numbers)


def is_large(num_elements: int) -> bool:
    """Not all of an array with so many elements is kept."""
    return num_elements > MOST_WHOLE


def sketch_of(values: Any, pieces: Pieces | None = None) -> dict[str, Array]:
    """What is kept of an array, each by the end of its name. `values` is indexed as NumPy's arrays are, and is NumPy's
    own where there are no `pieces`."""
    pieces = _OfNumpy() if pieces is None else pieces
    longest, *others = (int(axis) for axis in np.argsort(values.shape)[::-1])
    found = {"": pieces.array(_sample(values)), SUMS: pieces.array(_sums(values, longest, pieces.numbers))}
    numbers = pieces.numbers
    if found[SUMS].dtype.kind in "fc" and not np.isfinite(found[SUMS]).all():
        places = pieces.array(_sums(values, longest, lambda piece: pieces.infinite(pieces.numbers(piece))))
        if places.any():
            found[PLACES], numbers = places, lambda piece: pieces.finite(pieces.numbers(piece))
            found[SUMS] = pieces.array(_sums(values, longest, numbers))
    if others and values.shape[others[0]] > _LEAST_SLICES:
        found[OTHERS] = pieces.array(_sums(values, others[0], numbers))
    kind = found[""].dtype
    return {end: array if array.dtype.kind == "i" else array.astype(kind) for end, array in found.items()}


def sketched(names: Sequence[str]) -> tuple[str, ...]:
    """A sentence for each part whose sums have one of these names."""
    cut = (name.removesuffix(SUMS) for name in dict.fromkeys(names) if name.endswith(SUMS))
    return tuple(f"of {name}, which is large, a fixed sample and sums over all of it were compared" for name in cut)


def _sums(values: Any, axis: int, numbers: Callable[[Any], Any]) -> Any:
    size = values.shape[axis]
    width = max(NUM_SUMS * size // int(np.prod(values.shape)), min(size, _LEAST_SLICES))
    starts = range(0, size, width)
    weights, factors = _drawn(len(starts))
    found: Any = 0
    for start, weight, factor in zip(starts, weights, factors, strict=True):
        piece = numbers(values[_along(axis, slice(start, start + width))])
        weighed = piece * (factor if str(piece.dtype).endswith("int64") else weight / len(starts) ** 0.5)
        if start == 0:
            found = weighed
        else:
            found[_along(axis, slice(0, piece.shape[axis]))] += weighed
    return found


def _sample(values: Any) -> Any:
    random = np.random.default_rng(_SEED)
    for axis in np.argsort(values.shape)[::-1]:
        num_elements, size = int(np.prod(values.shape)), values.shape[axis]
        num_slices = min(size, max(NUM_SAMPLED * size // num_elements, _LEAST_SLICES))
        if num_slices < size:
            within = random.choice(np.arange(1, size - 1), num_slices - 2, replace=False)
            values = values[_along(axis, [0, *sorted(map(int, within)), size - 1])]
    return values


def _along(axis: int, index: slice | Sequence[int]) -> tuple[Any, ...]:
    return (*(slice(None) for _ in range(axis)), index)


@cache
def _drawn(number: int) -> tuple[list[float], list[int]]:
    """Weights of either sign between 0.7 and 1.3, no two of which are alike, so that exchanged pieces show; and odd
    numbers of 63 bits. The same for as many."""
    random = np.random.default_rng(_SEED)
    weights = random.choice([-1.0, 1.0], number) * random.permutation(np.linspace(0.7, 1.3, number))
    return weights.tolist(), (random.integers(0, 2**62, number) * 2 + 1).tolist()
