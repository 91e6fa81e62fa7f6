"""From latencies, or whatever else is minimised, to a verdict. Pure functions of numbers; nothing here measures.

The unit of evidence is the process: samples within one agree far better with each other than with those of the next,
so an interval over samples would claim a certainty that is not there (docs/measurement.md). Processes are compared
in blocks: in each, every config runs once, all at the same time, sampled in turns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from autotune.measure.early_look import EARLY_GAINS, Gains, Posterior, is_proven_early, noise_of, whitened
from autotune.schema import Record

MARGIN = 0.01
"""A speed-up below this share is not worth a compile setting; `faster` needs the whole interval beyond it."""
ERROR = 0.02
"""Error of the intervals, half on either side: a config that is no faster is called so in one study of a hundred."""
TOO_WIDE = 1.15
"""An interval whose ends differ by more than this factor, and that leaves a gain possible, decides nothing."""
SMALL_GAIN = 0.05
"""A config that does not look faster, and for which a gain of this share is ruled out, need not be measured further:
what more blocks could prove of it is next to nothing (docs/decisions/0063-one-race.md)."""
RULED_OUT_ERROR = 0.05
"""One look rules out a gain that a config truly has so often at most."""
FIRST_LOOK = 4
"""Blocks of a config before it is looked at with the whole rule; each further look doubles them."""
NUM_RESAMPLES = 20_000
BLOCKS_PER_OUTLIER = 6
"""One block in so many is set aside on either side."""
POOLED_FREEDOM = 4
"""Where a config's variance is below the middle one of all, the latter counts as much as so many degrees of freedom of
its own. A larger one stays as it is: that config may be a wild one."""
CORRELATIONS = {0.0: 0.85, 0.9: 0.15}
"""How alike successive blocks may be (lag-1 correlation of log ratios), and how likely each is before any block is
seen. Chosen by simulation: up to 0.8 no more than 2 % of studies find a false winner, also with one config alone or one
far noisier than the rest (docs/decisions/0060-early-looks.md)."""
CORRELATIONS_OF_CHOSEN = {0.0: 0.75, 0.9: 0.25}
"""So much more likely are blocks taken to be alike where the configs were chosen by a trial just before them: what made
a slow config look fast there may last into its blocks, and it would not have been chosen without
(docs/decisions/0060-early-looks.md)."""
NO_SCATTER = 1e-12
"""Log ratios that differ by less are the same number, rounded."""
ALIKE = 0.4
"""From this estimated correlation on, a verdict that found nothing names it as the reason."""


class Verdict(StrEnum):
    """What the study says. `COMPILED` are those that make an export compile anything."""

    FASTER = "faster"
    """In terms of the objective: it may need less memory, or give its first result sooner."""
    TIE = "tie"
    KEEP_UNTUNED = "keep_untuned"
    UNDECIDED = "undecided"
    """The machine is too noisy to tell, or the time was used up."""
    FEASIBLE = "feasible"
    """The untuned model breaks a constraint; this config keeps them all, and need not be faster."""
    INFEASIBLE = "infeasible"
    CHOSEN = "chosen"
    """For an export only: the user took another trial than the study's answer."""


COMPILED = frozenset({Verdict.FASTER, Verdict.FEASIBLE, Verdict.CHOSEN})


class Speedup(Record):
    """The base's value divided by the config's, with its 98 % interval. Above 1: the config is better."""

    median: float
    low: float
    high: float


def inverse(speedup: Speedup) -> Speedup:
    """The speed-up of the base over the config."""
    return Speedup(median=1 / speedup.median, low=1 / speedup.high, high=1 / speedup.low)


@dataclass(frozen=True)
class Comparison:
    """Blocks of what is minimised (latencies in seconds, or bytes): one row a block, the base in the first column, the
    configs in the others; None where a config took no part.

    A config's interval is `centre -+ q * scale` of its log ratios over blocks. Centre and scale are a trimmed mean and
    its standard error: from six blocks on, the most extreme ones on either side are set aside, since on a shared
    machine some block is always hit by somebody else (Yuen, Biometrika 61, 1974). The quantile q is that of the largest
    |centre / scale| among all configs, so the intervals hold for all at once and the best may be picked after looking.
    It comes from a parametric bootstrap: rows drawn from a normal distribution with the correlations of the observed
    log ratios (Westfall and Young, Resampling-Based Multiple Testing, 1993). It keeps its error rate from four blocks
    on; resampling the rows themselves, the other bootstrap, is far too narrow with as few blocks as one can afford
    (docs/decisions/0005-verdict-in-blocks.md). Two things make the scale less a matter of chance than the deviation of
    a few blocks is: a config's small variance is moderated by that of all (Smyth, Statistical Applications in Genetics
    and Molecular Biology 3, 2004), and the drawn rows are as alike from one to the next as the observed ones may be
    (docs/decisions/0060-early-looks.md).

    Configs join a race at different times, and leave it, so each has its own number of blocks, and its own looks: after
    `first_look` of its blocks, twice as many, and so on. The intervals of a look hold for all configs that have
    `first_look` blocks by then; a drawn row has the same gaps as the measured one. With fewer blocks a config has an
    interval of its own, from a posterior that stands on what scatter is usual (`early_look`), and may be proven early.
    What a look has proven stays proven: the error of all looks together was paid for.
    """

    values: tuple[tuple[float | None, ...], ...]
    num_looks: int = 1
    """How often the same data may be looked at in all; each look gets an equal share of the error (Bonferroni), but for
    the last one of a run that its clock ends (`is_final`)."""
    searched: tuple[float | None, ...] = ()
    """Speed-up of each config over the base in its own trial of the search: a ratio, None if there is none. Chosen for
    being large, it is never a block; an early look needs it, and who is the best is judged with it."""
    controls: tuple[float | None, ...] = ()
    """One a block: the value of a second process of the base, if one took its turns too."""
    first_look: int = FIRST_LOOK
    """Blocks of a config from which on it has an interval by the bootstrap."""
    drifts: tuple[float, ...] = ()
    """Slowdown of the base at the time of each of `searched`, relative to its own trial. An early look divides it out.
    Empty: nothing was read."""
    is_final: bool = False
    """The clock has ended the run, whatever its figures are: the look at these blocks takes all of the error that the
    looks before it have left (docs/decisions/0060-early-looks.md)."""

    def num_blocks(self, config: int) -> int:
        """Blocks in which a config took part."""
        return len(self._rows_of(config))

    @cached_property
    def speedups(self) -> tuple[Speedup, ...]:
        """Each config's speed-up over the base, in the order of the columns. ValueError where one has no block."""
        found = [self.speedup_of(config) for config in range(self._num_configs)]
        missing = [config for config, speedup in enumerate(found) if speedup is None]
        if missing or not self.values:
            raise ValueError(f"no block holds the configs {missing or 'at all'}")
        return tuple(speedup for speedup in found if speedup is not None)

    def speedup_of(self, config: int) -> Speedup | None:
        """One config's speed-up; None without a block."""
        if config in self._looked_at:
            return self._intervals[config]
        return _speedup_by(self._posterior(config)) if self.num_blocks(config) else None

    def stated(self, config: int, margin: float = MARGIN) -> Speedup | None:
        """One config's speed-up within what all looks leave of it; None without a block.

        The intervals of all looks hold together, so the truth lies in each of them, and what is proven exceeds the
        margin, although a later and noisier block may have widened the interval again. Looks that contradict each
        other leave nothing: something changed on the machine, and the interval of all blocks stands alone. What no look
        has proven is not shown to gain anything: a few blocks may agree by chance, so such an interval reaches down to
        1 where it would clear the margin.
        """
        present = self.speedup_of(config)
        if present is None:
            return None
        looks = [num for num in self._looks if num < self.num_blocks(config)]
        intervals = [present, *(self._at_look(config, num)._intervals[config] for num in looks)]
        bar = self._exceeded(config, margin, is_last=True)
        low = max([*(interval.low for interval in intervals), *([] if bar is None else [1 + bar])])
        high = min(interval.high for interval in intervals)
        if low >= high:
            low, high = present.low, present.high
        if bar is None and low > 1 + self.margin_of(config, margin):
            low = 1.0
        return Speedup(median=min(max(present.median, low), high), low=low, high=high)

    def is_proven(self, config: int, margin: float = MARGIN, *, is_last: bool = False) -> bool:
        """Some look has proven that the config gains more than the margin, and than what controls showed by then.

        The looks come early, and then after `first_look` of its blocks, twice as many and so on. `is_last`: no block
        follows, so that those since the latest look are looked at in place of the next one.
        """
        return self._exceeded(config, margin, is_last=is_last) is not None

    def _exceeded(self, config: int, margin: float, *, is_last: bool) -> float | None:
        """The margin that the first look exceeded which proved the config; None where none did."""
        num_blocks = self.num_blocks(config)
        looks = {*self._looks, *([num_blocks] if is_last and num_blocks >= self.first_look else [])}
        early = {num for num in EARLY_GAINS if num < self.first_look}
        due = (self._at_look(config, num) for num in sorted(early | looks) if num <= num_blocks)
        return next((then._bar(config, margin) for then in due if then._proves(config, margin)), None)

    def confidence(self, config: int, margin: float = MARGIN) -> float | None:
        """Probability that the config gains more than the margin, by its blocks alone; None without a block."""
        return self._posterior(config).above(math.log(1 + margin)) if self.num_blocks(config) else None

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
    def noise(self) -> float:
        """Scale of a log ratio of two processes: the usual one, together with how the base and the controls differ, and
        how each config's blocks do."""
        logs = np.log(self._array[:, 1:] / self._array[:, :1])
        nums = np.isfinite(logs).sum(axis=0)
        within = [float(np.nanvar(column)) * num for column, num in zip(logs.T, nums, strict=True) if num > 1]
        between = [math.log(one / other) ** 2 for one, other in self._controlled]
        return noise_of(sum(within) + sum(between), sum(int(num) - 1 for num in nums if num > 1) + len(between))

    def margin_of(self, config: int, least: float = MARGIN) -> float:
        """What its gain must exceed, or the margin that it has exceeded when it was proven."""
        exceeded = self._exceeded(config, least, is_last=True)
        return self._bar(config, least) if exceeded is None else exceeded

    def _bar(self, config: int, least: float) -> float:
        """`least`, or what controls of the config's own blocks show that the base may gain over itself."""
        controls = self.controls or (None,) * len(self.values)
        known = [(self.values[row][0], controls[row]) for row in self._rows_of(config)]
        pairs = [(base, control) for base, control in known if base is not None and control is not None]
        return max(least, margin_above(spread_of_pairs(pairs), self.num_blocks(config))) if pairs else least

    @cached_property
    def upper_limits(self) -> tuple[float, ...]:
        """The largest speed-up that each config may have: one-sided, at 95 %, for that config and this look alone;
        infinite before its first look.

        It says when to stop looking for a gain, and never proves one, so no share of its error is set aside for the
        other configs and looks.
        """
        limits = np.full(self._num_configs, np.inf)
        if self._looked_at:
            centres, scales = _centre_and_scale(self._logs, np.isfinite(self._logs))
            quantiles = np.quantile(self._errors, 1 - 2 * RULED_OUT_ERROR, axis=0)
            limits[list(self._looked_at)] = np.exp(centres + quantiles * scales)
        return tuple(limits.tolist())

    def verdict(self, config: int, margin: float = MARGIN) -> Verdict:
        """About one config, when no block follows: `verdict_of` its speed-up. What a look has proven stays proven, what
        none has is not `faster`, and where a gain is ruled out a wide interval is no obstacle."""
        if self.is_proven(config, margin, is_last=True):
            return Verdict.FASTER
        speedup = self.speedup_of(config)
        verdict = Verdict.UNDECIDED if speedup is None else verdict_of(speedup, self.margin_of(config, margin))
        if verdict is Verdict.UNDECIDED and self.rules_out(config):
            return Verdict.TIE if self.upper_limits[config] >= 1 else Verdict.KEEP_UNTUNED
        return Verdict.UNDECIDED if verdict is Verdict.FASTER else verdict

    def rules_out(self, config: int) -> bool:
        """The config does not look faster than the base, and a gain of `SMALL_GAIN` is ruled out."""
        is_small = self.upper_limits[config] <= 1 + SMALL_GAIN
        return is_small and self._intervals[config].median <= 1 + MARGIN

    def is_clear(self, margin: float = MARGIN) -> bool:
        """More blocks would not change the verdict: one is proven faster, or none even looks it and none may be."""
        configs = range(self._num_configs)
        if any(self.is_proven(config, margin) for config in configs):
            return True
        return all(self.rules_out(config) or self._cannot_win(config, margin) for config in configs)

    def _cannot_win(self, config: int, margin: float) -> bool:
        """It was looked at, and its interval leaves no gain, or does not look like one and is narrow."""
        margin = self.margin_of(config, margin)
        return config in self._looked_at and _leaves_no_gain(self._intervals[config], margin)

    @cached_property
    def inverse(self) -> Comparison:
        """The base compared with the config, where there are two."""
        rows = tuple(row[::-1] for row in self.values)
        return Comparison(rows, num_looks=self.num_looks, first_look=self.first_look, is_final=self.is_final)

    def between(self, config: int, other: int) -> Speedup:
        """How many times as fast as `other` is `config` (both columns), with an interval of its own.

        It rests on the blocks that both took part in; ValueError where there is none.
        """
        values = self._array[:, [other, config]]
        values = values[np.isfinite(values).all(axis=1)]
        logs = np.log(values[:, :1] / values[:, 1:])
        if len(logs) >= self.first_look:
            errors = _studentised_errors(logs, _how_alike(logs, self._correlations))
            return _simultaneous(logs, errors, ERROR / self.num_looks)[0]
        if not len(logs):
            raise ValueError(f"no block holds both {config} and {other}")
        return _speedup_by(Posterior(logs[:, 0], self._correlations))

    @cached_property
    def correlation(self) -> float:
        """Expected correlation of log ratios from one block to the next; few blocks leave it near the prior's 0.1."""
        return sum(correlation * weight for correlation, weight in self._alike.items())

    @property
    def _correlations(self) -> Mapping[float, float]:
        """How alike blocks may be, and how likely that is before any is seen."""
        return CORRELATIONS_OF_CHOSEN if self.searched else CORRELATIONS

    @property
    def _looks(self) -> tuple[int, ...]:
        """Blocks after which a config is looked at with the whole rule."""
        return tuple(self.first_look << look for look in range(self.num_looks))

    @property
    def _num_configs(self) -> int:
        return len(self.values[0]) - 1 if self.values else len(self.searched)

    @cached_property
    def _array(self) -> NDArray[np.float64]:
        """All values; NaN in a gap."""
        return np.array(self.values, dtype=float).reshape(len(self.values), self._num_configs + 1)

    def _rows_of(self, config: int) -> list[int]:
        """Numbers of the rows that hold a config."""
        return [int(row) for row in np.flatnonzero(np.isfinite(self._array[:, config + 1]))]

    @cached_property
    def _looked_at(self) -> tuple[int, ...]:
        """Configs that have enough blocks for an interval by the bootstrap."""
        return tuple(config for config in range(self._num_configs) if self.num_blocks(config) >= self.first_look)

    @cached_property
    def _logs(self) -> NDArray[np.float64]:
        """Log speed-ups of the configs that are looked at: one row a block that one of them has, one column a config;
        NaN in a gap."""
        logs = np.log(self._array[:, :1] / self._array[:, [1 + config for config in self._looked_at]])
        return np.asarray(logs[self._has_looked])

    @cached_property
    def _errors(self) -> NDArray[np.float64]:
        return _studentised_errors(self._logs, self._alike)

    @cached_property
    def _alike(self) -> Mapping[float, float]:
        """How alike blocks are by those that are looked at: correlation -> how likely it is.

        Where trials chose the configs, two things make it more than a guess after a few blocks. Held against a control,
        which is one process, each process stands for itself, those of the base too. And one that was hit hides how
        alike the others are: it is judged with and without such ones, and the more prudent judgement counts.
        """
        if not self._looked_at:
            return self._correlations
        if not self.searched:
            return _how_alike(self._logs, self._correlations)
        logs, share_base = self._logs, True
        controls = np.array(self.controls, dtype=float)
        if np.isfinite(controls).sum() == len(self.values):
            columns = [0, *(1 + config for config in self._looked_at)]
            logs, share_base = np.log(self._array[:, columns] / controls[:, None])[self._has_looked], False
        found = [_how_alike(each, self._correlations, share_base=share_base) for each in (logs, _winsorised(logs))]
        return max(found, key=lambda alike: alike[max(alike)])

    @cached_property
    def _has_looked(self) -> NDArray[np.bool_]:
        """Which rows hold a config that is looked at."""
        columns = [1 + config for config in self._looked_at]
        return np.asarray(np.isfinite(self._array[:, columns]).any(axis=1))

    @cached_property
    def _intervals(self) -> dict[int, Speedup]:
        """Speed-ups of the configs that are looked at; the intervals hold for all at once."""
        if not self._looked_at:
            return {}
        found = _simultaneous(self._logs, self._errors, np.array([self._error_of(each) for each in self._looked_at]))
        return dict(zip(self._looked_at, found, strict=True))

    def _error_of(self, config: int) -> float:
        """What the look at a config's blocks may spend."""
        num_before = sum(look < self.num_blocks(config) for look in self._looks)
        num_left = max(self.num_looks - num_before, 1) if self.is_final else 1
        return ERROR * num_left / self.num_looks

    def _posterior(self, config: int) -> Posterior:
        rows = self._rows_of(config)
        return Posterior(np.log(self._array[rows, 0] / self._array[rows, config + 1]), self._correlations)

    def _at_look(self, config: int, num_blocks: int) -> Comparison:
        """The comparison as it was when the config had so many blocks."""
        end = self._rows_of(config)[num_blocks - 1] + 1
        is_final = self.is_final and num_blocks == self.num_blocks(config)
        return _known(replace(self, values=self.values[:end], controls=self.controls[:end], is_final=is_final))

    def _proves(self, config: int, margin: float) -> bool:
        """The blocks, all of which are looked at, prove that the config gains more than the margin."""
        margin = self._bar(config, margin)
        if config in self._looked_at and verdict_of(self._intervals[config], margin) is Verdict.FASTER:
            return True
        searched = self.searched[config] if self.searched else None
        if searched is None:
            return False
        # What reads the base for the search is the control of the blocks: one process must not prove anything twice.
        searched /= max(self.drifts[config] if self.drifts else 1.0, 1.0)
        base = self._array[:, 0]
        controls = [control or math.inf for control in self.controls] or math.inf
        # A process of the base that was hit must not prove anything: the faster of the two is the one to beat.
        logs = np.log(np.minimum(base, controls) / self._array[:, config + 1])
        posterior = Posterior(logs[self._rows_of(config)], self._correlations)
        num_configs = sum(self.num_blocks(other) > 0 for other in range(self._num_configs))
        return is_proven_early(
            posterior, math.log(searched), self.noise, math.log(1 + margin), num_configs, is_final=self.is_final
        )

    @property
    def _controlled(self) -> list[tuple[float, float]]:
        """The base's value and its control's, of each block that has one."""
        pairs = zip(self._array[:, 0].tolist(), self.controls, strict=bool(self.controls))
        return [(base, control) for base, control in pairs if control is not None]

    @cached_property
    def _gains(self) -> Gains:
        searched = [math.nan if ratio is None else 1 / ratio for ratio in self.searched] or [
            math.nan
        ] * self._num_configs
        return Gains(np.log(np.vstack([self._array, [1.0, *searched]])))


@lru_cache(maxsize=64)
def _known(comparison: Comparison) -> Comparison:
    """An equal comparison, with whatever was computed of it: each new block asks for all looks so far again."""
    return comparison


def _speedup_by(posterior: Posterior) -> Speedup:
    low, high = (math.exp(posterior.quantile(share)) for share in (ERROR / 2, 1 - ERROR / 2))
    return Speedup(median=min(max(math.exp(float(np.median(posterior.logs))), low), high), low=low, high=high)


def _simultaneous(
    logs: NDArray[np.float64], errors: NDArray[np.float64], error: float | NDArray[np.float64]
) -> tuple[Speedup, ...]:
    """Intervals of the columns' centres that hold together with 1 - `error`, which may be each column's own."""
    centres, scales = _centre_and_scale(logs, np.isfinite(logs))
    half = np.quantile(errors.max(axis=-1), 1 - error) * scales
    lows, highs = np.exp(centres - half), np.exp(centres + half)
    # The middle block speaks for the point, but never from outside of the interval.
    medians = np.clip(np.exp(np.nanmedian(logs, axis=0)), lows, highs)
    return tuple(Speedup(median=m, low=lo, high=hi) for m, lo, hi in zip(medians, lows, highs, strict=True))


def _centre_and_scale(
    logs: NDArray[np.float64], has: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Trimmed mean and its standard error (from the winsorised, moderated deviation) over the last axis but one; `has`
    says which rows each column has."""
    centres, variances = [], []
    num_blocks = has.sum(axis=0)
    num_aside = num_blocks // BLOCKS_PER_OUTLIER
    for column, (num, aside) in enumerate(zip(num_blocks, num_aside, strict=True)):
        ordered = np.sort(logs[..., has[:, column], column], axis=-1)
        kept = ordered[..., aside : num - aside]
        centres.append(kept.mean(axis=-1))
        variances.append(np.clip(ordered, kept[..., :1], kept[..., -1:]).var(axis=-1, ddof=1))
    own = np.stack(variances, axis=-1)
    middle = (len(num_blocks) - 1) // 2
    pooled = np.sort(own, axis=-1)[..., middle : middle + 1]
    freedom = num_blocks - 2 * num_aside - 1
    variance = (freedom * own + POOLED_FREEDOM * np.maximum(own, pooled)) / (freedom + POOLED_FREEDOM)
    return np.stack(centres, axis=-1), np.sqrt(variance / num_blocks) / (1 - 2 * num_aside / num_blocks)


def _studentised_errors(logs: NDArray[np.float64], alike: Mapping[float, float]) -> NDArray[np.float64]:
    """|centre / scale| of each column in so many drawn sets of blocks, with the gaps of `logs`, whose true centres are
    0."""
    draws = np.random.default_rng(0).standard_normal((NUM_RESAMPLES, *logs.shape))
    _make_alike(draws, alike)
    centres, scales = _centre_and_scale(draws @ _root(logs), np.isfinite(logs))
    return np.asarray(np.abs(centres) / scales)


def _make_alike(draws: NDArray[np.float64], alike: Mapping[float, float]) -> None:
    """Give each correlation its share of the draws, and these draws that correlation from one block to the next."""
    ends = np.round(np.cumsum(list(alike.values())) * len(draws)).astype(int)
    correlation = np.repeat(list(alike), np.diff(ends, prepend=0))[:, None]
    for block in range(1, draws.shape[1]):
        draws[:, block] = correlation * draws[:, block - 1] + np.sqrt(1 - correlation**2) * draws[:, block]


def _winsorised(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """With the blocks that are set aside moved to the nearest one that is not."""
    moved = logs.copy()
    for column in moved.T:
        has = np.isfinite(column)
        ordered = np.sort(column[has])
        aside = len(ordered) // BLOCKS_PER_OUTLIER
        column[has] = np.clip(column[has], ordered[aside], ordered[len(ordered) - 1 - aside])
    return moved


def _how_alike(
    logs: NDArray[np.float64], correlations: Mapping[float, float], *, share_base: bool = True
) -> dict[float, float]:
    """How likely each correlation is: its prior times its likelihood, level and scale of each column unknown.

    `share_base`: all are ratios to the processes of the base.
    """
    has = np.isfinite(logs)
    separate = logs - np.nanmean(logs, axis=0)
    if share_base:
        # Without this step the base's blocks would be counted once for each config.
        shared = 1 - 1 / np.sqrt(has.sum(axis=1, keepdims=True) + 1)
        separate = separate - shared * np.nanmean(separate, axis=1, keepdims=True)
    columns = [separate[has[:, column], column] for column in range(logs.shape[1])]
    columns = [column - column.mean() for column in columns]
    columns = [column for column in columns if np.abs(column).max() > NO_SCATTER]
    log_weights = [
        math.log(prior) + sum(_log_likelihood(column, correlation) for column in columns)
        for correlation, prior in correlations.items()
    ]
    weights = np.exp(np.array(log_weights) - max(log_weights))
    return dict(zip(correlations, (weights / weights.sum()).tolist(), strict=True))


def _log_likelihood(column: NDArray[np.float64], correlation: float) -> float:
    """Log likelihood of a correlation, from the blocks of one config."""
    ones = whitened(np.ones(len(column)), correlation)
    steps = whitened(column, correlation)
    ones_squared = float(ones @ ones)
    squares = float(steps @ steps) - float(ones @ steps) ** 2 / ones_squared
    level = 0.5 * math.log((1 - correlation**2) / ones_squared)
    return level - (len(column) - 1) / 2 * math.log(squares)


def _root(logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """A matrix that gives independent standard normal columns the correlations of `logs`."""
    deviations = np.nan_to_num(logs - np.nanmean(logs, axis=0))
    norms = np.linalg.norm(deviations, axis=0)
    unit = np.divide(deviations, norms, out=np.zeros_like(deviations), where=norms > 0)
    values, vectors = np.linalg.eigh(unit.T @ unit + np.diag((norms == 0).astype(float)))
    root: NDArray[np.float64] = (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T
    return root


def verdict_of(speedup: Speedup, margin: float = MARGIN) -> Verdict:
    """`faster` if the whole interval lies above 1 + margin, `keep_untuned` if it lies below 1, else `tie`.

    `undecided` where the interval is so wide that a gain worth having is neither shown nor ruled out.
    """
    if speedup.low > 1 + margin:
        return Verdict.FASTER
    if speedup.high < 1:
        return Verdict.KEEP_UNTUNED
    if speedup.high > 1 + margin and speedup.high > TOO_WIDE * speedup.low:
        return Verdict.UNDECIDED
    return Verdict.TIE


def _leaves_no_gain(speedup: Speedup, margin: float) -> bool:
    """The interval leaves no gain, or does not look like one and is narrow."""
    return speedup.high <= 1 + margin or (speedup.median <= 1 + margin and speedup.high <= TOO_WIDE * speedup.low)


def margin_above(noise_floor: float, num_blocks: int) -> float:
    """What a mean over `num_blocks` must exceed: `MARGIN`, or what the same config twice would show by itself.

    `noise_floor` is the spread of the log ratio of two processes of one config; that of a mean is smaller.
    """
    return max(MARGIN, noise_floor / math.sqrt(num_blocks))


def spread_of_pairs(pairs: Sequence[tuple[float, float]]) -> float:
    """Noise floor: root mean square of the log ratio of two processes that ran the same config, as a share."""
    return math.sqrt(float(np.mean([math.log(one_s / other_s) ** 2 for one_s, other_s in pairs])))


def break_even_calls(compile_s: float, untuned_s: float, tuned_s: float) -> int | None:
    """Calls after which the compile time has been earned back; None if a call saves nothing."""
    saved_s = untuned_s - tuned_s
    if saved_s <= 0:
        return None
    return math.ceil(max(compile_s, 0.0) / saved_s)
