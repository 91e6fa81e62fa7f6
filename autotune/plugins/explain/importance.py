"""How much each knob matters in a study's own trials: PED-ANOVA, with an interval.

PED-ANOVA (Watanabe, Bansal and Hutter, IJCAI 2023) asks by how much the settings of the best trials differ from those
of all trials. Conditional knobs are given a level of their own where they are inactive, so that every trial has every
knob; failed trials have no value and take no part. The shares are those of Optuna's evaluator, which takes a minute for
as many resamples of 500 trials; a test holds the two against each other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from autotune.config import Config

BEST_SHARE = 0.25
"""The fastest quarter counts as the best: a tenth, Optuna's usual, is one or two trials of a compile study."""
FEWEST_TRIALS = 8
"""With fewer there is nothing to compare: two of them would be the best quarter."""
NUM_RESAMPLES = 100
_INACTIVE = "(inactive)"

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.intp]


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
    levels = _varying_levels(configs)
    if len(configs) < FEWEST_TRIALS or not levels:
        return []
    table, minimised = np.array(list(levels.values())).T, np.array(values, dtype=float)
    num_levels = [int(column.max()) + 1 for column in table.T]
    chance, every = random.Random(seed), range(len(configs))
    resamples = [chance.choices(every, k=len(every)) for _ in range(NUM_RESAMPLES)]
    shares = _shares(table, num_levels, minimised)
    resampled = [_shares(table[rows], num_levels, minimised[rows]) for rows in resamples]
    lows, highs = np.quantile(resampled, [0.05, 0.95], axis=0)
    found = [
        Importance(knob, float(share), float(low), float(high))
        for knob, share, low, high in zip(levels, shares, lows, highs, strict=True)
    ]
    return sorted(found, key=lambda importance: -importance.share)


def _varying_levels(configs: Sequence[Config]) -> dict[str, list[int]]:
    """Knob that varies -> the number of its level in each config."""
    levels = {}
    for knob in dict.fromkeys(name for config in configs for name in config.knobs()):
        texts = [_level(config, knob) for config in configs]
        numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        if len(numbers) > 1:
            levels[knob] = [numbers[text] for text in texts]
    return levels


def _level(config: Config, knob: str) -> str:
    """As text, which keeps 1 and True apart."""
    return repr(config[knob]) if knob in config.root else _INACTIVE


def _shares(table: Counts, num_levels: Sequence[int], values: Array) -> Array:
    """Share of each knob, a column of `table` with the trials' levels. Trials without a finite value take no part."""
    is_finite = np.isfinite(values)
    table, values = table[is_finite], values[is_finite]
    distances = np.zeros(len(num_levels))
    if len(values) > 1:
        last = math.ceil(BEST_SHARE * len(values)) - 1
        best = table[values <= np.partition(values, last)[last]]
        counts = (np.bincount(column, minlength=number) for column, number in zip(best.T, num_levels, strict=True))
        distances = np.array([_distance(count) for count in counts])
    total = distances.sum()
    return np.full(len(num_levels), 1 / len(num_levels)) if total == 0 else distances / total


def _distance(counts: Counts) -> float:
    """Pearson divergence of the levels of the best trials from all levels alike.

    A level's density is that of a Parzen estimator with a kernel for each level seen, weighed by its count, and one
    that is alike for all levels, which counts as one trial.
    """
    number, total = len(counts), counts.sum() + 1
    spread = 1 / (np.count_nonzero(counts) + 1)
    density = (counts + (total - 1) * spread) / (1 + number * spread) / total + 1 / number / total
    return float(((density * number - 1) ** 2).mean())
