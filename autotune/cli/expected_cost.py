"""What a run will cost, said before its first trial; with `--dry-run` that is all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.cli.app import print_json, print_line, say

if TYPE_CHECKING:
    from autotune.study.budget import Budget
    from autotune.study.manifest import Manifest
    from autotune.study.study import Studies, Study


def say_cost(study: Study, budget: Budget) -> None:
    """In lines on stderr, of a study that is about to be run."""
    from autotune.answer.expected_cost import cost_lines, expected_cost

    for line in cost_lines(expected_cost(study.manifest, study, budget, study.studies))[1:]:
        say(line)


def say_plan(manifest: Manifest, budget: Budget, studies: Studies, *, as_json: bool) -> None:
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
    if as_json:
        print_json(plan_document(manifest, cost, busy))
    else:
        for line in plan_lines(manifest, cost, busy):
            print_line(line)
