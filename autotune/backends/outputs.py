"""What a model returns, as arrays that can be compared."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.backends.protocol import Backend


def flatten(outputs: Any) -> list[Any]:
    """The leaves of nested tuples, lists, mappings and dataclasses, in order: how outputs of two runs are paired."""
    if isinstance(outputs, dict):
        return [leaf for value in outputs.values() for leaf in flatten(value)]
    if isinstance(outputs, (tuple, list)):
        return [leaf for value in outputs for leaf in flatten(value)]
    if has_fields(outputs):
        return [leaf for field in fields(outputs) for leaf in flatten(getattr(outputs, field.name))]
    return [outputs]


def has_fields(value: Any) -> bool:
    """It is an instance of a dataclass."""
    return is_dataclass(value) and not isinstance(value, type)


def with_fields(value: Any, change: Callable[[Any], Any]) -> Any:
    """A copy of a dataclass's instance; each field is what `change` makes of it. Its `__init__` is not called."""
    made = copy.copy(value)
    for field in fields(value):
        object.__setattr__(made, field.name, change(getattr(value, field.name)))
    return made


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
