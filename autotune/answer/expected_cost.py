"""The most that a run may cost, known before it starts: how many configs, and how long."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

from autotune.answer.format import count, seconds
from autotune.errors import marked
from autotune.study.budget import Budget
from autotune.study.manifest import Manifest
from autotune.study.study import Studies
from autotune.tuning.events import MachineBusy


@dataclass(frozen=True)
class ExpectedCost:
    """Seconds and numbers of a run; what is not known is None."""

    num_configs: int | None
    """In the space; None: too many to list."""
    num_done: int
    """Trials that the study has."""
    num_trials: int | None
    """Trials to come, at most; None: as many as there is time for."""
    longest_trial_s: float
    wall_s: float | None
    """The time of the run, if it has one."""

    @property
    def trials_at_most_s(self) -> float | None:
        """All trials if each takes as long as it may; None where only the run's time limits them."""
        return None if self.num_trials is None else self.num_trials * self.longest_trial_s


def expected_cost(manifest: Manifest, budget: Budget, studies: Studies) -> ExpectedCost:
    """Cost of a run of a study, which need not exist yet; nothing is written.

    Raises StoreError if a study of this name was made with other settings.
    """
    num_configs = manifest.space.num_configs
    num_done = _num_done(manifest, studies)
    wanted = [number for number in (budget.num_trials, num_configs) if number is not None]
    return ExpectedCost(
        num_configs=num_configs,
        num_done=num_done,
        num_trials=max(min(wanted) - num_done, 0) if wanted else None,
        longest_trial_s=budget.limits.total,
        wall_s=budget.wall_s,
    )


def _num_done(manifest: Manifest, studies: Studies) -> int:
    if manifest.name not in studies.names():
        return 0
    with closing(studies.open(manifest.name)) as study:
        if not study.has_evidence():
            return 0
        study.manifest.require_same(manifest)
        return study.num_recorded()


def cost_lines(cost: ExpectedCost) -> list[str]:
    """How many configs, and the most time."""
    space = "too many to list" if cost.num_configs is None else count(cost.num_configs)
    trials = "as many as there is time for" if cost.num_trials is None else f"{count(cost.num_trials)} at most"
    done = f", {count(cost.num_done)} recorded" if cost.num_done else ""
    return [f"configs     {space}; trials: {trials}{done}", f"at most     {_at_most(cost)}"]


def plan_lines(manifest: Manifest, cost: ExpectedCost, busy: MachineBusy | None) -> list[str]:
    """What `tune --dry-run` prints."""
    workload = manifest.workload
    return [
        f"study       {manifest.name}",
        f"model       {workload.model}, {manifest.framework} {manifest.framework_version} on {workload.device}",
        *cost_lines(cost),
        f"machine     {'quiet' if busy is None else busy_words(busy)}",
    ]


def plan_document(manifest: Manifest, cost: ExpectedCost, busy: MachineBusy | None) -> dict[str, Any]:
    """What a run will cost as plain data; the keys are documented in docs/json.md."""
    return {
        "study": manifest.name,
        "num_configs": cost.num_configs,
        "num_done": cost.num_done,
        "num_trials": cost.num_trials,
        "trials_at_most_s": cost.trials_at_most_s,
        "wall_s": cost.wall_s,
        "cores_taken": busy and busy.taken,
    }


def busy_words(busy: MachineBusy) -> str:
    """How much of the machine other programs use."""
    load = "" if busy.load_1m is None else f" (load average {busy.load_1m:.1f})"
    return f"busy: {busy.taken:.1f} of {busy.num_cores} cores are used by other programs{load}; timings will be noisy"


def _at_most(cost: ExpectedCost) -> str:
    if cost.wall_s is not None:
        return f"{seconds(cost.wall_s)} in all ({marked('budget')})"
    longest = f"a trial is stopped after {seconds(cost.longest_trial_s)}"
    if cost.trials_at_most_s is None:
        return longest
    limited = f"{marked('budget', '10m')} limits all"
    all_s = cost.trials_at_most_s
    words = seconds(all_s) if all_s < 7200 else f"{all_s / 3600:.1f} h"
    return f"{words} for the trials ({longest}), then blocks; {limited}"
