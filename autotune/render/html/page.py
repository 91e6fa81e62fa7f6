"""The page about a study: what it found, with figures."""

from __future__ import annotations

from pathlib import Path

from autotune.answer.content import Part
from autotune.answer.result import StudyResult
from autotune.answer.sections import sections
from autotune.answer.sections.verdict import headline
from autotune.measure.statistics import COMPILED
from autotune.render.html.rendering import render, require_possible, write_page
from autotune.render.terminal import facts
from autotune.study.study import Study


def write_report(study: Study, path: Path) -> None:
    """Write the page about a study. Raises InputError where the extra is missing or the file cannot be written."""
    require_possible(path)
    write_page(path, page(study))


def page(study: Study) -> str:
    """The HTML document."""
    answer = StudyResult(study)
    best, found = answer.best, sections(answer)
    told = [(section, section.tables()) for section in found]
    return render(
        name=study.name,
        kind="tuning report",
        headline=headline(answer),
        wins=answer.verdict in COMPILED,
        lines=facts(found),
        configs=[] if best is None else [("The config", sorted(best.config.root.items()))],
        commands=_commands(answer),
        figures=[figure for section in found for figure in section.figures()],
        parts=[Part(section.name, section.title, section.words(), tables) for section, tables in told if tables],
        origin="Made by autotune from the study's records; nothing was run for it.",
    )


def _commands(answer: StudyResult) -> list[tuple[str, str]]:
    found = [("the trials again", answer.command("show")), ("which knobs mattered", answer.command("explain"))]
    if answer.best is not None:
        found.insert(0, ("run the best trial again", answer.command("run", str(answer.best.number))))
    if answer.verdict is not None and answer.best is not None:
        found.insert(0, ("write the file for a job", answer.command("export", "-o", "best.yaml")))
    return found
