"""`EnumSampler`: the next config to try, chosen among those of the space that were not tried yet.

As shipped, Optuna's samplers propose configs that they know already in half of their asks on such spaces
(docs/decisions/0010-sampler.md). This one never repeats a config: first comes what was planned, then configs that
differ as much as they can, then whatever promises most (`forecast`).
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from autotune.config import Config, Scalar
from autotune.space.space import SearchSpace
from autotune.study.early_stop import WITHOUT_PORTFOLIO, ExpectedGain, StopRule, count_idle
from autotune.study.records import OK, Tried
from autotune.study.sampler.acquisition import Forecast, Forecaster, Observations
from autotune.study.sampler.gaussian_process import Array, Encoding

NUM_STARTS = 4
"""Configs that are measured before there is a forecast: the untuned, the default, and others far from these."""
NUM_DRAWN = 1500
"""Configs drawn at random for one choice from a space too large to list."""
NUM_BEST = 5
"""Configs whose neighbours are looked at there."""


@dataclass(frozen=True)
class _Seen:
    """A config that is tried, or was."""

    tried: Tried
    point: Array = field(compare=False)
    """Follows from the config."""

    @property
    def config(self) -> Config:
        return self.tried.config

    @property
    def value(self) -> float | None:
        """None as long as the trial runs, and where its value is distrusted: it stays as unknown as one that runs."""
        return None if self.tried.is_distrusted else self.tried.value

    @property
    def failed(self) -> bool:
        return self.tried.violations.get(OK, 0.0) > 0

    @property
    def feasible(self) -> bool:
        return self.value is not None and all(missed <= 0 for missed in self.tried.violations.values())


@dataclass(frozen=True)
class _Unseen:
    """Configs that may be tried next, a row of `points` each."""

    configs: Sequence[Config]
    points: Array


Excluded = Callable[[Config], bool]


@dataclass
class _Situation:
    """What a choice rests on, and what was derived from it so far."""

    seen: Sequence[_Seen]
    excluded: Excluded
    unseen: _Unseen | None = None
    forecast: Forecast | None = None

    @cached_property
    def taken(self) -> set[Config]:
        return {seen.config for seen in self.seen}


class EnumSampler:
    """Proposes configs of `space` that were not tried: the same ones for the same seed and trials, whatever this object
    was asked before. `excluded` says which configs are not to be tried; where that changes, it is another function.
    """

    def __init__(self, space: SearchSpace, seed: int, excluded: Excluded = lambda _: False) -> None:
        self.planned: Sequence[Config] = (space.untuned(), space.default())
        """Tried before all others, in this order."""
        self.excluded = excluded
        self._space = space
        self._seed = seed
        self._encoding = Encoding(space)
        self._forecaster = Forecaster(self._encoding)
        self._finished: dict[int, _Seen] = {}
        self._last = _Situation([], excluded)

    def choose(self, trials: Iterable[Tried]) -> Config | None:
        """What to try after these trials; None if nothing is left."""
        situation = self._situation(trials)
        return next(self._still_planned(situation), None) or self._most_promising(situation)

    def next_planned(self, trials: Iterable[Tried]) -> Config | None:
        """What is to be tried before anything is chosen; None if nothing is left of it."""
        return next(self._still_planned(self._situation(trials)), None)

    def forecast(self, trials: Iterable[Tried], rule: StopRule = WITHOUT_PORTFOLIO) -> ExpectedGain | None:
        """What the next trial promises, as far as the rule asks. None where no forecast chooses it: at the start, as
        long as nothing is feasible or something is planned, and at the end.
        """
        situation = self._situation(trials)
        finished = [trial for trial in situation.seen if trial.value is not None]
        if not any(trial.feasible for trial in finished):
            return None
        unseen = self._unseen(situation)
        if not unseen.configs or any(True for _ in self._still_planned(situation)):
            return None
        is_asked = rule.worth_a_trial is not None
        return ExpectedGain(
            num_trials=len(finished),
            num_untried=None if self._space.listed is None else len(unseen.configs),
            expected_gain=float(np.exp(self._forecast(situation).log_expected_gain.max())) if is_asked else None,
            num_idle=count_idle(
                trial.value if trial.value is not None and trial.feasible else math.inf for trial in finished
            ),
            rule=rule,
        )

    def _situation(self, trials: Iterable[Tried]) -> _Situation:
        """The one of the last call if nothing has changed: most choices follow upon the forecast about them."""
        seen = [self._read(trial) for trial in trials]
        if seen != self._last.seen or self.excluded != self._last.excluded:
            self._last = _Situation(seen, self.excluded)
        return self._last

    def _still_planned(self, situation: _Situation) -> Iterator[Config]:
        return (config for config in self.planned if config not in situation.taken and not situation.excluded(config))

    def _read(self, trial: Tried) -> _Seen:
        """A finished trial never changes: each is read once."""
        if trial.number in self._finished:
            return self._finished[trial.number]
        seen = _Seen(trial, self._encoding.points([trial.config])[0])
        if trial.value is not None:
            self._finished[trial.number] = seen
        return seen

    def _unseen(self, situation: _Situation) -> _Unseen:
        if situation.unseen is None:
            every, taken, excluded = self._listed or self._drawn(situation.seen), situation.taken, situation.excluded
            free = [n for n, config in enumerate(every.configs) if config not in taken and not excluded(config)]
            situation.unseen = _Unseen([every.configs[n] for n in free], every.points[free])
        return situation.unseen

    @cached_property
    def _listed(self) -> _Unseen | None:
        configs = self._space.listed
        return None if configs is None else _Unseen(configs, self._encoding.points(configs))

    def _drawn(self, seen: Sequence[_Seen]) -> _Unseen:
        best = sorted((trial for trial in seen if trial.feasible), key=lambda trial: trial.value or 0.0)[:NUM_BEST]
        configs = draw(self._space, self._seed + len(seen), near=[trial.config for trial in best])
        return _Unseen(configs, self._encoding.points(configs))

    def _most_promising(self, situation: _Situation) -> Config | None:
        unseen = self._unseen(situation)
        if not unseen.configs:
            return None
        if sum(trial.value is not None and not trial.failed for trial in situation.seen) < NUM_STARTS:
            scores = self._distances(situation.seen, unseen)
        else:
            scores = self._forecast(situation).score
        return unseen.configs[int(scores.argmax())]

    def _distances(self, seen: Sequence[_Seen], unseen: _Unseen) -> Array:
        """Number of knobs in which a config differs from the nearest one seen; ties are broken by the seed."""
        steps = np.array([((unseen.points - trial.point) ** 2).sum(axis=1) for trial in seen])
        ties = np.random.default_rng([self._seed, len(seen)]).random(len(unseen.configs))
        return np.asarray(steps.min(axis=0, initial=np.inf) + 0.1 * ties)

    def _forecast(self, situation: _Situation) -> Forecast:
        if situation.forecast is None:
            seen = situation.seen
            observed = self._observations([trial for trial in seen if trial.value is not None], seen)
            situation.forecast = self._forecaster.forecast(observed, self._unseen(situation).points)
        return situation.forecast

    def _observations(self, finished: Sequence[_Seen], seen: Sequence[_Seen]) -> Observations:
        names = sorted({name for trial in finished for name in trial.tried.violations} - {OK})
        violations = [[trial.tried.violations.get(name, 0.0) for name in names] for trial in finished]
        return Observations(
            points=self._stacked(finished),
            values=np.array([trial.value for trial in finished]),
            failed=np.array([trial.failed for trial in finished]),
            violations=np.array(violations).reshape(len(finished), len(names)),
            running=self._stacked([trial for trial in seen if trial.value is None]),
            seconds=np.array([math.nan if trial.tried.seconds is None else trial.tried.seconds for trial in finished]),
        )

    def _stacked(self, seen: Sequence[_Seen]) -> Array:
        return np.array([trial.point for trial in seen]).reshape(len(seen), self._encoding.num_features)


def draw(space: SearchSpace, seed: int, near: Sequence[Config]) -> list[Config]:
    """Random configs, and all that differ in one setting from one of `near`; each once."""
    generator = random.Random(seed)
    drawn = (space.walk(lambda _, values: generator.choice(values)) for _ in range(NUM_DRAWN))
    neighbours = itertools.chain.from_iterable(_neighbours(space, config) for config in near)
    return [config for config in dict.fromkeys([*neighbours, *drawn]) if space.forbidden(config) is None]


def _neighbours(space: SearchSpace, config: Config) -> Iterator[Config]:
    """Configs that differ in one setting. Knobs that become active through it have their defaults."""
    defaults = {knob.name: knob.default for knob in space.knobs}
    for knob in space.knobs:
        for value in knob.values if knob.name in config.root else ():
            yield _walked(space, {**defaults, **config.root, knob.name: value})


def _walked(space: SearchSpace, settings: dict[str, Scalar]) -> Config:
    return space.walk(lambda name, _: settings[name])
