"""Latency and peak memory at once, replayed on a table: how much of the true front is found after so many trials?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import optuna
from optuna.samplers import BaseSampler, NSGAIISampler, RandomSampler, TPESampler

from autotune.config import Config
from autotune.space.space import SearchSpace
from autotune.study.sampler.sampler import EnumSampler
from benchmarks.table import Row, Table

AFTER = (10, 20, 40)
"""Distinct configs after which the front is looked at."""
Values = tuple[float, float]


@dataclass(frozen=True)
class Front:
    """One sampler on one table: share of the true front's area after each number of configs, a row for each seed."""

    question: str
    search: str
    shares: Sequence[Sequence[float]]

    def cells(self) -> list[str]:
        return [self.question, self.search, *(f"{share:.3f}" for share in np.mean(self.shares, axis=0))]


def samplers(space: SearchSpace) -> dict[str, Callable[[int], BaseSampler]]:
    """Name -> a sampler with a seed. All but the first are Optuna's own, as they come."""
    return {
        "autotune": lambda seed: EnumSampler(space, seed),
        "TPE (Optuna's default)": lambda seed: TPESampler(seed=seed),
        "NSGA-II": lambda seed: NSGAIISampler(seed=seed),
        "Random (Optuna)": lambda seed: RandomSampler(seed=seed),
    }


def replay_front(name: str, table: Table, label: str, num_seeds: int) -> Front:
    """Searches with seeds 0, 1, 2 ... Configs that come again are answered from the table and not counted."""
    make = samplers(table.space)[label]
    return Front(name, label, [_shares(table, make(seed)) for seed in range(num_seeds)])


def area(values: Sequence[Values], worst: Values) -> float:
    """That is at least as good as `worst` and no better than one of `values`, in products of natural logarithms."""
    total, floor = 0.0, float(np.log(worst[1]))
    for first, second in sorted((float(np.log(a)), float(np.log(b))) for a, b in values):
        if second < floor:
            total += (float(np.log(worst[0])) - first) * (floor - second)
            floor = second
    return total


def _shares(table: Table, sampler: BaseSampler) -> list[float]:
    study = optuna.create_study(sampler=sampler, directions=["minimize", "minimize"])
    everything = [values for row in table.rows if (values := _values(row)) is not None]
    worst = (max(first for first, _ in everything), max(second for _, second in everything))
    whole = area(everything, worst)
    found: list[Values] = []
    known: set[Config] = set()
    shares: list[float] = []
    for _ in range(20 * max(AFTER)):
        trial = study.ask()
        config = table.space.walk(trial.suggest_categorical)
        values = _values(table.by_config[config]) if config in table.by_config else None
        trial.set_constraint("ok", 1.0 if values is None else -1.0)
        study.tell(trial, values or worst)
        if config in known:
            continue
        known.add(config)
        found += [values] if values is not None else []
        if len(known) in AFTER:
            shares.append(area(found, worst) / whole)
        if len(shares) == len(AFTER) or len(known) == len(table.rows):
            break
    last = area(found, worst) / whole
    return shares + [last] * (len(AFTER) - len(shares))


def _values(row: Row) -> Values | None:
    if row.latency_s is None or row.peak_memory_bytes is None:
        return None
    return row.latency_s, float(row.peak_memory_bytes)
