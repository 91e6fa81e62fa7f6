"""`EnumSampler`: the next config to try, chosen among those of the space that were not tried yet.

As shipped, Optuna's samplers propose configs that they know already in half of their asks on such spaces
(docs/decisions/0010-sampler.md). This one never repeats a config: first comes what was planned, then configs that
differ as much as they can, then whatever promises most (`forecast`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, TrialState

from autotune.config import Config
from autotune.space.space import SearchSpace
from autotune.study.sampler.acquisition import Forecast, Forecaster, Observations
from autotune.study.sampler.candidates import Candidates
from autotune.study.sampler.early_stop import ExpectedGain, count_idle
from autotune.study.sampler.gaussian_process import Array, Encoding

OK = "ok"
"""The constraint that a failed trial violates; the others are known of measured trials only."""
TAKEN = (TrialState.COMPLETE, TrialState.RUNNING)
"""States of trials whose config is not tried again; one that was given up leaves its config free."""
NUM_STARTS = 4
"""Configs that are measured before there is a forecast: the untuned, the default, and others far from these."""
NUM_BEST = 5
"""Configs whose neighbours are looked at in a space too large to list."""


@dataclass(frozen=True)
class _Seen:
    """A config that is tried, or was."""

    config: Config
    point: Array = field(compare=False)
    """Follows from the config."""
    values: tuple[float, ...] | None
    """One for each objective; None as long as the trial runs, and where its values are distrusted."""
    violations: dict[str, float]
    seconds: float | None = field(compare=False)
    """That the trial took; follows from the trial."""

    @property
    def failed(self) -> bool:
        return self.violations.get(OK, 0.0) > 0

    @property
    def feasible(self) -> bool:
        return self.values is not None and all(each <= 0 for each in self.violations.values())


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
        return {each.config for each in self.seen}


class TrialFacts:
    """What is known of a finished trial beside its values: here, nothing."""

    def is_distrusted(self, trial: FrozenTrial) -> bool:
        """Its values are not to be learned from: it stays as unknown as one that runs."""
        return False

    def seconds(self, trial: FrozenTrial) -> float | None:
        """How long it took; None: that is unknown."""
        return None


class EnumSampler(BaseSampler):
    """Proposes configs of `space` that no trial of the study has: the same ones for the same seed and trials.

    `excluded` says which configs are not to be tried; where that changes, it is another function. `facts` is asked once
    about each finished trial.
    """

    def __init__(
        self,
        space: SearchSpace,
        seed: int,
        excluded: Excluded = lambda _: False,
        facts: TrialFacts | None = None,
    ) -> None:
        self.planned: Sequence[Config] = (space.untuned(), space.default())
        """Tried before all others, in this order."""
        self.next: Config | None = None
        """What the next trial gets, whatever there is to be said for others; None: this sampler chooses."""
        self.excluded = excluded
        self._space = space
        self._seed = seed
        self._facts = facts or TrialFacts()
        self._candidates = Candidates(space)
        self._encoding = Encoding(space)
        self._forecaster = Forecaster(self._encoding)
        self._choices = {knob.name: CategoricalDistribution(knob.values) for knob in space.knobs}
        self._finished: dict[int, _Seen] = {}
        self._last = _Situation([], excluded)

    @property
    def num_configs(self) -> int | None:
        """Size of the space; None if it is too large to be listed."""
        return None if self._candidates.listed is None else len(self._candidates.listed)

    def choose(self, trials: Iterable[FrozenTrial]) -> Config | None:
        """What to try after these trials of a study; None if nothing is left."""
        situation = self._situation(trials)
        return next(self._still_planned(situation), None) or self._most_promising(situation)

    def next_planned(self, trials: Iterable[FrozenTrial]) -> Config | None:
        """What is to be tried before anything is chosen; None if nothing is left of it."""
        return next(self._still_planned(self._situation(trials)), None)

    def forecast(self, trials: Iterable[FrozenTrial]) -> ExpectedGain | None:
        """What the next trial promises. None where no forecast chooses it: at the start, as long as nothing is feasible
        or something is planned, at the end, and with several objectives, where every config may add to the front.
        """
        situation = self._situation(trials)
        finished = [each for each in situation.seen if each.values is not None]
        has_one_objective = all(len(each.values or ()) == 1 for each in finished)
        if not has_one_objective or not any(each.feasible for each in finished):
            return None
        unseen = self._unseen(situation)
        if not unseen.configs or any(True for _ in self._still_planned(situation)):
            return None
        return ExpectedGain(
            num_trials=len(finished),
            num_untried=None if self.num_configs is None else len(unseen.configs),
            expected_gain=float(np.exp(self._forecast(situation).log_expected_gain.max())),
            num_idle=count_idle(each.values[0] if each.values and each.feasible else math.inf for each in finished),
        )

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return dict(self._choices)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The settings of one config, active knobs only. Raises ValueError if none is left."""
        others = (each for each in study.get_trials(deepcopy=False) if each.number != trial.number)
        config = self.next or self.choose(others)
        self.next = None
        if config is None:
            raise ValueError("every config of the space has been tried")
        return dict(config.root)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise ValueError(f"{param_name!r} is no knob of this config")

    def _situation(self, trials: Iterable[FrozenTrial]) -> _Situation:
        """The one of the last call if nothing has changed: most choices follow upon the forecast about them."""
        seen = [self._read(trial) for trial in trials if trial.state in TAKEN]
        if seen != self._last.seen or self.excluded != self._last.excluded:
            self._last = _Situation(seen, self.excluded)
        return self._last

    def _still_planned(self, situation: _Situation) -> Iterator[Config]:
        return (each for each in self.planned if each not in situation.taken and not situation.excluded(each))

    def _read(self, trial: FrozenTrial) -> _Seen:
        """A finished trial never changes: each is read once."""
        if trial.number in self._finished:
            return self._finished[trial.number]
        config = Config(trial.params)
        is_finished = trial.state is TrialState.COMPLETE
        values = tuple(trial.values) if is_finished and not self._facts.is_distrusted(trial) else None
        seconds = self._facts.seconds(trial) if is_finished else None
        seen = _Seen(config, self._encoding.points([config])[0], values, trial.constraints, seconds)
        if is_finished:
            self._finished[trial.number] = seen
        return seen

    def _unseen(self, situation: _Situation) -> _Unseen:
        if situation.unseen is None:
            every, taken, excluded = self._listed or self._drawn(situation.seen), situation.taken, situation.excluded
            free = [n for n, each in enumerate(every.configs) if each not in taken and not excluded(each)]
            situation.unseen = _Unseen([every.configs[n] for n in free], every.points[free])
        return situation.unseen

    @cached_property
    def _listed(self) -> _Unseen | None:
        configs = self._candidates.listed
        return None if configs is None else _Unseen(configs, self._encoding.points(configs))

    def _drawn(self, seen: Sequence[_Seen]) -> _Unseen:
        best = sorted((each for each in seen if each.feasible), key=lambda each: each.values or ())[:NUM_BEST]
        configs = self._candidates.draw(self._seed + len(seen), near=[each.config for each in best])
        return _Unseen(configs, self._encoding.points(configs))

    def _most_promising(self, situation: _Situation) -> Config | None:
        unseen = self._unseen(situation)
        if not unseen.configs:
            return None
        if sum(each.values is not None and not each.failed for each in situation.seen) < NUM_STARTS:
            scores = self._distances(situation.seen, unseen)
        else:
            scores = self._forecast(situation).score
        return unseen.configs[int(scores.argmax())]

    def _distances(self, seen: Sequence[_Seen], unseen: _Unseen) -> Array:
        """Number of knobs in which a config differs from the nearest one seen; ties are broken by the seed."""
        steps = np.array([((unseen.points - each.point) ** 2).sum(axis=1) for each in seen])
        ties = self._generator(seen).random(len(unseen.configs))
        return np.asarray(steps.min(axis=0, initial=np.inf) + 0.1 * ties)

    def _forecast(self, situation: _Situation) -> Forecast:
        if situation.forecast is None:
            seen = situation.seen
            observed = self._observations([each for each in seen if each.values is not None], seen)
            generator = self._generator(seen)
            weights = generator.dirichlet(np.ones(observed.values.shape[1]))
            points = self._unseen(situation).points
            situation.forecast = self._forecaster.forecast(observed, points, weights, generator)
        return situation.forecast

    def _observations(self, finished: Sequence[_Seen], seen: Sequence[_Seen]) -> Observations:
        names = sorted({name for each in finished for name in each.violations} - {OK})
        violations = [[each.violations.get(name, 0.0) for name in names] for each in finished]
        return Observations(
            points=self._stacked(finished),
            values=np.array([each.values for each in finished]),
            failed=np.array([each.failed for each in finished]),
            violations=np.array(violations).reshape(len(finished), len(names)),
            running=self._stacked([each for each in seen if each.values is None]),
            seconds=np.array([math.nan if each.seconds is None else each.seconds for each in finished]),
        )

    def _stacked(self, seen: Sequence[_Seen]) -> Array:
        return np.array([each.point for each in seen]).reshape(len(seen), self._encoding.num_features)

    def _generator(self, seen: Sequence[_Seen]) -> np.random.Generator:
        return np.random.default_rng([self._seed, len(seen)])
