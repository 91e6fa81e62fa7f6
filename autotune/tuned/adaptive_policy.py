"""`AdaptivePolicy`: when a job compiles a shape that the study did not foresee."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, PositiveInt

from autotune.schema import Record


class AdaptivePolicy(Record):
    """How a job decides. Off where a tuned config has none of these, and the caller gives none."""

    max_versions: Annotated[int, Field(ge=1, le=1024)] = 8
    """Compiled versions at a time; past it the one that was called longest ago is evicted."""
    max_memory_bytes: PositiveInt | None = None
    """Once compiled versions took so many, no more are compiled. See `docs/adaptive.md` for what is counted."""
    max_failures: PositiveInt = 3
    """After so many in a row nothing more is compiled."""
    trust: Annotated[float, Field(gt=0, le=1)] = 0.5
    """Share of the break-even that is waited for where recent calls say that it will be reached; 1: the whole."""
