"""The commands that run a study."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import typer

from autotune.cli.app import (
    COMMANDS,
    app,
    begun,
    print_json,
    print_line,
    print_result,
    say,
    stop_on_sigterm,
    with_exit_status,
)
from autotune.cli.compare import say_block
from autotune.cli.flags import ENV_AGAIN, GroupedCommand, HelpAll, StudyName, asks, examples
from autotune.cli.report import require_report, write_result
from autotune.cli.running import interrupted, print_summary, profile, run_study, search
from autotune.cli.team_defaults import ignored_lines, sources_line, use_file
from autotune.question.allows import is_both
from autotune.question.question import Question

if TYPE_CHECKING:
    from autotune.api.both import BothResult
    from autotune.api.running import Terms
    from autotune.study.budget import Budget
    from autotune.study.manifest import Manifest
    from autotune.study.study import Studies, Study


_PROCESSES = "processes"
"""What a folder holds that `watch` wrote."""


def _use_folder(context: typer.Context, named: list[str] | None) -> list[str] | None:
    """Such a folder, or a model in it, stands for a model with what was seen of it: defaults for what is not typed."""
    if named is None or len(named) != 1 or context.resilient_parsing:
        return named
    place = named[0]
    if not any(os.path.isdir(os.path.join(folder, _PROCESSES)) for folder in (place, os.path.dirname(place))):
        return named
    COMMANDS.require("tune-watched")(context, place)
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
    from autotune.planning.manifest import make_manifest

    for sentence in ignored_lines(context):
        say(sentence)
    require_report(question.report)
    if question.deadline is not None:
        status: int = COMMANDS.require("tune-tiers")(question)
        return status
    studies = studies_at(question.studies_dir, question.storage)
    terms = terms_of(question, begun(), studies)
    if is_both(question.framework):
        return _tune_both(question, terms, studies)
    manifest = make_manifest(question, terms.limits)
    if question.dry_run:
        if not question.as_json and (said := sources_line(context)):
            print_line(said)
        _say_plan(manifest, terms.budget, studies, as_json=question.as_json)
        return 0
    study = studies.open_or_create(manifest)
    if not question.quiet:
        _say_cost(study, terms.budget)
    return run_study(study, terms, question)


def _say_cost(study: Study, budget: Budget) -> None:
    """In lines on stderr, of a study that is about to be run."""
    from autotune.answer.expected_cost import cost_lines, expected_cost

    for line in cost_lines(expected_cost(study.manifest, study, budget, study.studies))[1:]:
        say(line)


def _say_plan(manifest: Manifest, budget: Budget, studies: Studies, *, as_json: bool) -> None:
    """The answer to `--dry-run`. Nothing is written."""
    from autotune.answer.expected_cost import expected_cost, plan_document, plan_lines, study_of
    from autotune.tuning.attempts import how_busy

    study = study_of(manifest, studies)
    try:
        cost = expected_cost(manifest, study, budget, studies)
    finally:
        if study is not None:
            study.close()
    busy = how_busy(budget.quiet)
    print_result(plan_document(manifest, cost, busy), plan_lines(manifest, cost, busy), as_json=as_json)


def _tune_both(question: Question, terms: Terms, place: Studies) -> int:
    """Tune in one framework after the other, and print each verdict, the comparison and what to use."""
    from autotune.answer.result import StudyResult
    from autotune.api import both

    def search_and_tell(study: Study, own: Terms) -> None:
        say(f"{study.manifest.framework}: study {study.name}")
        search(study, own, quiet=question.quiet)
        if question.profile:
            profile(study)
        if not question.as_json:
            print_line(f"{study.manifest.framework}: study {study.name}")
            print_summary(StudyResult(study), profiled=question.profile, with_next=False)

    with both.open_both(question, question.build, terms.limits, place) as studies:
        stop_on_sigterm()
        try:
            found = both.tune_both(studies, terms, search_and_tell, say_block)
        except KeyboardInterrupt:
            return interrupted()
        _print_both(found, as_json=question.as_json)
    if found.comparison is not None:
        write_result(found.comparison, question.report)
    return 0


def _print_both(found: BothResult, *, as_json: bool) -> None:
    from autotune.render.json import comparison_document
    from autotune.render.side_by_side import comparison_lines

    comparison = found.comparison
    if as_json:
        document = None if comparison is None else comparison_document(comparison, comparison.names)
        studies = {name: result.document() for name, result in found.results.items()}
        print_json({"use": found.study, "studies": studies, "left_out": found.left_out, "comparison": document})
        return
    for name, why in found.left_out.items():
        print_line(f"{name} is left out: {why}")
    for line in [] if comparison is None else comparison_lines(comparison, comparison.names):
        print_line(line)
    print_line(f"use {found.study}: {found.answer.command('export', '-o', 'best.yaml')}")


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
