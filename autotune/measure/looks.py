"""`Look`: the intervals of all configs at one number of blocks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autotune.measure.blocks import Blocks
from autotune.measure.bootstrap import centre_and_scale, how_alike, simultaneous, studentised_errors, winsorised
from autotune.measure.early_look import Posterior
from autotune.measure.statistics import ERROR, MARGIN, Speedup

FIRST_LOOK = 4
"""Blocks of a config before it is looked at with the whole rule; each further look doubles them."""
SMALL_GAIN = 0.05
"""A config that does not look faster, and for which a gain of this share is ruled out, need not be measured further:
what more blocks could prove of it is next to nothing (docs/decisions/0063-one-race.md)."""
RULED_OUT_ERROR = 0.05
"""One look rules out a gain that a config truly has so often at most."""


@dataclass(frozen=True)
class Look:
    """The intervals hold for all configs that have `first_look` blocks; a drawn row has the same gaps as the measured
    one (`bootstrap`). With fewer blocks a config has an interval of its own, from a posterior that stands on what
    scatter is usual (`early_look`)."""

    blocks: Blocks
    first_look: int = FIRST_LOOK
    errors: tuple[float, ...] = ()
    """Error of each config's interval; empty: `ERROR` for each."""

    @cached_property
    def configs(self) -> tuple[int, ...]:
        """Configs that have enough blocks for an interval by the bootstrap."""
        blocks = self.blocks
        return tuple(each for each in range(blocks.num_configs) if blocks.num_blocks(each) >= self.first_look)

    @cached_property
    def intervals(self) -> dict[int, Speedup]:
        """Speed-ups of those; the intervals hold for all at once."""
        if not self.configs:
            return {}
        errors = np.array([self.errors[config] if self.errors else ERROR for config in self.configs])
        found = simultaneous(self._logs, self._drawn, errors)
        return dict(zip(self.configs, found, strict=True))

    @cached_property
    def speedups(self) -> tuple[Speedup, ...]:
        """Each config's speed-up over the base, in the order of the columns. ValueError where one has no block."""
        found = [self.speedup_of(config) for config in range(self.blocks.num_configs)]
        missing = [config for config, speedup in enumerate(found) if speedup is None]
        if missing or not self.blocks.values:
            raise ValueError(f"no block holds the configs {missing or 'at all'}")
        return tuple(speedup for speedup in found if speedup is not None)

    def speedup_of(self, config: int) -> Speedup | None:
        """One config's speed-up; None without a block."""
        if config in self.configs:
            return self.intervals[config]
        return self.blocks.posterior(config).speedup(ERROR) if self.blocks.num_blocks(config) else None

    def between(self, config: int, other: int, error: float = ERROR) -> Speedup:
        """How many times as fast as `other` is `config` (both columns), with an interval of its own.

        It rests on the blocks that both took part in; ValueError where there is none.
        """
        values, correlations = self.blocks.array[:, [other, config]], self.blocks.correlations
        values = values[np.isfinite(values).all(axis=1)]
        logs = np.log(values[:, :1] / values[:, 1:])
        if len(logs) >= self.first_look:
            return simultaneous(logs, studentised_errors(logs, how_alike(logs, correlations)), error)[0]
        if not len(logs):
            raise ValueError(f"no block holds both {config} and {other}")
        return Posterior(logs[:, 0], correlations).speedup(ERROR)

    @cached_property
    def upper_limits(self) -> tuple[float, ...]:
        """The largest speed-up that each config may have: one-sided, at 95 %, for that config and this look alone;
        infinite before its first look.

        It says when to stop looking for a gain, and never proves one, so no share of its error is set aside for the
        other configs and looks.
        """
        limits = np.full(self.blocks.num_configs, np.inf)
        if self.configs:
            centres, scales = centre_and_scale(self._logs, np.isfinite(self._logs))
            quantiles = np.quantile(self._drawn, 1 - 2 * RULED_OUT_ERROR, axis=0)
            limits[list(self.configs)] = np.exp(centres + quantiles * scales)
        return tuple(limits.tolist())

    def rules_out(self, config: int) -> bool:
        """The config does not look faster than the base, and a gain of `SMALL_GAIN` is ruled out."""
        is_small = self.upper_limits[config] <= 1 + SMALL_GAIN
        return is_small and self.intervals[config].median <= 1 + MARGIN

    @cached_property
    def correlation(self) -> float:
        """Expected correlation of log ratios from one block to the next; few blocks leave it near the prior's 0.1."""
        return sum(correlation * weight for correlation, weight in self._alike.items())

    @cached_property
    def _logs(self) -> NDArray[np.float64]:
        """Log speed-ups of the configs: one row a block that one of them has, one column a config; NaN in a gap."""
        return np.asarray(np.log(self.blocks.array[:, :1] / self.blocks.array[:, self._columns])[self._has_one])

    @cached_property
    def _drawn(self) -> NDArray[np.float64]:
        return studentised_errors(self._logs, self._alike)

    @cached_property
    def _alike(self) -> Mapping[float, float]:
        """How alike blocks are by those that are looked at: correlation -> how likely it is.

        Where trials chose the configs, two things make it more than a guess after a few blocks. Held against a control,
        which is one process, each process stands for itself, those of the base too. And one that was hit hides how
        alike the others are: it is judged with and without such ones, and the more prudent judgement counts.
        """
        blocks, logs, share_base = self.blocks, self._logs, True
        if not self.configs:
            return blocks.correlations
        if not blocks.searched:
            return how_alike(logs, blocks.correlations)
        controls = np.array(blocks.controls, dtype=float)
        if np.isfinite(controls).sum() == len(blocks.values):
            logs = np.log(blocks.array[:, [0, *self._columns]] / controls[:, None])[self._has_one]
            share_base = False
        found = [how_alike(each, blocks.correlations, share_base=share_base) for each in (logs, winsorised(logs))]
        return max(found, key=lambda alike: alike[max(alike)])

    @property
    def _columns(self) -> list[int]:
        return [1 + config for config in self.configs]

    @cached_property
    def _has_one(self) -> NDArray[np.bool_]:
        """Which rows hold a config that is looked at."""
        return np.asarray(np.isfinite(self.blocks.array[:, self._columns]).any(axis=1))
