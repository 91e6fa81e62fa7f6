"""`Sampler`: the next config of a study: what was planned, then what `EnumSampler` proposes."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from autotune.config import Config
from autotune.measure.measurement import Failure, Reason
from autotune.study.early_stop import ExpectedGain, StopRule
from autotune.study.records import TrialRecord, Tried
from autotune.study.sampler.enum_sampler import EnumSampler, Excluded
from autotune.study.study import Study

MAX_SETUP_FAILURES = 2
"""A config is not tried again after this many failures that it did not cause."""


@dataclass(frozen=True)
class _Exclusions:
    """Whether a config is not tried (any more)."""

    untuned: Config
    """Always tried, unless it was given up."""
    predicates: tuple[Excluded, ...] = ()
    given_up: frozenset[Config] = frozenset()

    def __call__(self, config: Config) -> bool:
        if self.given_up and config in self.given_up:
            return True
        return any(excludes(config) for excludes in self.predicates) and config != self.untuned


class Sampler:
    """Suggests configs of the study's space that no trial has, in view of all trials so far."""

    def __init__(self, study: Study) -> None:
        self._study = study
        manifest = study.manifest
        self._excluded = _Exclusions(manifest.space.untuned())
        self._own = EnumSampler(manifest.space, manifest.workload.seed, self._excluded)

    def exclude(self, *predicates: Excluded) -> None:
        """From now on, suggest no config for which one of these holds, even a queued one; what an earlier call excluded
        is tried again. The untuned model is always tried. A predicate always says the same of a config.
        """
        self._excluded = replace(self._excluded, predicates=predicates)

    def excludes(self, config: Config) -> bool:
        """Whether the config is not to be tried."""
        return self._excluded(config)

    def suggest(self) -> Config | None:
        """The config to try next; None if there is none left."""
        return self._own.choose(self._survey())

    def has_plans(self) -> bool:
        """Whether some planned config was not tried yet."""
        return self._own.next_planned(self._survey()) is not None

    def forecast(self) -> ExpectedGain | None:
        """The gain expected of the next trial; None if there is no forecast (see `EnumSampler.forecast`)."""
        return self._own.forecast(self._survey(), self._rule())

    def _rule(self) -> StopRule:
        """That of the study. A job of so many calls has a length that trials are to shorten."""
        study, rule = self._study, self._study.stop_rule
        if study.portfolio is None or study.manifest.objective.quantity != "total":
            return rule
        tried = [trial for trial in study.tried() if trial.value is not None]
        trials_s = [trial.seconds for trial in tried if trial.seconds is not None]
        if not trials_s:
            return rule
        return rule.for_job(min(trial.value for trial in tried if trial.value is not None), statistics.fmean(trials_s))

    def _survey(self) -> list[Tried]:
        """What was tried, after an update of what is planned and what is excluded."""
        study = self._study
        self._own.planned = self._planned()
        fruitless = Counter(record.config for record in study.records() if _failed_through_setup(record))
        given_up = frozenset(config for config, number in fruitless.items() if number >= MAX_SETUP_FAILURES)
        self._excluded = self._own.excluded = replace(self._excluded, given_up=given_up)
        return study.tried()

    def _planned(self) -> list[Config]:
        """What comes first: with a portfolio the default has its place in it, after what the user gave."""
        space, queue, portfolio = self._study.manifest.space, self._study.queue, self._study.portfolio
        first = [space.untuned(), *self._unrounded()]
        return [*first, *space.anchors(), *queue] if portfolio is None else [*first, *queue, *portfolio.configs]

    def _unrounded(self) -> Iterator[Config]:
        """The twin without rounding of each config that rounds and was refused for what it gave. Not on a CPU, where
        little but the rounding makes such a config faster."""
        manifest = self._study.manifest
        for record in self._study.records() if manifest.workload.device != "cpu" else ():
            is_wrong = isinstance(record.outcome, Failure) and record.outcome.reason is Reason.WRONG_RESULT
            if is_wrong and manifest.space.rounding(record.config).root:
                twin = manifest.space.without_rounding(record.config)
                if manifest.space.forbidden(twin) is None:
                    yield twin


def _failed_through_setup(record: TrialRecord) -> bool:
    """Whether it ended in a failure that says nothing about its config; running out of time is not a failure."""
    return isinstance(record.outcome, Failure) and not record.counts and not record.was_cut_off
