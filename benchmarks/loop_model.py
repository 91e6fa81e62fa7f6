"""How long the plain loop takes to its first good config, from its own records: the same sampler, many runs.

One run of a loop is luck. Its records tell what each config is worth and costs, the first time and again; Optuna's
sampler is run on them with the scatter that a repeated config showed.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from benchmarks import plain_loop, plain_loop_mindspore

SCATTER = 0.018
"""Of the medians of two processes of one config, where no loop repeated one (a run of 69 trials that did)."""
MOST_TRIALS = 400


@dataclass(frozen=True)
class Loop:
    """A framework's plain loop."""

    framework: str
    script: Path
    suggest: Callable[..., dict[str, Any]]


LOOPS = {
    "torch": Loop("PyTorch", Path(plain_loop.__file__), plain_loop.suggest),
    "mindspore": Loop("MindSpore", Path(plain_loop_mindspore.__file__), plain_loop_mindspore.suggest),
}


@dataclass(frozen=True)
class LoopTrial:
    """A trial of the plain loop; `latency_s` None: pruned. `ended_s` counts from the loop's start."""

    config: dict[str, Any]
    latency_s: float | None
    ended_s: float


@dataclass(frozen=True)
class _Known:
    """A config as the loop saw it; `latency_s` None: it always failed."""

    config: Mapping[str, Any]
    latency_s: float | None
    first_s: float
    again_s: float


def latencies_s(loops: Sequence[Sequence[LoopTrial]]) -> dict[str, float]:
    """Seconds a call of each config that worked, by its `key_of`: the median of its trials, since one may be lucky."""
    known = _known(loops).items()
    return {name: each.latency_s for name, each in known if each.latency_s is not None}


def scatter_of(loops: Sequence[Sequence[LoopTrial]]) -> float:
    """By how much the trials of one config differ (standard deviation of the logarithm), from those repeated."""
    logs: dict[str, list[float]] = defaultdict(list)
    for each in chain.from_iterable(loops):
        if each.latency_s is not None:
            logs[key_of(each.config)].append(math.log(each.latency_s))
    num_repeats = sum(len(each) - 1 for each in logs.values())
    if not num_repeats:
        return SCATTER
    squares = sum((one - statistics.fmean(each)) ** 2 for each in logs.values() for one in each)
    return math.sqrt(squares / num_repeats)


def simulated_s(
    loops: Sequence[Sequence[LoopTrial]],
    target_s: float,
    *,
    framework: str = "torch",
    num_runs: int = 60,
    seed: int = 0,
) -> list[float]:
    """Seconds to the first trial of a config within the target, of so many simulated loops, ascending.

    Infinite where a loop found none in `MOST_TRIALS` trials.
    """
    known, scatter = _known(loops), scatter_of(loops)
    half = any(each.config.get("precision") is not None for each in known.values())
    suggest = partial(LOOPS[framework].suggest, half=half)
    return sorted(_one_run(known, target_s, suggest, scatter, seed=seed + number) for number in range(num_runs))


def _one_run(
    known: Mapping[str, _Known],
    target_s: float,
    suggest: Callable[[optuna.Trial], dict[str, Any]],
    scatter: float,
    *,
    seed: int,
) -> float:
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
    generator, seen, clock_s = np.random.default_rng(seed), set[str](), 0.0
    for _ in range(MOST_TRIALS):
        trial = study.ask()
        asked = suggest(trial)
        like = _like(known, asked)
        key = key_of(asked)
        clock_s += like.again_s if key in seen else like.first_s
        seen.add(key)
        if like.latency_s is None:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)
            continue
        if like.latency_s <= target_s:
            return clock_s
        study.tell(trial, like.latency_s * math.exp(generator.normal(0.0, scatter)))
    return math.inf


def _known(loops: Sequence[Sequence[LoopTrial]]) -> dict[str, _Known]:
    seen: dict[str, list[tuple[LoopTrial, float, bool]]] = defaultdict(list)
    for loop in loops:
        before_s, configs = 0.0, set[str]()
        for each in loop:
            key = key_of(each.config)
            seen[key].append((each, each.ended_s - before_s, key in configs))
            configs.add(key)
            before_s = each.ended_s
    return {key: _as_known(trials) for key, trials in seen.items()}


def _as_known(trials: Sequence[tuple[LoopTrial, float, bool]]) -> _Known:
    latencies_s = [each.latency_s for each, _, _ in trials if each.latency_s is not None]
    first_s = statistics.median(seconds for _, seconds, is_repeat in trials if not is_repeat)
    again = [seconds for _, seconds, is_repeat in trials if is_repeat]
    return _Known(
        config=trials[0][0].config,
        latency_s=statistics.median(latencies_s) if latencies_s else None,
        first_s=first_s,
        again_s=statistics.median(again) if again else first_s,
    )


def _like(known: Mapping[str, _Known], config: Mapping[str, Any]) -> _Known:
    """The record of the config, or of the one that differs in the fewest settings."""
    exact = known.get(key_of(config))
    return exact or min(known.values(), key=lambda each: _num_different(each.config, config))


def _num_different(one: Mapping[str, Any], other: Mapping[str, Any]) -> int:
    return sum(one.get(name) != other.get(name) for name in one.keys() | other.keys())


def key_of(config: Mapping[str, Any]) -> str:
    """The same for equal configs."""
    return json.dumps(config, sort_keys=True)
