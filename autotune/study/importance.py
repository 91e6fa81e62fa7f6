"""How much each knob matters in a study's own trials: Optuna's PED-ANOVA, with an interval.

PED-ANOVA (Watanabe, Bansal and Hutter, IJCAI 2023) asks by how much the settings of the best trials differ from those
of all trials. Conditional knobs are given a level of their own where they are inactive, so that every trial has every
knob; failed trials have no value and take no part.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import FrozenTrial, create_trial

from autotune.config import Config

BEST_SHARE = 0.25
"""The fastest quarter counts as the best: a tenth, Optuna's usual, is one or two trials of a compile study."""
FEWEST_TRIALS = 8
"""With fewer there is nothing to compare: two of them would be the best quarter."""
NUM_RESAMPLES = 100
_INACTIVE = "(inactive)"


@dataclass(frozen=True)
class Importance:
    """A knob's share of what separates the fastest trials from all; shares add up to 1. 90 % bootstrap interval."""

    knob: str
    share: float
    low: float
    high: float


def importances(configs: Sequence[Config], values: Sequence[float], seed: int = 0) -> list[Importance]:
    """The most important knob first; empty with fewer than `FEWEST_TRIALS` trials or where no knob varies.

    `values` are minimised, one for each config.
    """
    trials = _flattened(configs, values)
    if len(configs) < FEWEST_TRIALS or not trials:
        return []
    shares = _shares(trials)
    chance = random.Random(seed)
    resampled = [_shares(chance.choices(trials, k=len(trials))) for _ in range(NUM_RESAMPLES)]
    found = []
    for knob, share in sorted(shares.items(), key=lambda item: -item[1]):
        low, high = np.quantile([each.get(knob, 0.0) for each in resampled], [0.05, 0.95])
        found.append(Importance(knob, share, float(low), float(high)))
    return found


def _flattened(configs: Sequence[Config], values: Sequence[float]) -> list[FrozenTrial]:
    """A trial for each config, with every knob that varies."""
    levels = {knob: _levels(configs, knob) for knob in dict.fromkeys(name for each in configs for name in each.knobs())}
    varying = {knob: CategoricalDistribution(found) for knob, found in levels.items() if len(found) > 1}
    if not varying:
        return []
    return [
        create_trial(
            params={knob: _level(config, knob) for knob in varying}, distributions=dict(varying), value=float(value)
        )
        for config, value in zip(configs, values, strict=True)
    ]


def _levels(configs: Sequence[Config], knob: str) -> list[str]:
    return list(dict.fromkeys(_level(config, knob) for config in configs))


def _level(config: Config, knob: str) -> str:
    """As text: Optuna takes 1 and True for one choice."""
    return repr(config[knob]) if knob in config.root else _INACTIVE


def _shares(trials: Sequence[FrozenTrial]) -> dict[str, float]:
    study = optuna.create_study()
    study.add_trials(trials)
    evaluator = PedAnovaImportanceEvaluator(target_quantile=BEST_SHARE, evaluate_on_local=False)
    with warnings.catch_warnings():
        # Where all trials are equally fast it says so and gives every knob the same share, which is right.
        warnings.filterwarnings("ignore", message="Target and region quantiles select the same set")
        shares = get_param_importances(study, evaluator=evaluator, normalize=True)
    return {knob: float(share) for knob, share in shares.items() if np.isfinite(share)}
