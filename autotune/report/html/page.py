"""The page: what a study found, in one HTML file without scripts, fonts or pictures from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.errors import InputError, printable_lines
from autotune.files import write_whole
from autotune.measure.statistics import COMPILED
from autotune.report.html.sections import sections
from autotune.report.summary import headline, summary_rows
from autotune.results.explain import explain
from autotune.results.result import StudyResult, result_of
from autotune.study.study import Study

if TYPE_CHECKING:
    from autotune.report.html.content import Figure


def write_report(study: Study, path: Path) -> None:
    """Write the page about a study. Raises InputError where the extra is missing or the file cannot be written."""
    require_possible(path)
    content = page(study)
    try:
        write_whole(path, content)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None


def page(study: Study) -> str:
    """The HTML document."""
    import jinja2

    answer = result_of(study)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("autotune.report.html", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("template.html.j2").render(
        study=study.name,
        headline=headline(answer),
        wins=answer.verdict in COMPILED,
        lines=summary_rows(answer),
        config=None if answer.best is None else sorted(answer.best.config.root.items()),
        commands=_commands(study, answer),
        figures=_figures(study, answer),
        sections=sections(study, answer),
    )


def require_possible(path: Path) -> None:
    """Raises InputError where matplotlib or Jinja is not installed, or the file's folder does not exist."""
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError as missing:
        raise InputError(
            f"a report needs the package {missing.name}", tip="run: pip install 'autotune-compile[report]'"
        ) from None
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise InputError(f"{path}: no file can be written there", tip="name a file in a folder that exists")


def _shown(value: Any) -> Any:
    """Foreign text without the characters that HTML cannot hold; `Markup`, our own drawings, stays as it is."""
    return printable_lines(value) if type(value) is str else value


def _commands(study: Study, answer: StudyResult) -> list[tuple[str, str]]:
    found = [("the trials again", study.command("show")), ("which knobs mattered", study.command("explain"))]
    if answer.best is not None:
        found.insert(0, ("run the best trial again", f"{study.command('run')} {answer.best.number}"))
    if answer.verdict is not None and answer.best is not None:
        found.insert(0, ("write the file for a job", f"{study.command('export')} -o best.yaml"))
    return found


def _figures(study: Study, answer: StudyResult) -> list[Figure]:
    from autotune.report.html import figures, trial_figures

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
