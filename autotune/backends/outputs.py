"""What a model returns, as arrays that can be compared."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.backends.protocol import Backend
from autotune.nesting import leaves


def flatten(outputs: Any) -> list[Any]:
    """The leaves of nested tuples, lists, mappings and dataclasses, in order."""
    return [leaf for _, leaf in leaves(outputs)]


def output_arrays(backend: Backend, outputs: Any) -> list[NDArray[Any]]:
    """Every tensor in `outputs` as an array; Python numbers as 0-d arrays; the rest is left out.

    Copies: a model may return its input, or a buffer of its own that the next call overwrites.
    """
    arrays = []
    for leaf in flatten(outputs):
        array = backend.to_array(leaf)
        if array is None and isinstance(leaf, (bool, int, float)):
            array = np.asarray(leaf)
        if array is not None:
            arrays.append(array.copy())
    return arrays
