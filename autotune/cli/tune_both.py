"""`tune --framework both`: one study for each framework, their answers, and which of them to use."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.cli.app import print_json, print_line, say, stop_on_sigterm
from autotune.cli.compare import say_block
from autotune.cli.report import write_result
from autotune.cli.running import print_summary, profile
from autotune.cli.running import search as search_and_show

if TYPE_CHECKING:
    from autotune.api.both import BothResult
    from autotune.planning.request import TuneRequest
    from autotune.study.budget import Budget
    from autotune.study.study import Studies, Study
    from autotune.trial.deadline import Deadline
    from autotune.tuning.priors import PriorSource


def tune_both(
    request: TuneRequest,
    budget: Budget,
    place: Studies,
    as_json: bool,
    begun: float,
    sources: Sequence[PriorSource],
    *,
    profiled: bool,
    quiet: bool,
    report: Path | None,
) -> int:
    """Tune in one framework after the other, and print each verdict, the comparison and what to use."""
    from autotune.answer.result import StudyResult
    from autotune.api import both
    from autotune.trial.deadline import Deadline

    time = Deadline.after(budget.wall_s, begun)
    limits = partial(time.cap, budget.limits)

    def search(study: Study, own: Budget, ends: Deadline, of_it: Sequence[PriorSource]) -> None:
        say(f"{study.manifest.framework}: study {study.name}")
        search_and_show(study, own, ends, of_it, quiet=quiet)
        if profiled:
            profile(study)
        if not as_json:
            print_line(f"{study.manifest.framework}: study {study.name}")
            print_summary(StudyResult(study), profiled=profiled, with_next=False)

    with both.open_both(request, request.models, limits, place) as studies:
        stop_on_sigterm()
        try:
            found = both.tune_both(studies, both.Terms(budget, time, sources), search, say_block)
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Once is enough; the end is near.
            say("interrupted; all recorded trials are kept. The same command resumes the run")
            return 130
        _print(found, as_json=as_json)
    if found.comparison is not None:
        write_result(found.comparison, report)
    return 0


def _print(found: BothResult, *, as_json: bool) -> None:
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
