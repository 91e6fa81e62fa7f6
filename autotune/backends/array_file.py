"""Calls of a model in a file of NumPy arrays (`.npz`), which any framework can read and no code can hide in.

Beside the arrays it holds a text, `calls`: JSON that says which array, number or container stands where.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autotune.errors import InputError
from autotune.files import write_whole
from autotune.workload.arguments import Arguments

Make = Callable[[NDArray[Any], str], Any]
"""A tensor of an array, in the element type of that name."""
Take = Callable[[Any], tuple[NDArray[Any], str] | None]
"""The array of a tensor, and the name of its element type; None for what is no tensor."""

SUFFIX = ".npz"
_CALLS = "calls"


def write_arrays(calls: Sequence[Arguments], path: Path, take: Take) -> None:
    """Raises OSError, and InputError for a value that has no place in such a file."""
    arrays: list[NDArray[Any]] = []

    def node(value: Any) -> Any:
        taken = take(value)
        if taken is not None:
            arrays.append(taken[0])
            return {"tensor": len(arrays) - 1, "dtype": taken[1]}
        if isinstance(value, Mapping):
            return {"dict": [[node(key), node(part)] for key, part in value.items()]}
        if type(value) in (tuple, list):
            return {type(value).__name__: [node(part) for part in value]}
        if value is None or isinstance(value, (bool, int, float, str)):
            return {"value": value}
        raise InputError(f"a {type(value).__name__} cannot be written to {path}")

    said = json.dumps([[node(call.positional), node(call.keyword or {})] for call in calls])
    buffer = io.BytesIO()
    np.savez(buffer, **{_CALLS: np.array(said)}, **{str(number): array for number, array in enumerate(arrays)})
    write_whole(path, buffer.getvalue())


def read_arrays(path: Path, make: Make) -> list[Arguments]:
    """What `write_arrays` wrote. Raises InputError for any other file."""
    try:
        with np.load(path, allow_pickle=False) as stored:

            def value(node: Any) -> Any:
                ((kind, content),) = [item for item in node.items() if item[0] != "dtype"]
                if kind == "tensor":
                    return make(stored[str(content)], node["dtype"])
                if kind == "dict":
                    return {value(key): value(part) for key, part in content}
                if kind in ("list", "tuple"):
                    items = [value(part) for part in content]
                    return tuple(items) if kind == "tuple" else items
                return content

            said = json.loads(str(stored[_CALLS]))
            return [Arguments(value(positional), value(keyword) or None) for positional, keyword in said]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{path}: holds no calls of a model: {error}", tip="let `watch` write it (docs/models.md)"
        ) from None
