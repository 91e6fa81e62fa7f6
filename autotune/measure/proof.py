"""`Proof`: what the looks at blocks have proven, and which of them may spend how much of the error."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from autotune.measure.blocks import Blocks
from autotune.measure.early_look import EARLY_ERROR, EARLY_GAINS, PRIOR_SCALE, is_proven_early
from autotune.measure.looks import FIRST_LOOK, Look
from autotune.measure.statistics import ERROR, MARGIN, TOO_WIDE, Speedup, Verdict, verdict_of


@dataclass(frozen=True)
class Proof:
    """Configs join a race at different times, and leave it, so each has its own number of blocks, and its own looks:
    after `first_look` of its blocks, twice as many, and so on. With fewer blocks it may be proven early (`early_look`).
    What a look has proven stays proven: the error of all looks together was paid for."""

    blocks: Blocks
    num_looks: int = 1
    """How often the same data may be looked at in all; each look gets an equal share of the error (Bonferroni), but for
    the last one of a run that its clock ends (`is_final`)."""
    first_look: int = FIRST_LOOK
    """Blocks of a config from which on it has an interval by the bootstrap."""
    is_final: bool = False
    """The clock has ended the run, whatever its figures are: the look at these blocks takes all of the error that the
    looks before it have left (docs/decisions/0060-early-looks.md)."""

    @cached_property
    def look(self) -> Look:
        """The look at all blocks."""
        return Look(self.blocks, self.first_look, tuple(map(self._error_of, range(self.blocks.num_configs))))

    @cached_property
    def inverse(self) -> Proof:
        """The base compared with the config, where there are two."""
        return replace(self, blocks=self.blocks.inverse)

    def between(self, config: int, other: int) -> Speedup:
        """`Look.between` two columns, with the share of the error that one look has."""
        return self.look.between(config, other, ERROR / self.num_looks)

    def stated(self, config: int, margin: float = MARGIN) -> Speedup | None:
        """One config's speed-up within what all looks leave of it; None without a block.

        The intervals of all looks hold together, so the truth lies in each of them, and what is proven exceeds the
        margin: another block does not take back what few have shown. Looks that contradict each other leave nothing:
        something changed on the machine, and the interval of all blocks stands alone. What no look has proven is not
        shown to gain anything: a few blocks may agree by chance, so such an interval reaches down to 1 where it would
        clear the margin.
        """
        present = self.look.speedup_of(config)
        if present is None:
            return None
        first = self._first_proof(config, margin, is_last=True)
        looks = [num for num in self._looks if num < self.blocks.num_blocks(config)]
        intervals = [
            *([] if first is None else self._early_intervals(config, first)),
            *(self._at_look(config, num).look.intervals[config] for num in looks),
        ]
        if not intervals or config in self.look.configs:
            intervals.append(present)
        bar = None if first is None else first.blocks.margin(config, margin)
        low = max([*(interval.low for interval in intervals), *([] if bar is None else [1 + bar])])
        high = min(interval.high for interval in intervals)
        if low >= high:
            low, high = present.low, present.high
        if bar is None and low > 1 + self.blocks.margin(config, margin):
            low = 1.0
        return Speedup(median=min(max(present.median, low), high), low=low, high=high)

    def is_proven(self, config: int, margin: float = MARGIN, *, is_last: bool = False) -> bool:
        """Some look has proven that the config gains more than the margin, and than what controls showed by then.

        The looks come early, and then after `first_look` of its blocks, twice as many and so on. `is_last`: no block
        follows, so that those since the latest look are looked at in place of the next one.
        """
        return self._exceeded(config, margin, is_last=is_last) is not None

    def margin_of(self, config: int, least: float = MARGIN) -> float:
        """What its gain must exceed, or the margin that it has exceeded when it was proven."""
        exceeded = self._exceeded(config, least, is_last=True)
        return self.blocks.margin(config, least) if exceeded is None else exceeded

    def verdict(self, config: int, margin: float = MARGIN) -> Verdict:
        """About one config, when no block follows: `verdict_of` its speed-up. What a look has proven stays proven, what
        none has is not `faster`, and where a gain is ruled out a wide interval is no obstacle."""
        if self.is_proven(config, margin, is_last=True):
            return Verdict.FASTER
        speedup = self.look.speedup_of(config)
        verdict = Verdict.UNDECIDED if speedup is None else verdict_of(speedup, self.margin_of(config, margin))
        if verdict is Verdict.UNDECIDED and self.look.rules_out(config):
            return Verdict.TIE if self.look.upper_limits[config] >= 1 else Verdict.KEEP_UNTUNED
        return Verdict.UNDECIDED if verdict is Verdict.FASTER else verdict

    def is_clear(self, margin: float = MARGIN) -> bool:
        """More blocks would not change the verdict: one is proven faster, or none even looks it and none may be."""
        configs = range(self.blocks.num_configs)
        if any(self.is_proven(config, margin) for config in configs):
            return True
        return all(self.look.rules_out(config) or self._cannot_win(config, margin) for config in configs)

    def _cannot_win(self, config: int, margin: float) -> bool:
        """It was looked at, and its interval leaves no gain, or does not look like one and is narrow."""
        if config not in self.look.configs:
            return False
        speedup, limit = self.look.intervals[config], 1 + self.margin_of(config, margin)
        return speedup.high <= limit or (speedup.median <= limit and speedup.high <= TOO_WIDE * speedup.low)

    def _early_intervals(self, config: int, first: Proof) -> list[Speedup]:
        """Intervals of the early looks at a config, from the `first` that proved it on; none where a later one did.

        Each leaves the error of an early look on either side, and is as much wider as all blocks scatter more than is
        usual: a few that agree by chance do not leave less than the blocks after them show.
        """
        last = min(self.blocks.num_blocks(config), self.first_look - 1, max(EARLY_GAINS))
        widened = max(1.0, self.blocks.noise / PRIOR_SCALE)
        nums = range(first.blocks.num_blocks(config), last + 1)
        return [self.blocks.until(config, num).posterior(config).speedup(2 * EARLY_ERROR, widened) for num in nums]

    def _exceeded(self, config: int, margin: float, *, is_last: bool) -> float | None:
        """The margin that the first look exceeded which proved the config; None where none did."""
        first = self._first_proof(config, margin, is_last=is_last)
        return None if first is None else first.blocks.margin(config, margin)

    def _first_proof(self, config: int, margin: float, *, is_last: bool) -> Proof | None:
        """The first look that proved the config."""
        num_blocks = self.blocks.num_blocks(config)
        looks = {*self._looks, *([num_blocks] if is_last and num_blocks >= self.first_look else [])}
        early = {num for num in EARLY_GAINS if num < self.first_look}
        due = (self._at_look(config, num) for num in sorted(early | looks) if num <= num_blocks)
        return next((then for then in due if then._proves(config, margin)), None)

    def _proves(self, config: int, margin: float) -> bool:
        """The blocks, all of which are looked at, prove that the config gains more than the margin."""
        blocks = self.blocks
        margin = blocks.margin(config, margin)
        if config in self.look.configs and verdict_of(self.look.intervals[config], margin) is Verdict.FASTER:
            return True
        searched = blocks.searched_without_drift(config)
        if searched is None:
            return False
        posterior = blocks.posterior_beside_control(config)
        num_configs = sum(blocks.num_blocks(other) > 0 for other in range(blocks.num_configs))
        return is_proven_early(
            posterior, math.log(searched), blocks.noise, math.log(1 + margin), num_configs, is_final=self.is_final
        )

    @property
    def _looks(self) -> tuple[int, ...]:
        """Blocks after which a config is looked at with the whole rule."""
        return tuple(self.first_look << look for look in range(self.num_looks))

    def _error_of(self, config: int) -> float:
        """What the look at a config's blocks may spend."""
        num_before = sum(look < self.blocks.num_blocks(config) for look in self._looks)
        num_left = max(self.num_looks - num_before, 1) if self.is_final else 1
        return ERROR * num_left / self.num_looks

    def _at_look(self, config: int, num_blocks: int) -> Proof:
        """The proof as it was when the config had so many blocks."""
        is_final = self.is_final and num_blocks == self.blocks.num_blocks(config)
        return _known(replace(self, blocks=self.blocks.until(config, num_blocks), is_final=is_final))


@lru_cache(maxsize=64)
def _known(proof: Proof) -> Proof:
    """An equal proof, with whatever was computed of it: each new block asks for all looks so far again."""
    return proof
