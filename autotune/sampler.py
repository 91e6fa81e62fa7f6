"""How configs reach Optuna: one that we planned ourselves, or in a space too large to list one of TPE's.

As shipped, Optuna's samplers propose configs that they know already in half of their asks on such spaces; so up to
`study.ENUMERATION_LIMIT` configs the study plans an untried one and this sampler merely hands it over.
"""

from __future__ import annotations

from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import FrozenTrial

from autotune.config import Config
from autotune.space import SearchSpace


class PlannedSampler(BaseSampler):
    """Gives Optuna `planned`, or lets TPE choose while it is None."""

    def __init__(self, space: SearchSpace, seed: int) -> None:
        self.planned: Config | None = None
        self._choices = {knob.name: CategoricalDistribution(knob.values) for knob in space.knobs}
        self._otherwise = TPESampler(seed=seed)

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        if self.planned is None:
            return self._otherwise.infer_relative_search_space(study, trial)
        return {name: self._choices[name] for name in self.planned.knobs()}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        if self.planned is None:
            return self._otherwise.sample_relative(study, trial, search_space)
        return dict(self.planned.root)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._otherwise.sample_independent(study, trial, param_name, param_distribution)
