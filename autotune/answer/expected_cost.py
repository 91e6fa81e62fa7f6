"""What a run will cost, known before it starts: how many configs, and how long, by an earlier study of the model."""

from __future__ import annotations

from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from typing import Any

from autotune.answer.format import about, as_budget, count, seconds
from autotune.errors import AutotuneError, marked
from autotune.measure.early_look import EARLY_GAINS
from autotune.study.budget import Budget
from autotune.study.manifest import Manifest
from autotune.study.study import Studies, Study
from autotune.tuning.estimate import confirmation_times, trial_s, typical_trial_s
from autotune.tuning.events import MachineBusy
from autotune.tuning.time_budget import SAFETY
from autotune.workload.workload import Workload

QUICK_BLOCKS = 2
QUICK_GAIN = EARLY_GAINS[QUICK_BLOCKS]
"""The gain that so few blocks prove."""


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
    based_on: str | None = None
    """The study that the following figures come from."""
    trial_s: float | None = None
    blocks_s: float | None = None
    """What the blocks take in all."""
    answer_s: float | None = None
    """Until two blocks have proven the first config, where it gains enough for that."""

    @property
    def expected_s(self) -> float | None:
        """The whole run; no more than its time."""
        if self.trial_s is None or self.blocks_s is None or self.num_trials is None:
            return self.wall_s
        total_s = self.num_trials * self.trial_s + self.blocks_s
        return total_s if self.wall_s is None else min(total_s, self.wall_s)

    @property
    def trials_at_most_s(self) -> float | None:
        """All trials if each takes as long as it may; None where only the run's time limits them."""
        return None if self.num_trials is None else self.num_trials * self.longest_trial_s


def expected_cost(manifest: Manifest, study: Study | None, budget: Budget, studies: Studies) -> ExpectedCost:
    """Cost of a run of a study, which need not exist yet; nothing is written."""
    num_configs = manifest.space.num_configs
    num_done = 0 if study is None else study.num_recorded()
    wanted = [number for number in (budget.num_trials, num_configs) if number is not None]
    known = ExpectedCost(
        num_configs=num_configs,
        num_done=num_done,
        num_trials=max(min(wanted) - num_done, 0) if wanted else None,
        longest_trial_s=budget.limits.total,
        wall_s=budget.wall_s,
    )
    found = None if study is None else _from(study, budget, known)
    return found or _by_another(manifest, budget, studies, known) or known


def study_of(manifest: Manifest, studies: Studies) -> Study | None:
    """The study of this name, if one is there that goes on. Raises StoreError if it was made with other settings."""
    if manifest.name not in studies.names():
        return None
    with ExitStack() as stack:
        study = stack.enter_context(closing(studies.open(manifest.name)))
        if not study.has_evidence():
            return None
        study.manifest.require_same(manifest)
        stack.pop_all()  # It stays open.
        return study


def _by_another(manifest: Manifest, budget: Budget, studies: Studies, known: ExpectedCost) -> ExpectedCost | None:
    """With the figures of the newest other study of the model that has some."""
    for name in _alike(manifest, studies):
        with suppress(AutotuneError):
            with closing(studies.open(name)) as study:
                found = _from(study, budget, known)
            if found is not None:
                return found
    return None


def _from(study: Study, budget: Budget, known: ExpectedCost) -> ExpectedCost | None:
    """With the figures of this study; None if it has no two measurements."""
    untuned = study.untuned_record()
    measured = [record for record in study.records() if record.state == "measured"]
    if untuned is None or untuned not in measured or len(measured) < 2:
        return None
    objective = study.manifest.objective
    others = sorted((record for record in measured if record != untuned), key=lambda r: objective.value(r.measurement))
    plan, floor = budget.confirmation.fit_for(objective), study.noise_floor
    times, first = (confirmation_times([untuned, *others[:number]], floor, objective, budget) for number in (2, 1))
    typical_s = typical_trial_s(study.records())
    return replace(
        known,
        based_on=study.name,
        trial_s=typical_s,
        blocks_s=SAFETY * times.of(plan.first_look),
        answer_s=trial_s(untuned) + typical_s + SAFETY * first.of(QUICK_BLOCKS),
    )


def _alike(manifest: Manifest, studies: Studies) -> list[str]:
    """Other studies of the same model and device: those with the same arguments first, newest first."""
    found = []
    for other in studies.manifests():
        if other.name != manifest.name and _are_alike(other.workload, manifest.workload):
            same_arguments = other.workload.arguments == manifest.workload.arguments
            found.append((same_arguments, other.created, other.name))
    return [name for *_, name in sorted(found, reverse=True)]


def _are_alike(one: Workload, other: Workload) -> bool:
    same_place = (one.device, one.task, one.shapes) == (other.device, other.task, other.shapes)
    return same_place and one.is_of_same_model(other)


def cost_lines(cost: ExpectedCost) -> list[str]:
    """How many configs, what a trial is expected to take, and the whole."""
    space = "too many to list" if cost.num_configs is None else count(cost.num_configs)
    trials = "as many as there is time for" if cost.num_trials is None else f"{count(cost.num_trials)} at most"
    done = f", {count(cost.num_done)} recorded" if cost.num_done else ""
    lines = [f"configs     {space}; trials: {trials}{done}"]
    if cost.trial_s is None or cost.blocks_s is None or cost.answer_s is None:
        lines.append("expected    not known for a first study; a small model on a CPU takes one to five minutes")
    else:
        whole = "" if cost.expected_s is None else f"{seconds(cost.expected_s)} in all: "
        rates = f"{seconds(cost.trial_s)} a trial, {seconds(cost.blocks_s)} for blocks"
        lines.append(f"expected    {whole}{rates} (by study {cost.based_on}); a search may stop early")
        lines.append(f"answer      {_until_an_answer(cost.answer_s, cost.wall_s)}")
    return [*lines, f"at most     {_at_most(cost)}"]


def _until_an_answer(answer_s: float, wall_s: float | None) -> str:
    first = f"after about {about(answer_s)}, where a config gains {QUICK_GAIN:.3g}x"
    if wall_s is not None and answer_s > wall_s:
        return f"{first}: later than the run's end, so that {marked('budget', as_budget(answer_s))} would be needed"
    return f"{first}; then the search goes on"


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
        "based_on": cost.based_on,
        "trial_s": cost.trial_s,
        "blocks_s": cost.blocks_s,
        "answer_s": cost.answer_s,
        "expected_s": cost.expected_s,
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
