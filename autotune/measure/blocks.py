"""`Blocks`: what the processes of all blocks gave, as data, and what it says without any interval."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from autotune.measure.early_look import Gains, Posterior, noise_of
from autotune.measure.statistics import margin_above, spread_of_pairs

CORRELATIONS = {0.0: 0.85, 0.9: 0.15}
"""How alike successive blocks may be (lag-1 correlation of log ratios), and how likely each is before any block is
seen. Chosen by simulation: up to 0.8 no more than 2 % of studies find a false winner, also with one config alone or one
far noisier than the rest (docs/decisions/0060-early-looks.md)."""
CORRELATIONS_OF_CHOSEN = {0.0: 0.75, 0.9: 0.25}
"""So much more likely are blocks taken to be alike where the configs were chosen by a trial just before them: what made
a slow config look fast there may last into its blocks, and it would not have been chosen without
(docs/decisions/0060-early-looks.md)."""


@dataclass(frozen=True)
class Blocks:
    """Blocks of what is minimised (latencies in seconds, or bytes): one row a block, the base in the first column, the
    configs in the others; None where a config took no part. A `config` is an index of the others."""

    values: tuple[tuple[float | None, ...], ...]
    searched: tuple[float | None, ...] = ()
    """Speed-up of each config over the base in its own trial of the search: a ratio, None if there is none. Chosen for
    being large, it is never a block; an early look needs it, and who is the best is judged with it."""
    controls: tuple[float | None, ...] = ()
    """One a block: the value of a second process of the base, if one took its turns too."""
    drifts: tuple[float, ...] = ()
    """Slowdown of the base at the time of each of `searched`, relative to its own trial. An early look divides it out.
    Empty: nothing was read."""

    @property
    def num_configs(self) -> int:
        """Columns beside the base."""
        return len(self.values[0]) - 1 if self.values else len(self.searched)

    @cached_property
    def array(self) -> NDArray[np.float64]:
        """All values: a row a block, the base in the first column; NaN in a gap."""
        return np.array(self.values, dtype=float).reshape(len(self.values), self.num_configs + 1)

    def rows_of(self, config: int) -> list[int]:
        """Numbers of the rows that hold a config."""
        return [int(row) for row in np.flatnonzero(np.isfinite(self.array[:, config + 1]))]

    def num_blocks(self, config: int) -> int:
        """Blocks in which a config took part."""
        return len(self.rows_of(config))

    def until(self, config: int, num_blocks: int) -> Blocks:
        """The blocks as they were when the config had so many."""
        end = self.rows_of(config)[num_blocks - 1] + 1
        return replace(self, values=self.values[:end], controls=self.controls[:end])

    @property
    def inverse(self) -> Blocks:
        """The base compared with the config, where there are two."""
        return Blocks(tuple(row[::-1] for row in self.values))

    @property
    def correlations(self) -> Mapping[float, float]:
        """How alike blocks may be, and how likely that is before any is seen."""
        return CORRELATIONS_OF_CHOSEN if self.searched else CORRELATIONS

    def posterior(self, config: int) -> Posterior:
        """What a config's blocks say of it by themselves."""
        rows = self.rows_of(config)
        return Posterior(np.log(self.array[rows, 0] / self.array[rows, config + 1]), self.correlations)

    def posterior_beside_control(self, config: int) -> Posterior:
        """`posterior` against the faster of the base and its control: a process of the base that was hit must not prove
        anything."""
        controls = [control or math.inf for control in self.controls] or math.inf
        logs = np.log(np.minimum(self.array[:, 0], controls) / self.array[:, config + 1])
        return Posterior(logs[self.rows_of(config)], self.correlations)

    def searched_without_drift(self, config: int) -> float | None:
        """The config's own trial against the base at that time, which is the control of the blocks: one process must
        not prove anything twice."""
        searched = self.searched[config] if self.searched else None
        return None if searched is None else searched / max(self.drifts[config] if self.drifts else 1.0, 1.0)

    def confidence(self, config: int, margin: float) -> float | None:
        """Probability that the config gains more than the margin, by its blocks alone; None without a block."""
        return self.posterior(config).above(math.log(1 + margin)) if self.num_blocks(config) else None

    def margin(self, config: int, least: float) -> float:
        """`least`, or what controls of the config's own blocks show that the base may gain over itself."""
        controls = self.controls or (None,) * len(self.values)
        known = [(self.values[row][0], controls[row]) for row in self.rows_of(config)]
        pairs = [(base, control) for base, control in known if base is not None and control is not None]
        return max(least, margin_above(spread_of_pairs(pairs), self.num_blocks(config))) if pairs else least

    @cached_property
    def noise(self) -> float:
        """Scale of a log ratio of two processes: the usual one, together with how the base and the controls differ, and
        how each config's blocks do."""
        logs = np.log(self.array[:, 1:] / self.array[:, :1])
        nums = np.isfinite(logs).sum(axis=0)
        within = [float(np.nanvar(column)) * num for column, num in zip(logs.T, nums, strict=True) if num > 1]
        pairs = zip(self.array[:, 0].tolist(), self.controls, strict=bool(self.controls))
        between = [math.log(base / control) ** 2 for base, control in pairs if control is not None]
        return noise_of(sum(within) + sum(between), sum(int(num) - 1 for num in nums if num > 1) + len(between))

    @cached_property
    def expected_speedups(self) -> tuple[float | None, ...]:
        """Each config's speed-up over the base by its blocks and the search's trial together; None where it has
        neither.

        It says who is the best so far, and proves nothing. With few blocks the config that has the largest one is
        nearer to the best than the one whose blocks have.
        """
        gains = self._gains.centres[1:].tolist()
        return tuple(math.exp(gain) if math.isfinite(gain) else None for gain in gains)

    def expected_regret(self, config: int | None) -> float:
        """Expected log gain that the best of all configs would bring over this one (None: over the base), by blocks and
        the search's trials.

        It is what it would be worth to know the best for sure. Every column counts that has a figure, so leave out the
        configs that may not be chosen.
        """
        return self._gains.of_best_over(0 if config is None else config + 1)

    def expected_gains(self, config: int | None) -> tuple[float, ...]:
        """Expected log gain that each config would bring over this one (None: over the base), where it is better."""
        return tuple(self._gains.of_each_over(0 if config is None else config + 1)[1:].tolist())

    @cached_property
    def _gains(self) -> Gains:
        searched = [math.nan if ratio is None else 1 / ratio for ratio in self.searched] or [
            math.nan
        ] * self.num_configs
        return Gains(np.log(np.vstack([self.array, [1.0, *searched]])))
