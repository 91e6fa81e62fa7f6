"""A study is run with a display, and its verdict printed: what `tune`, `resume` and a night have in common."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from autotune.cli.app import print_document, say, say_error, stop_on_sigterm
from autotune.errors import AutotuneError

if TYPE_CHECKING:
    from autotune.answer.result import StudyResult
    from autotune.api.running import Terms
    from autotune.question.question import Question
    from autotune.study.study import Study


def run_study(study: Study, terms: Terms, question: Question) -> int:
    """Run the loop with a display, then print the verdict. Returns the exit status."""
    from autotune.answer.result import StudyResult

    stop_on_sigterm()
    try:
        search(study, terms, quiet=question.quiet, on=question.on)
    except KeyboardInterrupt:
        return _interrupted_in(study)
    except AutotuneError as problem:
        if not question.as_json:
            raise
        print_document(StudyResult(study))  # It has the failures.
        return say_error(problem)
    answer = StudyResult(study)
    if question.as_json:
        print_document(answer)
    else:
        print_summary(answer)
    if question.report is not None:
        from autotune.render.html.page import write_report

        say(f"report: {write_report(study, question.report)}")
    study.close()
    return 0 if answer.best is not None else 1


def _interrupted_in(study: Study) -> int:
    """Say what is kept of the study, its answer so far too, and what continues it. Returns the exit status."""
    from autotune.api.result import answer_so_far

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Once is enough; the end is near.
    say(f"interrupted; all that was measured is kept. Resume with:\n  {study.command('resume')}")
    found = answer_so_far(study)
    if found is not None:
        say(f"the answer so far is kept: {found}\n  {study.command('export')}")
    return 130


def search(study: Study, terms: Terms, *, quiet: bool, on: str | None = None) -> None:
    """Run the loop with a display. Where it ends in an error, what failed in the study is said before."""
    from autotune.answer.result import StudyResult
    from autotune.answer.sections.failures import FailuresSection
    from autotune.api import running
    from autotune.render.console import PlainConsole
    from autotune.render.live import LiveDisplay

    try:
        with LiveDisplay(PlainConsole(stderr=True, quiet=quiet)) as display:
            running.search(study, terms, display, on=on)
    except AutotuneError:
        for label, line in FailuresSection(StudyResult(study)).facts():
            if label == "failed":
                say(line)
        raise


def print_summary(answer: StudyResult) -> None:
    """The verdict as people read it."""
    from autotune.render.console import console
    from autotune.render.terminal import summary

    console().print(summary(answer))
