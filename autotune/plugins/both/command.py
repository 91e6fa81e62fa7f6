"""`tune --framework both` on the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.cli.app import begun, print_json, print_line, say, stop_on_sigterm
from autotune.cli.compare import say_block
from autotune.cli.running import interrupted, print_summary, search
from autotune.question.question import Question

if TYPE_CHECKING:
    from autotune.api.running import Terms
    from autotune.plugins.both.both import BothResult
    from autotune.study.study import Study


def main(question: Question) -> int:
    """Tune in one framework after the other, and print each verdict, the comparison and what to use."""
    from autotune.answer.result import StudyResult
    from autotune.api.running import terms_of
    from autotune.api.studies import studies_at
    from autotune.plugins.both import both

    place = studies_at(question.studies_dir, question.storage)
    terms = terms_of(question, begun(), place)

    def search_and_tell(study: Study, own: Terms) -> None:
        say(f"{study.manifest.framework}: study {study.name}")
        search(study, own, quiet=question.quiet)
        if not question.as_json:
            print_line(f"{study.manifest.framework}: study {study.name}")
            print_summary(StudyResult(study), with_next=False)

    with both.open_both(question, question.build, terms.limits, place) as studies:
        stop_on_sigterm()
        try:
            found = both.tune_both(studies, terms, search_and_tell, say_block)
        except KeyboardInterrupt:
            return interrupted()
        _print_both(found, as_json=question.as_json)
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
