"""Running a study: what is measured, by which processes, and who hears of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from autotune.backends.registry import entry_of
from autotune.bench.elsewhere import elsewhere
from autotune.bench.local import LocalBench
from autotune.bench.supervisor_process import end_kept
from autotune.errors import InputError, marked
from autotune.files import parse_as, read_yaml
from autotune.planning.manifest import require_same_question
from autotune.question.question import Question
from autotune.study.budget import Budget, duration_s
from autotune.study.study import Studies, Study
from autotune.trial.deadline import Deadline
from autotune.trial.request import Limits
from autotune.tuning.events import DeviceTaken, Notify
from autotune.tuning.loop import Tuner
from autotune.tuning.priors import PriorSource, read_prior

BudgetLike = Budget | str | float | PathLike[str]
"""A budget, a time (`10m`, or seconds as a number), or the path of a YAML file with a budget."""


def parse_budget(given: BudgetLike | None, usual: Budget | None = None) -> Budget:
    """The usual budget within a given time, or the budget in a file. Raises InputError."""
    usual = usual or Budget()
    if given is None:
        return usual
    if isinstance(given, Budget):
        return given
    text = str(given)
    wall_s = duration_s(text)
    if wall_s is not None:
        return usual.but(wall_s=wall_s)
    if not Path(text).exists():
        raise InputError(
            f"{marked('budget', text)}: neither a time nor a file",
            tip="give a time, e.g. 90s, 10m or 1h, or a YAML file (docs/measurement.md)",
        )
    return parse_as(Budget, read_yaml(Path(text)), Path(text))


def reopen(studies: Studies, name: str, env: Mapping[str, str]) -> tuple[Study, Budget]:
    """A study to go on with, and the budget it was run with last. `env`: variables that the user gives again.

    Raises like `Studies.open`, and StoreError where the model's file or the framework's release is not what the study
    was made with."""
    study = studies.open(name)
    study.accept(env)
    try:
        study.manifest.require_this_schema()
        require_same_question(study.manifest)
        study.require_own_records()
    except BaseException:
        study.close()
        raise
    return study, study.budget or Budget()


@dataclass(frozen=True)
class Terms:
    """How much is measured, until when, and which configs from elsewhere are tried first."""

    budget: Budget
    time: Deadline
    sources: Sequence[PriorSource] = ()

    def limits(self) -> Limits:
        """Those of a process that is started now."""
        return self.time.cap(self.budget.limits)


def terms_of(question: Question, begun: float, studies: Studies, before: Budget | None = None) -> Terms:
    """What the question says of it. `begun`: when the call began, whose time all is; `before`: the budget with which
    the study was run last. Raises InputError, also where the place of the trials cannot be used."""
    if question.on is not None:
        elsewhere(question.on)
    budget = parse_budget(question.budget, before).but(
        num_trials=question.trials,
        stop_early=None if question.effort is None else question.effort != "exhaustive",
        num_jobs=question.jobs,
        compile_s=question.compile_timeout,
        total_s=question.trial_timeout,
    )
    sources = [read_prior(text, studies) for text in dict.fromkeys(question.prior)]
    return Terms(budget, Deadline.after(budget.wall_s, begun), sources)


def bench_here(study: Study, notify: Notify = lambda _: None) -> LocalBench:
    """What runs the trials of a study on this machine; a context manager."""
    return LocalBench(
        study.variables,
        preload=study.manifest.workload.device in entry_of(study.manifest.workload.framework).forks_on or None,
        log=_log_of(study),
        on_queued=lambda: notify(DeviceTaken()),
    )


def search(study: Study, terms: Terms, notify: Notify, *, on: str | None = None) -> None:
    """Search and prove, from where an earlier run stopped, here or `on` a cluster. Raises like `Tuner.run`; what is
    recorded stays."""
    if on is not None:
        end_kept()
    with bench_here(study, notify) if on is None else elsewhere(on).bench(on, study, terms.budget, notify) as bench:
        Tuner(study, terms.budget, bench, notify, terms.time).run(terms.sources)


def _log_of(study: Study) -> Path:
    return study.folder / "supervisor.log"
