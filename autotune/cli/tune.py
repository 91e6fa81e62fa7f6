"""The commands that run a study."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from autotune.cli.app import app, print_line, say, with_exit_status
from autotune.cli.flags import asks
from autotune.cli.running import run_study
from autotune.cli.team_defaults import ignored_lines, sources_line, use_file
from autotune.command_line import asked
from autotune.errors import InputError
from autotune.question.question import Question


@app.command()
@with_exit_status
@asks(early={"config": use_file})
def tune(context: typer.Context, question: Question) -> int:
    """Search for the fastest correct config of a model, confirm it, and report the result."""
    begun = time.monotonic()  # A time budget is that of the whole command.
    from autotune.api.both import is_both
    from autotune.api.running import terms_of
    from autotune.api.studies import studies_at
    from autotune.cli.expected_cost import say_cost, say_plan
    from autotune.planning.manifest import make_manifest

    for sentence in ignored_lines(context):
        say(sentence)
    _require_possible(question)
    studies = studies_at(question.studies_dir, question.storage)
    terms = terms_of(question, begun, studies)
    if question.deadline is not None:
        from autotune.cli.tune_tiers import tune_tiers

        return tune_tiers(question, terms, studies)
    if is_both(question.framework):
        from autotune.cli.tune_both import tune_both

        return tune_both(question, terms, studies)
    manifest = make_manifest(question, terms.limits)
    if question.dry_run:
        if not question.as_json and (said := sources_line(context)):
            print_line(said)
        say_plan(manifest, terms.budget, studies, as_json=question.as_json)
        return 0
    study = studies.open_or_create(manifest)
    if not question.quiet:
        say_cost(study, terms.budget)
    return run_study(study, terms, question)


def _require_possible(question: Question) -> None:
    """Raises InputError, before anything is measured, for what cannot be done together or not here."""
    from autotune.api.both import require_plain
    from autotune.api.running import require_on
    from autotune.cli.report import require_report

    require_report(question.report, question.deadline)
    if question.dry_run and question.deadline is not None:
        raise InputError(
            f"{asked('dry_run')} and {asked('deadline')}: each tier is a study of its own",
            tip=f"leave out {asked('deadline')}",
        )
    require_on(question.on, question.deadline, profiled=question.profile)
    alone = {"deadline": question.deadline, "dry_run": question.dry_run, "on": question.on}
    require_plain(question.framework, alone)


@app.command()
@with_exit_status
@asks(
    *("trials", "budget", "early_stop", "jobs", "on", "quiet", "studies_dir", "storage", "as_json"),
    trials="Most trials of the study, earlier ones included. [as before]",
)
def resume(study: Annotated[str, typer.Argument(help="Name of the study.")], question: Question) -> int:
    """Continue a study. All settings are read from it; only a time limit starts again."""
    begun = time.monotonic()
    from autotune.api.running import reopen, require_on, terms_of
    from autotune.api.studies import studies_at

    require_on(question.on)
    studies = studies_at(question.studies_dir, question.storage)
    opened, before = reopen(studies, study)
    return run_study(opened, terms_of(question, begun, studies, before), question)
