"""What a study keeps: its `TrialRecord`s, how noisy the machine was, and the `Confirmation`.

Plain data; nothing here reads or writes a database.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from autotune.config import Config
from autotune.measurement import Failure, Measurement, Outcome, Record
from autotune.statistics import MARGIN, Speedup, Verdict

DRIFTING = 0.05
"""The untuned model's latency changed by more than this share during the search: worth a warning."""


class NoiseFloor(Record):
    """The untuned model against itself: what this machine shows as a difference where there is none."""

    pairs: tuple[tuple[float, float], ...]
    """Seconds a call in pairs of live processes."""
    spread: float
    """Root mean square of the pairs' log ratios: the share by which two processes of one config differ."""
    relative_error: float
    """Largest error of these processes' outputs against the reference: the model's own nondeterminism."""


class Sentinel(Record):
    """The untuned model, timed again between trials, to notice a machine that drifts."""

    after: int
    """Number of the trial that was recorded just before."""
    latency_s: float
    """The median."""


class Confirmation(Record):
    """The verdict and what it rests on: latencies in seconds, a row for each block of live processes."""

    verdict: Verdict
    candidate: int | None = None
    """Number of the trial that the verdict is about: the winner, or what came closest."""
    contestants: tuple[int, ...] = ()
    """Trial numbers, a column each; the untuned model's first."""
    blocks_s: tuple[tuple[float, ...], ...] = ()
    speedups: tuple[Speedup, ...] = ()
    """Of each contestant but the first over the untuned model; the intervals hold for all at once."""
    retired: dict[int, Speedup] = {}
    """Of trials that were left out after an earlier look, since they could not win any more: as it was then."""
    margin: float = MARGIN
    """Share by which the whole interval had to exceed 1."""
    compile_warm_s: float | None = None
    """First call minus a steady call in a new process, with the compile caches of an earlier one kept."""
    num_trials: int
    """Trials recorded when it was made: more of them make it outdated."""
    note: str | None = None

    @property
    def speedup(self) -> Speedup | None:
        """The candidate's."""
        return None if self.candidate is None else self.speedups[self._column - 1]

    @property
    def compared(self) -> dict[int, Speedup]:
        """Trial -> its speed-up over the untuned model, for all that took part to the end or were left out early."""
        return {**dict(zip(self.contestants[1:], self.speedups, strict=True)), **self.retired}

    @property
    def pairs(self) -> tuple[tuple[float, float], ...]:
        """Untuned and candidate seconds a call, block by block."""
        return () if self.candidate is None else tuple((row[0], row[self._column]) for row in self.blocks_s)

    @property
    def latencies_s(self) -> tuple[float, float]:
        """Untuned and tuned seconds a call, as the verdict has them: the untuned median, and that over the speed-up."""
        if self.speedup is None:
            raise ValueError("nothing was compared")
        untuned_s = statistics.median(row[0] for row in self.blocks_s)
        return untuned_s, untuned_s / self.speedup.median

    @property
    def _column(self) -> int:
        assert self.candidate is not None
        return self.contestants.index(self.candidate)


@dataclass(frozen=True)
class TrialRecord:
    """One trial as recorded. `state` is derived: `lost` means that the parent died before an outcome came."""

    number: int
    config: Config
    outcome: Outcome | None
    violations: dict[str, float]
    """Constraint -> by how much it is missed; only those that are."""
    started: datetime | None
    ended: datetime | None
    running: bool

    @property
    def state(self) -> Literal["measured", "infeasible", "failed", "running", "lost"]:
        if isinstance(self.outcome, Measurement):
            return "infeasible" if self.violations else "measured"
        if isinstance(self.outcome, Failure):
            return "failed"
        return "running" if self.running else "lost"

    @property
    def reused_from(self) -> int | None:
        """The trial whose samples these are, since the same program ran; None: it was sampled itself, or not at all."""
        return self.outcome.reused_from if isinstance(self.outcome, Measurement) else None

    @property
    def measurement(self) -> Measurement:
        """The outcome of a trial that is known to have been measured."""
        assert isinstance(self.outcome, Measurement)
        return self.outcome

    @property
    def counts(self) -> bool:
        """Uses up one of the study's trials: it says something about its config."""
        return isinstance(self.outcome, Measurement) or (
            isinstance(self.outcome, Failure) and self.outcome.blames_config
        )


def drift(untuned: TrialRecord, sentinels: Sequence[Sentinel]) -> float | None:
    """Share by which the untuned model's median changed during the search; None as long as there is no sentinel."""
    if not sentinels:
        return None
    medians_s = [untuned.measurement.latency.p50, *(each.latency_s for each in sentinels)]
    return max(medians_s) / min(medians_s) - 1


def fastest(records: Iterable[TrialRecord], value: Callable[[Measurement], float]) -> TrialRecord | None:
    """Of the trials that keep every constraint; None where there is none."""
    feasible = (each for each in records if each.state == "measured")
    return min(feasible, key=lambda each: value(each.measurement), default=None)


def failures_by_reason(records: Iterable[TrialRecord]) -> Counter[str]:
    """How many trials failed for each reason."""
    return Counter(each.outcome.reason.value for each in records if isinstance(each.outcome, Failure))
