"""The commands that run a study."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from autotune.cli.app import (
    app,
    begun,
    print_line,
    print_result,
    with_exit_status,
)
from autotune.cli.flags import ENV_AGAIN, GroupedCommand, HelpAll, StudyName, asks, examples, require_report
from autotune.cli.running import run_study
from autotune.cli.team_defaults import sources_line, use_file
from autotune.doors import USES
from autotune.question.question import Question

if TYPE_CHECKING:
    from autotune.study.budget import Budget
    from autotune.study.manifest import Manifest
    from autotune.study.study import Studies


_PROCESSES = "processes"
"""What a folder holds that `watch` wrote."""


def _use_folder(context: typer.Context, named: list[str] | None) -> list[str] | None:
    """Such a folder, or a model in it, stands for a model with what was seen of it: defaults for what is not typed."""
    if named is None or len(named) != 1 or context.resilient_parsing:
        return named
    place = named[0]
    if not any(os.path.isdir(os.path.join(folder, _PROCESSES)) for folder in (place, os.path.dirname(place))):
        return named
    USES.require("tune_watched")(context, place)
    return None


@app.command(
    cls=GroupedCommand,
    epilog=examples(
        "tune resnet18 --study first",
        'tune my_model.py:build --budget 10m --constraint "peak_memory <= 2GiB"',
        "tune my_model.py:build --task train --report report.html",
    ),
)
@with_exit_status
@asks(early={"config": use_file, "named": _use_folder})
def tune(context: typer.Context, question: Question, *, help_all: HelpAll = False) -> int:  # noqa: ARG001
    """Find the fastest correct config of a model and prove it.

    An existing study of the same name is resumed.
    """
    from autotune.api.running import terms_of
    from autotune.api.studies import studies_at
    from autotune.bench.supervisor_process import kept_supervisors
    from autotune.planning.manifest import make_manifest

    require_report(question.report)
    studies = studies_at(question.studies_dir, question.storage)
    terms = terms_of(question, begun(), studies)
    with kept_supervisors():
        manifest = make_manifest(question, terms.limits)
        if question.dry_run:
            if not question.as_json and (said := sources_line(context)):
                print_line(said)
            _say_plan(manifest, terms.budget, studies, as_json=question.as_json)
            return 0
        return run_study(studies.open_or_create(manifest), terms, question)


def _say_plan(manifest: Manifest, budget: Budget, studies: Studies, *, as_json: bool) -> None:
    """The answer to `--dry-run`. Nothing is written."""
    from autotune.answer.expected_cost import expected_cost, plan_document, plan_lines
    from autotune.tuning.attempts import how_busy

    cost, busy = expected_cost(manifest, budget, studies), how_busy(budget.quiet)
    print_result(plan_document(manifest, cost, busy), plan_lines(manifest, cost, busy), as_json=as_json)


@app.command(cls=GroupedCommand)
@with_exit_status
@asks(
    *("trials", "budget", "effort", "jobs", "on", "quiet", "studies_dir", "storage", "env", "as_json"),
    env=ENV_AGAIN,
    effort="exhaustive: go on until trials or time are used up; the configs stay those of the study. [as before]",
    trials="Most trials of the study, earlier ones included. [as before]",
)
def resume(study: StudyName, question: Question) -> int:
    """Continue a study. All settings are read from it; only a time limit starts again."""
    from autotune.api.running import reopen, terms_of
    from autotune.api.studies import studies_at

    studies = studies_at(question.studies_dir, question.storage)
    opened, before = reopen(studies, study, question.env)
    return run_study(opened, terms_of(question, begun(), studies, before), question)
