"""What outputs are checked with: the tolerance, and the file of the reference. NumPy only."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
WideType = Literal["float32", "float64"]
ReferencePrecision = Literal["model", WideType]
"""What the reference is computed in: `model` is the untuned model as it is."""

DEFAULT_TOLERANCES = {"bfloat16": 3e-2, "float16": 5e-3, "float32": 1e-3}
"""Lowest precision among a model's parameters and inputs -> accepted relative error; float64 as float32.

float32: reordering sums costs 1e-7 to 1e-5 here, fused approximations of exp and tanh 1e-5 to 1e-4 a layer; a wrong
branch, a stale constant or a lost mask is 1e-2 and more. float16 and bfloat16 round to 5e-4 and 4e-3, some of which
adds up over layers: bfloat16 models differed by 2e-3 to 9e-3 from run mode to run mode here, chains of 100 by 3e-2.
"""


NUDGE = 0.1
"""Weights and inputs are nudged by this share of the tolerance: float32 by 1e-4 and bfloat16 by 3e-3, about as much as
fused code differs in the one and as rounding does in the other."""


def default_tolerance(dtypes: Iterable[str]) -> float:
    """The tolerance for a model whose tensors have these element types, as any framework writes them."""
    present = {dtype.lower() for dtype in dtypes}
    return next((value for name, value in DEFAULT_TOLERANCES.items() if name in present), 1e-3)


def save_reference(path: Path, outputs_per_input: Sequence[Sequence[Array]]) -> None:
    """Write the untuned model's outputs, one list per input, under a temporary name first: no file is partial."""
    named = {f"{i}.{j}": y for i, outputs in enumerate(outputs_per_input) for j, y in enumerate(outputs)}
    counts = np.array([len(outputs) for outputs in outputs_per_input])
    # The name is a new one: under a known one others could leave a link, through which it would be written.
    descriptor, temporary = tempfile.mkstemp(".partial", f".{path.name}.", path.parent)
    try:
        with open(descriptor, "wb") as file:
            np.savez(file, counts=counts, **named)
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def load_reference(path: Path, most: int | None = None) -> list[list[Array]]:
    """Read what `save_reference` wrote, or the first `most` lists of it.

    Raises OSError, ValueError or KeyError if it is missing or incomplete.
    """
    try:
        with np.load(path, allow_pickle=False) as stored:
            return [[stored[f"{i}.{j}"] for j in range(count)] for i, count in enumerate(stored["counts"][:most])]
    except (zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{path} is incomplete: {error}") from None
