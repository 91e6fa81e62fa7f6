"""The records of `wall_time.py`, all together: how long the product and the plain loop took, and what that says.

One run of a loop is luck. Its records tell what each config is worth and costs, the first time and again; Optuna's
sampler is run on them with the scatter that a repeated config showed.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from typing import Any, Literal

import numpy as np
import optuna

from benchmarks import plain_loop
from benchmarks.evidence import Goal, percent, table

WITHIN = 0.02
ALSO_WITHIN = (0.03, 0.05)
"""How far the loop's time depends on the border: its records know a config to a percent or two."""
GOAL_SHARES = {4: 0.45, 1: 0.9}
"""Cores, at least -> the product's time over the loop's."""
GOAL_PROVEN = 0.5
"""The time to a proven answer within `PROVEN_WITHIN` of the last one, over the loop's."""
PROVEN_WITHIN = 0.05
GOAL_ORACLE = 2.5
ORACLE_BLOCKS = 2
SIMULATED_LOOPS = 60
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)

SCATTER = 0.018
"""Of the medians of two processes of one config, where no loop repeated one (a run of 69 trials that did)."""
MOST_TRIALS = 400
"""Of a simulated loop."""


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
    num_runs: int = 60,
    seed: int = 0,
) -> list[float]:
    """Seconds to the first trial of a config within the target, of so many simulated loops, ascending.

    Infinite where a loop found none in `MOST_TRIALS` trials.
    """
    known, scatter = _known(loops), scatter_of(loops)
    half = any(each.config.get("precision") is not None for each in known.values())
    suggest = partial(plain_loop.suggest, half=half)
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


@dataclass(frozen=True)
class ToolRun:
    """A study of the product. `over_loop`: seconds a call of the loops' best config over its own, side by side."""

    kind: Literal["tool"]
    seed: int
    seconds: float
    verdict: str | None
    config: dict[str, Any] | None
    num_trials: int
    trials_s: float
    """Of the measured trials in all."""
    oracle_s: float | None
    """What somebody who knows the answer would need: the untuned trial, the winner's, and two blocks of both."""
    over_loop: float | None
    num_cores: int
    spared_s: float = 0.0
    """Of compiling, what the trials found done: imports, and kernels of earlier ones (`compile_spared_s`)."""
    proven_s: float | None = None
    """When an answer was proven first that is within 5 % of the last one; None: none was proven before the end."""

    @property
    def found(self) -> bool:
        """Its answer is no more than 2 % slower than the loops' best config, side by side."""
        return self.over_loop is not None and self.over_loop >= 1 / (1 + WITHIN)


@dataclass(frozen=True)
class LoopRun:
    """A run of the plain loop."""

    kind: Literal["loop"]
    trials: list[LoopTrial]
    seconds: float


Run = ToolRun | LoopRun


def best_of(loops: Sequence[LoopRun]) -> LoopTrial | None:
    """The fastest trial of all loops: whoever runs one takes its config."""
    worked = [trial for loop in loops for trial in loop.trials if trial.latency_s is not None]
    return min(worked, key=lambda trial: trial.latency_s or 0.0, default=None)


@dataclass(frozen=True)
class Race:
    """All pieces together."""

    tools: list[ToolRun]
    loops: list[LoopRun]

    @classmethod
    def of(cls, records: Sequence[Run]) -> Race:
        return cls(
            tools=[record for record in records if isinstance(record, ToolRun)],
            loops=[record for record in records if isinstance(record, LoopRun)],
        )

    @cached_property
    def config_s(self) -> dict[str, float]:
        """Seconds a call of each config, by its key, as the loops measured it in all their trials."""
        return latencies_s([loop.trials for loop in self.loops])

    def target_s(self, within: float = WITHIN) -> float:
        """Seconds a call that are so near to the best known config, as the loops measure it."""
        best = best_of(self.loops)
        better = max((study.over_loop or 1.0 for study in self.tools), default=1.0)
        return 0.0 if best is None else (1 + within) * self.config_s[key_of(best.config)] / max(better, 1.0)

    def loops_found_s(self) -> list[float | None]:
        """When each loop had its first config so fast; None: not in its time."""
        target_s = self.target_s()

        def is_good(trial: LoopTrial) -> bool:
            return trial.latency_s is not None and self.config_s[key_of(trial.config)] <= target_s

        return [next((t.ended_s for t in loop.trials if is_good(t)), None) for loop in self.loops]

    def simulated_s(self, within: float = WITHIN) -> list[float]:
        """When loops like these would have had a config so near to the best, ascending."""
        trials, target_s = [loop.trials for loop in self.loops], self.target_s(within)
        return simulated_s(trials, target_s, num_runs=SIMULATED_LOOPS)

    @property
    def scatter(self) -> float:
        """Of the loops' trials of one config."""
        return scatter_of([loop.trials for loop in self.loops])

    @property
    def within(self) -> float:
        """The border of the goal: one below the scatter would ask for a trial's luck, not for a config."""
        borders = (WITHIN, *ALSO_WITHIN)
        return next((border for border in borders if border >= self.scatter), borders[-1])

    @property
    def tool_s(self) -> float:
        """The median over the seeds."""
        return statistics.median(study.seconds for study in self.tools)

    @property
    def oracle_s(self) -> float | None:
        known = [study.oracle_s for study in self.tools if study.oracle_s is not None]
        return statistics.median(known) if known else None


def judge(records: Sequence[Run]) -> list[Goal]:
    """The product's median against the loop's, and against the oracle."""
    race = Race.of(records)
    if not race.tools or not race.loops:
        return []
    goal = next(share for cores, share in GOAL_SHARES.items() if race.tools[0].num_cores >= cores)
    found = sum(study.found for study in race.tools)
    loop_s = statistics.median(race.simulated_s(race.within))
    share = race.tool_s / loop_s  # 0 where most loops never have one.
    goals = [
        Goal(
            f"the confirmed answer in at most {goal} of the loop's median time to its first config within "
            f"{percent(race.within)}",
            f"{share:.2f}: {race.tool_s:.0f} s against {loop_s:.0f} s; {found} of {len(race.tools)} answers are as "
            "fast as the loops' best config, to within 2 %",
            met=share <= goal and found == len(race.tools),
        )
    ]
    proven = [study.proven_s or study.seconds for study in race.tools]
    share = statistics.median(proven) / loop_s
    words = f"{share:.2f}: {statistics.median(proven):.0f} s against {loop_s:.0f} s"
    text = f"an answer within {percent(PROVEN_WITHIN)} of the last one proven in at most {GOAL_PROVEN} of that time"
    goals.append(Goal(text, words, met=share <= GOAL_PROVEN))
    if race.oracle_s is not None:
        times = race.tool_s / race.oracle_s
        words = f"{times:.1f} times {race.oracle_s:.0f} s"
        goals.append(Goal(f"within {GOAL_ORACLE} times the oracle", words, met=times <= GOAL_ORACLE))
    return goals


def section(records: Sequence[Run]) -> str:
    """Each side's times."""
    race = Race.of(records)
    about = (
        f"`tune --process-settings` on the CPU with PyTorch, otherwise with default settings, to its verdict, "
        f"against `benchmarks/plain_loop.py`: Optuna's default sampler over the same knobs, a process for each "
        f"trial. The loop counts until its first trial within {percent(race.within)} of the best config that any run "
        f"has found; it proves nothing. *Simulated*: {SIMULATED_LOOPS} loops on the records of the real ones, whose "
        f"trials of one config scatter by {percent(race.scatter)}. *Oracle*: the winner's cold trial, the untuned one "
        f"and {ORACLE_BLOCKS} blocks."
    )
    return f"{about}\n\n{_times(race)}"


def _times(race: Race) -> str:
    rows = []
    if race.tools:
        words = ", ".join(filter(None, [_verdicts(race), _agreement(race)]))
        rows.append(_row("autotune, all seeds", [study.seconds for study in race.tools], words))
    for number, (loop, found_s) in enumerate(zip(race.loops, race.loops_found_s(), strict=True)):
        found = "not found" if found_s is None else f"found after {found_s:.0f} s"
        rows.append(_row(f"plain loop {number}", [loop.seconds], f"{found}; {len(loop.trials)} trials"))
    if race.loops:
        rows.append(_simulated_row(race.within, race.simulated_s(race.within)))
    if race.oracle_s is not None:
        rows.append(_row("oracle", [race.oracle_s], "computed from the studies' records"))
    return table(["", "median", "range", ""], rows)


def _verdicts(race: Race) -> str:
    counted = Counter(study.verdict for study in race.tools)
    return ", ".join(f"{count} `{verdict}`" for verdict, count in counted.items())


def _simulated_row(within: float, simulated: Sequence[float]) -> list[str]:
    shares = ", ".join(f"{simulated[int(q * (len(simulated) - 1))]:.0f}" for q in QUANTILES)
    words = f"found after (10, 25, 50, 75, 90 %): {shares} s"
    return _row(f"plain loop, simulated, to within {percent(within)}", simulated, words)


def _row(name: str, seconds: Sequence[float], words: str) -> list[str]:
    spread = "" if len(seconds) < 2 else f"{min(seconds):.0f} to {max(seconds):.0f} s"
    return [name, f"{statistics.median(seconds):.0f} s", spread, words]


def _agreement(race: Race) -> str:
    """The seeds' answers, each held against the loops' best."""
    ratios = [study.over_loop for study in race.tools if study.over_loop is not None]
    return f"{min(ratios):.3f} to {max(ratios):.3f} times as fast as the loops' best" if ratios else ""
