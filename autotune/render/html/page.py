"""The page about a study: what it found, with figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autotune.answer.explain import explain
from autotune.answer.result import StudyResult
from autotune.measure.statistics import COMPILED
from autotune.render.html.rendering import render, require_possible, write_page
from autotune.render.html.sections import sections
from autotune.render.summary import headline, summary_rows
from autotune.study.study import Study

if TYPE_CHECKING:
    from autotune.render.html.content import Figure


def write_report(study: Study, path: Path) -> None:
    """Write the page about a study. Raises InputError where the extra is missing or the file cannot be written."""
    require_possible(path)
    write_page(path, page(study))


def page(study: Study) -> str:
    """The HTML document."""
    answer = StudyResult(study)
    best = answer.best
    return render(
        name=study.name,
        kind="tuning report",
        headline=headline(answer),
        wins=answer.verdict in COMPILED,
        lines=summary_rows(answer),
        configs=[] if best is None else [("The config", sorted(best.config.root.items()))],
        commands=_commands(study, answer),
        figures=_figures(study, answer),
        sections=sections(study, answer),
        origin="Made by autotune from the study's records; nothing was run for it.",
    )


def _commands(study: Study, answer: StudyResult) -> list[tuple[str, str]]:
    found = [("the trials again", study.command("show")), ("which knobs mattered", study.command("explain"))]
    if answer.best is not None:
        found.insert(0, ("run the best trial again", f"{study.command('run')} {answer.best.number}"))
    if answer.verdict is not None and answer.best is not None:
        found.insert(0, ("write the file for a job", f"{study.command('export')} -o best.yaml"))
    return found


def _figures(study: Study, answer: StudyResult) -> list[Figure]:
    from autotune.render.html import figures, trial_figures

    told = explain(study)
    found = (
        figures.finalists(answer),
        figures.break_even(answer),
        trial_figures.search_history(answer),
        figures.knob_effects([] if told is None else told.effects),
        trial_figures.memory(answer),
        trial_figures.compile_time(answer),
        trial_figures.processes(answer),
        trial_figures.samples(answer),
    )
    return [each for each in found if each is not None]
