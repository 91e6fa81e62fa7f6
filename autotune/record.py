"""What a study keeps: `TrialRecord`s and the `Confirmation`. Plain data; nothing here reads or writes a database."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from autotune.config import Config
from autotune.measurement import Failure, Measurement, Outcome, Record
from autotune.statistics import Speedup, Verdict


class Confirmation(Record):
    """The verdict and what it rests on: latencies of fresh process pairs, in seconds, `(untuned, candidate)`."""

    verdict: Verdict
    candidate: int | None = None
    """Number of the trial whose config was compared with the untuned model."""
    pairs: tuple[tuple[float, float], ...] = ()
    speedup: Speedup | None = None
    compile_warm_s: float | None = None
    """First call minus a steady call in a new process, with the compile caches of an earlier one kept."""
    num_trials: int
    """Trials recorded when it was made: more of them make it outdated."""
    note: str | None = None

    @property
    def latencies_s(self) -> tuple[float, float]:
        """Untuned and tuned seconds a call, as the verdict has them: the untuned median, and that over the speed-up."""
        if self.speedup is None:
            raise ValueError("nothing was compared")
        untuned_s = statistics.median(untuned_s for untuned_s, _ in self.pairs)
        return untuned_s, untuned_s / self.speedup.median


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
