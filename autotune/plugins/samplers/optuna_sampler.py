"""`OptunaSampler`: one of Optuna's samplers, or of another package, in the place of `EnumSampler` (`tune --sampler`).

It learns from the study's trials, and proposes configs, in an Optuna study of its own in memory. So what holds for all
searches holds here as well: a config that was tried is not run again, its proposal is answered with the result that is
known; a config that is forbidden or excluded fails there, and is never run.
"""

from __future__ import annotations

import importlib
import inspect
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial

from autotune.config import Config
from autotune.errors import InputError, did_you_mean, marked, quoted
from autotune.space.space import SearchSpace
from autotune.study.records import Tried
from autotune.study.sampler.enum_sampler import Excluded

MOST_PROPOSALS = 100
"""After so many in a row that cannot be run, `EnumSampler` chooses: few configs may be left."""
_NAMES = {
    name.removesuffix("Sampler").lower(): name
    for name in ("TPESampler", "RandomSampler", "GPSampler", "NSGAIISampler", "NSGAIIISampler")
}
"""Optuna's own samplers that are made with a seed alone and can be asked for one trial at a time."""


def _make(name: str, seed: int) -> BaseSampler:
    module, colon, class_name = name.partition(":")
    if not colon and name not in _NAMES.values():
        raise InputError(
            f"{marked('sampler', name)}: unknown",
            tip=f"{did_you_mean(name.lower(), _NAMES)}take one of {', '.join(_NAMES)}, or PACKAGE.MODULE:CLASS",
        )
    found: Any = getattr(importlib.import_module(module), class_name) if colon else getattr(optuna.samplers, name)
    if not (inspect.isclass(found) and issubclass(found, BaseSampler)):
        raise InputError(f"{marked('sampler', name)}: is no class that derives from optuna.samplers.BaseSampler")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        factory: Any = found
        sampler: BaseSampler = factory(seed=seed)
        return sampler


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Whatever a sampler raises, as one sentence: a missing package, a wrong name, its own mistake."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        missing = f"install {error.name}, or t" if isinstance(error, ModuleNotFoundError) and error.name else "t"
        raise InputError(
            f"{marked('sampler', name)}: {quoted(error)}",
            tip=f"{missing}ake another; it has to be importable here, is made by CLASS(seed=SEED), and is asked for "
            "categorical parameters",
        ) from error


class OptunaSampler:
    """Proposes configs of `space` that no trial has. It begins anew, from the recorded trials, with each process."""

    @staticmethod
    def name_of(given: str) -> str:
        """The stored name, `TPESampler` for `tpe`. Raises InputError if there is none or it cannot be made."""
        name = _NAMES.get(given.removesuffix("Sampler").lower(), given)
        with _explained(name):
            _make(name, seed=0)
        return name

    def __init__(self, name: str, space: SearchSpace, seed: int) -> None:
        self._name = name
        self._space = space
        with _explained(name):
            sampler = _make(name, seed)
            self._study = optuna.create_study(sampler=sampler)
        self._learned: set[int] = set()
        """Numbers of the study's trials."""
        self._proposed: dict[Config, Trial] = {}

    def choose(self, trials: Sequence[Tried], excluded: Excluded) -> Config | None:
        """What to try after these trials; None if it proposes nothing that can be run."""
        with _explained(self._name):
            self._learn(trials)
            tried = {trial.config: trial for trial in trials}
            for _ in range(MOST_PROPOSALS):
                proposal = self._study.ask()
                config = self._space.walk(proposal.suggest_categorical)
                if config not in tried and self._space.forbidden(config) is None and not excluded(config):
                    self._proposed[config] = proposal
                    return config
                self._answer(proposal, tried.get(config))
        return None

    def _learn(self, trials: Sequence[Tried]) -> None:
        for trial in trials:
            if trial.value is None or trial.number in self._learned:
                continue
            self._learned.add(trial.number)
            proposal = self._proposed.pop(trial.config, None)
            if proposal is None:
                self._study.add_trial(self._as_stored(trial))
            else:
                self._answer(proposal, trial)

    def _as_stored(self, trial: Tried) -> FrozenTrial:
        offered: dict[str, BaseDistribution] = {
            knob.name: CategoricalDistribution(knob.values)
            for knob in self._space.knobs
            if knob.name in trial.config.root
        }
        params, constraints = dict(trial.config.root), dict(trial.violations)
        return create_trial(params=params, distributions=offered, value=trial.value, constraints=constraints)

    def _answer(self, proposal: Trial, known: Tried | None) -> None:
        if known is None or known.value is None:
            self._study.tell(proposal, state=TrialState.FAIL)
            return
        for name, violation in known.violations.items():
            proposal.set_constraint(name, violation)
        self._study.tell(proposal, known.value)
