"""What a run will cost, in words and as a document."""

from __future__ import annotations

from typing import Any

from autotune.answer.expected_cost import ExpectedCost
from autotune.answer.format import count, seconds
from autotune.command_line import asked
from autotune.study.manifest import Manifest
from autotune.tuning.events import MachineBusy


def cost_lines(cost: ExpectedCost) -> list[str]:
    """How many configs, what a trial is expected to take, and the whole."""
    space = "too many to list" if cost.num_configs is None else count(cost.num_configs)
    trials = "as many as there is time for" if cost.num_trials is None else f"{count(cost.num_trials)} at most"
    done = f", {count(cost.num_done)} recorded" if cost.num_done else ""
    lines = [f"configs     {space}; trials: {trials}{done}"]
    if cost.trial_s is None or cost.confirmation_s is None:
        lines.append("expected    not known: no study of this model on this device has measurements")
    else:
        whole = "" if cost.expected_s is None else f"{seconds(cost.expected_s)} in all: "
        each = f"{seconds(cost.trial_s)} a trial, {seconds(cost.confirmation_s)} for the confirmation"
        lines.append(f"expected    {whole}{each} (by study {cost.based_on}); a search may stop early")
    return [*lines, f"at most     {_at_most(cost)}"]


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
    """The same as plain data; the keys are documented in docs/json.md."""
    return {
        "study": manifest.name,
        "num_configs": cost.num_configs,
        "num_done": cost.num_done,
        "num_trials": cost.num_trials,
        "based_on": cost.based_on,
        "trial_s": cost.trial_s,
        "confirmation_s": cost.confirmation_s,
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
        return f"{seconds(cost.wall_s)} in all ({asked('budget')})"
    longest = f"a trial is stopped after {seconds(cost.longest_trial_s)}"
    if cost.trials_at_most_s is None:
        return longest
    limited = f"{asked('budget', '10m')} limits all"
    return f"{_hours(cost.trials_at_most_s)} for the trials ({longest}), then the confirmation; {limited}"


def _hours(value: float) -> str:
    return seconds(value) if value < 7200 else f"{value / 3600:.1f} h"
