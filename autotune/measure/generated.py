"""`Generated`: the stream of prompts that a trial continues, and its first pass; what a reader of the text waits for.

Seconds of the steady passes are those of `Samples`: the whole pass, and for each prompt how long after it was given its
first token came and its last (`parts_s`). A pass is prompt after prompt, so two quantities are derived of it:

    ttft    time to the first token, the mean over the prompts
    tpot    time for each token after the first, the mean over prompts and tokens
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, PositiveInt

from autotune.measure.diagnosis import Compilations
from autotune.schema import Record

FEWEST_TOKENS = 2
"""Fewest new tokens of a prompt: with one there is no time for each further one."""


class Generated(Record):
    """What is generated, and what the first pass over it compiled."""

    lengths: tuple[PositiveInt, ...] = Field(min_length=1)
    """Tokens of each prompt."""
    new_tokens: int = Field(ge=FEWEST_TOKENS)
    """Tokens that each is continued by."""
    batch: PositiveInt
    """Sequences that are generated at a time."""
    cold_s: tuple[NonNegativeFloat, ...]
    """Seconds of each prompt of the first pass."""
    cold: Compilations | None
    """After the first pass; None: the framework does not report them."""
    steady: Compilations | None = None
    """After the last one; None: not read, or not reported."""

    @property
    def num_tokens(self) -> int:
        """Tokens of a pass."""
        return len(self.lengths) * self.new_tokens * self.batch

    @property
    def num_recompiles(self) -> int | None:
        """Graphs that were compiled in steady passes: none should be."""
        return None if self.cold is None or self.steady is None else self.steady.num_graphs - self.cold.num_graphs

    def ttft_s(self, parts_s: tuple[tuple[float, ...], ...]) -> NDArray[np.float64]:
        """Seconds to the first token of each pass, by `Samples.parts_s`."""
        return np.asarray(self._parts(parts_s)[:, :, 0].mean(axis=1))

    def tpot_s(self, parts_s: tuple[tuple[float, ...], ...]) -> NDArray[np.float64]:
        """Seconds for each further token of each pass, by `Samples.parts_s`."""
        parts = self._parts(parts_s)
        return np.asarray((parts[:, :, 1] - parts[:, :, 0]).mean(axis=1) / (self.new_tokens - 1))

    def _parts(self, parts_s: tuple[tuple[float, ...], ...]) -> NDArray[np.float64]:
        return np.reshape(np.asarray(parts_s, dtype=np.float64), (-1, len(self.lengths), 2))
