"""Accuracy of outputs: the error against the reference, and the tolerance. NumPy only."""

from __future__ import annotations

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


def default_tolerance(dtypes: Iterable[str]) -> float:
    """The tolerance for a model whose tensors have these element types, as any framework writes them."""
    present = {dtype.lower() for dtype in dtypes}
    return next((value for name, value in DEFAULT_TOLERANCES.items() if name in present), 1e-3)


def relative_error(reference: Sequence[Array], outputs: Sequence[Array]) -> float:
    """Largest over all outputs of max|y - r| / max|r|; infinity where outputs cannot be compared.

    That is: a different number of outputs, a different shape, any NaN, a misplaced infinity, a different integer.

    The error is relative to the output's largest magnitude, so that an element near zero does not count as completely
    wrong, and a maximum, so that one wrong row in a large output is not averaged out.
    """
    if len(reference) != len(outputs):
        return float("inf")
    return max((output_error(r, y) for r, y in zip(reference, outputs, strict=True)), default=0.0)


def output_error(reference: Array, output: Array) -> float:
    """max|y - r| / max|r| of one output; infinity where `why_incomparable` gives a reason."""
    if why_incomparable(reference, output) is not None:
        return float("inf")
    if _is_discrete(reference, output):
        return 0.0
    wide = np.complex128 if np.iscomplexobj(reference) or np.iscomplexobj(output) else np.float64
    r, y = np.asarray(reference, dtype=wide), np.asarray(output, dtype=wide)
    finite = np.isfinite(r)
    if not finite.any():
        return 0.0
    scale = np.abs(r[finite]).max()
    worst = float(np.abs(y[finite] - r[finite]).max())
    return worst / float(scale) if scale > 0 else worst


def why_incomparable(reference: Array, output: Array) -> str | None:
    """Why the distance of `output` from `reference` is no number, in a few words; None if it is one."""
    if reference.shape != output.shape:
        return f"shape {output.shape} instead of {reference.shape}"
    if _is_discrete(reference, output):
        num_different = int(np.count_nonzero(reference != output))
        return f"{num_different} of {reference.size} integers differ" if num_different else None
    return _misplaced(reference, output)


def _misplaced(reference: Array, output: Array) -> str | None:
    """What is wrong with NaN, which is never accepted, and infinities, which must be where the reference has them."""
    if np.isnan(output).any():
        return f"{int(np.count_nonzero(np.isnan(output)))} of {output.size} elements are NaN"
    if np.isnan(reference).any():
        return "NaN in the reference"
    infinite = np.isinf(reference)
    if np.isinf(output[~infinite]).any():
        return "infinity where the reference is finite"
    if not np.array_equal(reference[infinite], output[infinite]):
        return "another value where the reference is infinite"
    return None


def _is_discrete(reference: Array, output: Array) -> bool:
    """Classes, tokens or masks, for which only equal values are right."""
    return not (np.issubdtype(reference.dtype, np.inexact) or np.issubdtype(output.dtype, np.inexact))


def save_reference(path: Path, outputs_per_input: Sequence[Sequence[Array]]) -> None:
    """Write the untuned model's outputs, one list per input, under a temporary name first: no file is partial."""
    named = {f"{i}.{j}": y for i, outputs in enumerate(outputs_per_input) for j, y in enumerate(outputs)}
    counts = np.array([len(outputs) for outputs in outputs_per_input])
    temporary = path.with_suffix(".partial")
    with temporary.open("wb") as file:
        np.savez(file, counts=counts, **named)
    temporary.replace(path)


def num_compared(path: Path) -> int | None:
    """For how many inputs a reference holds outputs; None if it is missing or cannot be read."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return len(stored["counts"])
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError):
        return None


def load_reference(path: Path) -> list[list[Array]]:
    """Read what `save_reference` wrote. Raises OSError, ValueError or KeyError if it is missing or incomplete."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return [[stored[f"{i}.{j}"] for j in range(count)] for i, count in enumerate(stored["counts"])]
    except (zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{path} is incomplete: {error}") from None
