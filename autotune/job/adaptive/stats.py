"""What `autotune.stats(model).adaptive` gives: the decisions of a `Ledger` until now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Standing = Literal["eager", "compiling", "compiled", "slower", "failed"]


@dataclass(frozen=True)
class ShapeStats:
    """Where a shape is, and why. Seconds of a call are medians of a few; None: not timed."""

    shape: str
    standing: Standing
    num_eager: int
    num_compiled: int
    eager_s: float | None
    compiled_s: float | None
    why: str


@dataclass(frozen=True)
class AdaptiveStats:
    """What was decided until now."""

    num_versions: int
    """Compiled at this moment."""
    num_compiled: int
    """Compilations that gave a version."""
    num_evicted: int
    num_slower: int
    """Versions that were no faster than the eager model, and dropped."""
    num_failures: int
    num_eager_calls: int
    num_compiled_calls: int
    compiling_s: float
    """Seconds that were spent compiling, failures included."""
    saved_s: float
    """Seconds that compiled calls took less than eager ones would have: an estimate from the timed calls."""
    grown_bytes: int
    """By which the process grew while versions were compiled, less what it gave back when they went."""
    stopped: str | None
    """Why nothing more is compiled."""
    shapes: tuple[ShapeStats, ...]
    """The most called first."""
