"""`ExpectedGain`: what further trials of a search promise; `StopRule`: when that is too little to go on. Figures:
docs/decisions/0011-early-stop.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Self

from autotune.schema import Record

FEWEST_TRIALS = 12
WORTH_A_TRIAL = 0.0005
FEWEST_IDLE = 8
"""The rule of a search that nothing was known for."""
IDLE_AFTER_PORTFOLIO, IDLE_IF_THOROUGH = 3, 5
"""Idle trials, and further ones, of a search that began with configs that were best on other models."""
WORTH_IF_THOROUGH = 0.005
SHARE_THAT_COMES_TRUE = 0.1
"""Part of a gain that is forecast after a portfolio: the forecast is the largest of hundreds of uncertain ones."""
FEWEST_MODELS = 6
"""A portfolio that was chosen on fewer models changes no rule."""
NOTABLE = 0.01
"""Share by which a trial must be better than all before it to count: below it no setting is worth its trouble."""


class StopRule(Record):
    """When further trials are not expected to pay: all of these hold."""

    fewest_trials: int = FEWEST_TRIALS
    """Before so many are recorded nothing is concluded."""
    worth_a_trial: float | None = WORTH_A_TRIAL
    """Share of the best value that the next trial must be expected to gain; None: no forecast is asked."""
    fewest_idle: int = FEWEST_IDLE
    """So many trials in a row gained nothing notable: a forecast may be too sure of itself."""

    @classmethod
    def after(cls, num_configs: int, *, is_thorough: bool) -> Self:
        """The rule of a search that begins with a portfolio of so many configs: a count of further trials. Where it is
        to be thorough they are more, and a forecast has to agree."""
        num, worth = (IDLE_IF_THOROUGH, WORTH_IF_THOROUGH) if is_thorough else (IDLE_AFTER_PORTFOLIO, None)
        return cls(fewest_trials=num_configs + num, worth_a_trial=worth, fewest_idle=num)

    def for_job(self, total_s: float, trial_s: float) -> Self:
        """The rule where a job of `total_s` seconds is made shorter by trials of `trial_s`: a trial pays as long as the
        part of the forecast that comes true is more than it takes."""
        worth = trial_s / (SHARE_THAT_COMES_TRUE * total_s)
        return self.model_copy(update={"worth_a_trial": max(WORTH_A_TRIAL, worth)})


WITHOUT_PORTFOLIO = StopRule()


class ExpectedGain(Record):
    """What a search with one objective still promises."""

    num_trials: int
    """Recorded so far."""
    num_untried: int | None
    """Configs that are left; None: too many to count."""
    expected_gain: float | None
    """Share by which the most promising of them would improve the best value, on average over what it may bring; None:
    the rule does not ask."""
    num_idle: int
    """Trials since the last that was notably better than all before it."""
    rule: StopRule = WITHOUT_PORTFOLIO

    @property
    def is_negligible(self) -> bool:
        """Further trials are not expected to pay."""
        rule = self.rule
        if self.num_trials < rule.fewest_trials or self.num_idle < rule.fewest_idle:
            return False
        return rule.worth_a_trial is None or (self.expected_gain or 0.0) < rule.worth_a_trial


def count_idle(values: Iterable[float]) -> int:
    """Trials since the last that was notably better than all before it; infinite values are of trials that cannot be
    the best."""
    best, idle = math.inf, 0
    for value in values:
        idle = 0 if value < best - NOTABLE * abs(best) or best == math.inf else idle + 1
        best = min(best, value)
    return idle
