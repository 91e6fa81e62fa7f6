"""`ExpectedGain`: what further trials of a search promise; `StopRule`: when that is too little to go on."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Self

from autotune.schema import Record

FEWEST_TRIALS = 12
WORTH_A_TRIAL = 0.0005
FEWEST_IDLE = 8
"""The rule of a search that nothing was known for."""
WORTH_AFTER_PORTFOLIO = 0.005
IDLE_AFTER_PORTFOLIO, IDLE_IF_THOROUGH = 3, 5
"""Idle trials of a search that began with configs that were best on other models (docs/decisions/0061-portfolio.md)."""
FEWEST_MODELS = 6
"""A portfolio that was chosen on fewer models changes no rule."""
NOTABLE = 0.01
"""Share by which a trial must be better than all before it to count: below it no setting is worth its trouble."""


class StopRule(Record):
    """When further trials cannot pay: all three hold."""

    fewest_trials: int = FEWEST_TRIALS
    """Before so many are recorded nothing is concluded."""
    worth_a_trial: float = WORTH_A_TRIAL
    """Share of the best value that the next trial must be expected to gain."""
    fewest_idle: int = FEWEST_IDLE
    """A forecast may be too sure of itself; so many trials in a row must have borne it out."""

    @classmethod
    def after(cls, num_configs: int, *, is_thorough: bool) -> Self:
        """The rule of a search that begins with a portfolio of so many configs. Where it is to be thorough the idle
        trials are further ones."""
        idle, further = (IDLE_IF_THOROUGH, IDLE_IF_THOROUGH) if is_thorough else (IDLE_AFTER_PORTFOLIO, 1)
        return cls(fewest_trials=num_configs + further, worth_a_trial=WORTH_AFTER_PORTFOLIO, fewest_idle=idle)


class ExpectedGain(Record):
    """What a search with one objective still promises. Rule and figures: docs/decisions/0011-early-stop.md."""

    num_trials: int
    """Recorded so far."""
    num_untried: int | None
    """Configs that are left; None: too many to count."""
    expected_gain: float
    """Share by which the most promising of them would improve the best value, on average over what it may bring."""
    num_idle: int
    """Trials since the last that was notably better than all before it."""
    rule: StopRule = StopRule()

    @property
    def is_negligible(self) -> bool:
        """Further trials cannot pay."""
        rule = self.rule
        is_long_enough = self.num_trials >= rule.fewest_trials and self.num_idle >= rule.fewest_idle
        return is_long_enough and self.expected_gain < rule.worth_a_trial


def count_idle(values: Iterable[float]) -> int:
    """Trials since the last that was notably better than all before it; infinite values are of trials that cannot be
    the best."""
    best, idle = math.inf, 0
    for value in values:
        idle = 0 if value < best - NOTABLE * abs(best) or best == math.inf else idle + 1
        best = min(best, value)
    return idle
