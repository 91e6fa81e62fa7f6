"""The records of `wall_time.py`, all together: how long the product and the plain loop took, and what that says."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from benchmarks.loop_model import LOOPS, LoopTrial, key_of, latencies_s, scatter_of, simulated_s
from benchmarks.record import Goal, percent, table

WITHIN = 0.02
ALSO_WITHIN = (0.03, 0.05)
"""How far the loop's time depends on the border: its records know a config to a percent or two."""
GOAL_SHARES = {4: 0.45, 1: 0.9}
"""Cores, at least -> the product's time over the loop's."""
GOAL_ORACLE = 2.5
ORACLE_BLOCKS = 2
SIMULATED_LOOPS = 60
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True)
class ToolRun:
    """A study of the product. `over_loop`: seconds a call of the loops' best config over its own, side by side."""

    kind: Literal["tool"]
    seed: int
    feature: str | None
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
    framework: str = "torch"


@dataclass(frozen=True)
class SlotsRun:
    """A study whose compilers sleep, with so many slots."""

    kind: Literal["slots"]
    num_slots: int
    num_trials: int
    compile_s: float
    seconds: float


Run = ToolRun | LoopRun | SlotsRun


def best_of(loops: Sequence[LoopRun]) -> LoopTrial | None:
    """The fastest trial of all loops: whoever runs one takes its config."""
    worked = [each for loop in loops for each in loop.trials if each.latency_s is not None]
    return min(worked, key=lambda each: each.latency_s or 0.0, default=None)


@dataclass(frozen=True)
class Race:
    """All pieces together."""

    tools: list[ToolRun]
    without: list[ToolRun]
    loops: list[LoopRun]
    slots: list[SlotsRun]

    @classmethod
    def of(cls, records: Sequence[Run]) -> Race:
        tools = [each for each in records if isinstance(each, ToolRun)]
        return cls(
            tools=[each for each in tools if each.feature is None],
            without=[each for each in tools if each.feature is not None],
            loops=[each for each in records if isinstance(each, LoopRun)],
            slots=[each for each in records if isinstance(each, SlotsRun)],
        )

    @cached_property
    def config_s(self) -> dict[str, float]:
        """Seconds a call of each config, by its key, as the loops measured it in all their trials."""
        return latencies_s([each.trials for each in self.loops])

    def target_s(self, within: float = WITHIN) -> float:
        """Seconds a call that are so near to the best known config, as the loops measure it."""
        best = best_of(self.loops)
        better = max((each.over_loop or 1.0 for each in self.tools), default=1.0)
        return 0.0 if best is None else (1 + within) * self.config_s[key_of(best.config)] / max(better, 1.0)

    def loops_found_s(self) -> list[float | None]:
        """When each loop had its first config so fast; None: not in its time."""
        target_s = self.target_s()

        def is_good(trial: LoopTrial) -> bool:
            return trial.latency_s is not None and self.config_s[key_of(trial.config)] <= target_s

        return [next((t.ended_s for t in each.trials if is_good(t)), None) for each in self.loops]

    def simulated_s(self, within: float = WITHIN) -> list[float]:
        """When loops like these would have had a config so near to the best, ascending."""
        trials, target_s = [each.trials for each in self.loops], self.target_s(within)
        return simulated_s(trials, target_s, framework=self.framework, num_runs=SIMULATED_LOOPS)

    @property
    def scatter(self) -> float:
        """Of the loops' trials of one config."""
        return scatter_of([each.trials for each in self.loops])

    @property
    def within(self) -> float:
        """The border of the goal: one below the scatter would ask for a trial's luck, not for a config."""
        borders = (WITHIN, *ALSO_WITHIN)
        return next((each for each in borders if each >= self.scatter), borders[-1])

    @property
    def framework(self) -> str:
        return self.loops[0].framework if self.loops else "torch"

    @property
    def tool_s(self) -> float:
        """The median over the seeds."""
        return statistics.median(each.seconds for each in self.tools)

    @property
    def oracle_s(self) -> float | None:
        known = [each.oracle_s for each in self.tools if each.oracle_s is not None]
        return statistics.median(known) if known else None


def judge(records: Sequence[Run]) -> list[Goal]:
    """The product's median against the loop's, and against the oracle."""
    race = Race.of(records)
    if not race.tools or not race.loops:
        return []
    goal = next(share for cores, share in GOAL_SHARES.items() if race.tools[0].num_cores >= cores)
    found = sum(each.found for each in race.tools)
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
    if race.oracle_s is not None:
        times = race.tool_s / race.oracle_s
        words = f"{times:.1f} times {race.oracle_s:.0f} s"
        goals.append(Goal(f"within {GOAL_ORACLE} times the oracle", words, met=times <= GOAL_ORACLE))
    return goals


def section(records: Sequence[Run]) -> str:
    """Each side's times, what a study takes without each feature, and the simulated slots."""
    race = Race.of(records)
    loop = LOOPS[race.framework]
    about = (
        f"`tune --process-settings` on the CPU with {loop.framework}, otherwise with default settings, to its verdict, "
        f"and `benchmarks/{loop.script.name}`: Optuna's default sampler over the same knobs, a process for each trial, "
        "as a good engineer writes it by hand. The loop counts until the trial that is within 2 % of the best config "
        "that any run has found (a config's latency is the median of its trials); it does not know that it may stop "
        f"there, and proves nothing. *Simulated*: {SIMULATED_LOOPS} loops with the same sampler on the records of the "
        f"real ones, whose trials of one config scatter by {percent(race.scatter)}, since one loop has luck. "
        f"The goal's border is the first of {_in_words((WITHIN, *ALSO_WITHIN))} that is not below that scatter, or the "
        "last: a smaller one asks for a trial's luck. *Oracle*: what somebody who knows the winner would need, its "
        f"cold trial, the untuned one and {ORACLE_BLOCKS} blocks. *Spared*: seconds of compiling that trials found "
        "done, since the compiler was imported before the fork and earlier trials had compiled the same kernels."
    )
    parts = [about, _times(race), _features(race), _slots_table(race)]
    return "\n\n".join(filter(None, parts))


def _times(race: Race) -> str:
    rows = [_row(f"autotune, seed {each.seed}", [each.seconds], _answer(each)) for each in race.tools]
    if race.tools:
        rows.append(_row("autotune, all seeds", [each.seconds for each in race.tools], _agreement(race)))
    for number, (loop, found_s) in enumerate(zip(race.loops, race.loops_found_s(), strict=True)):
        found = "not found" if found_s is None else f"found after {found_s:.0f} s"
        rows.append(_row(f"plain loop {number}", [loop.seconds], f"{found}; {len(loop.trials)} trials"))
    if race.loops:
        rows += [_simulated_row(within, race.simulated_s(within)) for within in (WITHIN, *ALSO_WITHIN)]
    if race.oracle_s is not None:
        rows.append(_row("oracle", [race.oracle_s], "computed from the studies' records"))
    return table(["", "median", "range", ""], rows)


def _in_words(borders: Sequence[float]) -> str:
    *others, last = (f"{each * 100:g}" for each in borders)
    return f"{', '.join(others)} and {last} %"


def _simulated_row(within: float, simulated: Sequence[float]) -> list[str]:
    shares = ", ".join(f"{simulated[int(q * (len(simulated) - 1))]:.0f}" for q in QUANTILES)
    words = f"found after (10, 25, 50, 75, 90 %): {shares} s"
    return _row(f"plain loop, simulated, to within {percent(within)}", simulated, words)


def _row(name: str, seconds: Sequence[float], words: str) -> list[str]:
    spread = "" if len(seconds) < 2 else f"{min(seconds):.0f} to {max(seconds):.0f} s"
    return [name, f"{statistics.median(seconds):.0f} s", spread, words]


def _answer(found: ToolRun) -> str:
    ratio = "" if found.over_loop is None else f", {found.over_loop:.3f} times as fast as the loops' best"
    config = " ".join(f"{name}={value}" for name, value in (found.config or {}).items() if value is not None)
    spared = f", {found.spared_s:.0f} s spared" if found.spared_s else ""
    return f"{found.verdict} in {found.num_trials} trials ({found.trials_s:.0f} s{spared}){ratio}: {config}"


def _agreement(race: Race) -> str:
    """How far the seeds' answers are from each other, each held against the loops' best."""
    ratios = [each.over_loop for each in race.tools if each.over_loop is not None]
    return "" if len(ratios) < 2 else f"answers differ by at most {percent(max(ratios) / min(ratios) - 1)}"


def _features(race: Race) -> str:
    if not race.without:
        return ""
    with_s = {each.seed: each.seconds for each in race.tools}
    rows = []
    for feature in dict.fromkeys(each.feature or "" for each in race.without):
        studies = [each for each in race.without if each.feature == feature]
        more = [each.seconds - with_s[each.seed] for each in studies]
        share = statistics.median(each.seconds / with_s[each.seed] for each in studies)
        rows.append([feature, _seconds(each.seconds for each in studies), _seconds(more, "+.0f"), percent(share)])
    header = ["without", "time", "more than with it", "share"]
    about = "Studies without a feature, each against the one of the same seed with all of them; a share is the median."
    return f"{about}\n\n{table(header, rows)}"


def _seconds(values: Iterable[float], form: str = ".0f") -> str:
    return ", ".join(f"{each:{form}}" for each in values) + " s"


def _slots_table(race: Race) -> str:
    if not race.slots:
        return ""
    alone = race.slots[0].seconds
    rows = [[str(each.num_slots), f"{each.seconds:.0f} s", f"{alone / each.seconds:.1f}"] for each in race.slots]
    one = race.slots[0]
    about = f"Simulated: {one.num_trials} trials whose compilers sleep {one.compile_s:g} s, to the verdict."
    return f"{about}\n\n{table(['slots (--jobs)', 'time', 'times as fast'], rows)}"
