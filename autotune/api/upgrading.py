"""`verify_against`: what another environment changes for an exported config, and what a search there finds."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from os import PathLike

from autotune.answer.configs import config_text
from autotune.answer.explain import TrialComparisons
from autotune.answer.format import tells_nothing, times
from autotune.answer.objectives import as_good_as
from autotune.answer.result import StudyResult
from autotune.api.callbacks import notify_all
from autotune.api.events import BothMeasured, Callback
from autotune.api.running import BudgetLike, parse_budget
from autotune.api.scratch import bench_in, scratch
from autotune.api.side_by_side import Exported, file_of, read_exported, require_share
from autotune.api.studies import studies_at
from autotune.errors import shown_at_the_call
from autotune.measure.measurement import Failure
from autotune.measure.objective import Objective
from autotune.measure.statistics import COMPILED, Speedup, Verdict, verdict_of
from autotune.question.question import DEFAULT_STUDIES_DIR
from autotune.study.budget import Budget
from autotune.study.equivalence import run_same_program
from autotune.study.records import TrialRecord
from autotune.trial.deadline import SHORTEST_S, Deadline
from autotune.tuned.tuned_config import TunedConfig
from autotune.verification.retune import Retuned, SearchThere
from autotune.verification.upgrade import BothEnvironments, Environment, Upgrade, upgrade

COMPARED = 0.5
"""Share of a time that is for the comparison at most, where a search follows."""


@shown_at_the_call
def verify_against(
    file: Exported,
    environment: str | PathLike[str],
    *,
    max_loss: float = 0.0,
    retune: bool = False,
    budget: BudgetLike | None = None,
    studies_dir: str | PathLike[str] = DEFAULT_STUDIES_DIR,
    storage: str | None = None,
    env: Mapping[str, str] | None = None,
    callbacks: Callback | Sequence[Callback] = (),
    progress: bool = True,
) -> Upgrade:
    """Measure an exported config and the untuned model here and under the releases of another environment.

    `environment`: the folder of a virtual environment, or its interpreter, where this package and the framework are
    installed. `max_loss` as of `verify`, of the speed here; `budget` and `env` too; `callbacks` receive a
    `BothMeasured` for each block.

    `retune`: search there too, in a study that begins with the exported config: is another one the best there? At most
    half of the time is for the comparison. `studies_dir`, `storage` and `progress`: as of `tune`, for the search.

    Returns an `Upgrade`: `outcome` is `"holds"`, `"regressed"`, `"wrong"` (something fails there, or gives other
    outputs) or `"unclear"`; `untuned` and `tuned` are the `Speedup` of either model there over that here, `gains` those
    of the config here and there, `retuned` what the search found. Raises InputError for a file or an environment that
    is of no use, else like `verify`.
    """
    require_share(max_loss)
    limits, begun, notify = parse_budget(budget), time.monotonic(), notify_all(callbacks)
    tuned, deadline = read_exported(file, env), Deadline.after(limits.wall_s, begun)
    other = Environment.of(environment, tuned.framework, searches=retune)
    objective, variables = Objective.parse(tuned.workload.objective), tuned.environment.variables
    with scratch() as folder:
        search = None
        if retune:
            studies, version = studies_at(studies_dir, storage), other.framework_version
            search = SearchThere.of(
                tuned, other.python, version, studies, folder=folder, file=file_of(file), storage=storage
            )
        with bench_in(folder, variables) as here, bench_in(folder, variables, other.python) as there:
            found = upgrade(
                tuned,
                other.framework_version,
                BothEnvironments(here, there),
                limits if search is None else _within(limits, COMPARED * deadline.left_s()),
                folder,
                on_block=lambda values: notify(BothMeasured(objective, dict(values))),
                max_loss=max_loss,
            )
        if search is None or found.failed == "untuned-there":
            return found
        problem = search.run(_within(limits, deadline.left_s()), folder, progress=progress)
    retuned = Retuned(search.study, problem) if problem else _retuned(search, tuned)
    return replace(found, retuned=retuned)


def _within(limits: Budget, left_s: float) -> Budget:
    """The limits with so much of their time, if they have one."""
    return limits if limits.wall_s is None else limits.model_copy(update={"wall_s": max(left_s, SHORTEST_S)})


def _retuned(search: SearchThere, tuned: TunedConfig) -> Retuned:
    """What the search answers, and how that compares with the exported config."""
    name = search.study
    with closing(search.studies.open(name)) as study:
        answer = StudyResult(study)
    best, exported = answer.best, _trial_of(tuned, answer)
    if answer.verdict is None or best is None:
        return Retuned(name, _without_a_winner(answer.verdict), answer.verdict)
    is_other = exported is None or not (best.number == exported.number or run_same_program(best, exported))
    over = None
    if is_other and exported is not None:
        over = TrialComparisons.of(answer).confirmed(best, exported)
    confirmation = answer.confirmation
    gain = None if confirmation is None else confirmation.compared.get(best.number)
    if answer.verdict not in COMPILED:
        why = _without_a_winner(answer.verdict)
    elif not is_other:
        why = "the exported config is the best there"
    else:
        text = config_text(best.config, answer.space)
        why = f"another config is the best there: {text}{_over(over, exported, answer.objective)}"
    export = answer.command("export", "-o", f"{name}.yaml") if answer.verdict in COMPILED else None
    return Retuned(name, why, answer.verdict, best.config, is_other, gain, over, export)


def _trial_of(tuned: TunedConfig, answer: StudyResult) -> TrialRecord | None:
    """The trial of the exported config; None where that release has no such config, or where it was not tried."""
    if tuned.is_untuned:
        return answer.untuned
    config = answer.space.projected(tuned.config)
    is_the_same = config.matches(tuned.config.root)
    tried = (trial for trial in answer.records if trial.outcome is not None and trial.config == config)
    return next(tried, None) if is_the_same else None


def _without_a_winner(verdict: Verdict | None) -> str:
    match verdict:
        case None:
            return "the search there has no answer yet"
        case Verdict.INFEASIBLE:
            return "no config keeps every constraint there"
        case Verdict.UNDECIDED:
            return "whether anything is faster than the untuned model there is undecided"
    return "nothing is shown to be faster than the untuned model there"


def _over(over: Speedup | None, exported: TrialRecord | None, objective: Objective) -> str:
    """How the winner compares with the exported config, as the end of a sentence."""
    if exported is None:
        return "; the exported one does not exist there as it is, or was not tried"
    if isinstance(exported.outcome, Failure):
        return f"; the exported one fails ({exported.outcome.reason} at {exported.outcome.stage})"
    if exported.violations:
        return f"; the exported one does not keep {', '.join(exported.violations)}"
    if over is None:
        return "; the exported one was slower in the search and not compared again"
    if verdict_of(over) is Verdict.FASTER and not tells_nothing(over):
        return f", {times(over.median)} {as_good_as(objective)} the exported one"
    return "; that it is better than the exported one is not shown"
