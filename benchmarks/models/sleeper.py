"""A model for the fake framework, whose knob `latency_ms` decides how long a call takes: planted truth."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def sleeper(rows: int = 4, seed: int = 0) -> tuple[Callable[[Array], Array], Array]:
    """A small matrix product, negligible beside the sleep."""
    weight = np.random.default_rng(seed).normal(size=(8, 8))
    return (lambda x: x @ weight), np.random.default_rng(seed + 1).normal(size=(rows, 8))
