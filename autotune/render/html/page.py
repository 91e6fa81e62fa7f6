"""Pages: the template that all of them fill, and the one about a study. Nothing comes from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from autotune.answer.content import Figure, PagePart
from autotune.answer.result import StudyResult
from autotune.answer.sections import sections
from autotune.answer.sections.verdict import headline
from autotune.command_line import install
from autotune.errors import InputError, printable_lines
from autotune.files import require_place, write_asked
from autotune.measure.statistics import COMPILED
from autotune.render.terminal import facts
from autotune.study.study import Study
from autotune.workload.kinds import kind_of

Rows = Sequence[tuple[str, object]]
"""Labels, or names of knobs, with what stands beside them."""


def render(
    *,
    name: str,
    kind: str,
    headline: str,
    wins: bool,
    lines: Rows,
    configs: Sequence[tuple[str, Rows]],
    commands: Sequence[tuple[str, str]],
    figures: Sequence[Figure],
    parts: Sequence[PagePart],
    origin: str,
    about: str = "",
) -> str:
    """The HTML document. `kind`: what the page is, for its title; `origin`: what it was made from, a sentence;
    `about`: what was measured, and where."""
    import jinja2

    from autotune.render.html.drawing import draw

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("autotune.render.html", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("template.html.j2").render(
        name=name,
        about=about,
        kind=kind,
        headline=headline,
        wins=wins,
        lines=lines,
        configs=configs,
        commands=commands,
        figures=[(figure, draw(figure)) for figure in figures],
        parts=parts,
        origin=origin,
    )


def write_page(path: Path, made: Callable[[], str]) -> Path:
    """Write what is made, and return where. Raises InputError like `require_possible`, before anything is made, and for
    a file that cannot be written."""
    require_possible(path)
    write_asked(path, made())
    return path


def require_possible(path: Path) -> None:
    """Raises InputError where matplotlib or Jinja is not installed, or the file's folder does not exist."""
    try:
        import jinja2  # noqa: F401
        import matplotlib  # noqa: F401
    except ImportError as missing:
        raise InputError(f"a report needs the package {missing.name}", tip=f"run: {install('report')}") from None
    require_place(path)


def _shown(value: Any) -> Any:
    """Foreign text without the characters that HTML cannot hold, and code where it has backquotes; `Markup`, our own
    drawings, stays as it is."""
    if type(value) is not str:
        return value
    from markupsafe import Markup, escape

    return Markup(re.sub("`([^`<>]+)`", r"<code>\1</code>", str(escape(printable_lines(value)))))


def write_report(study: Study, path: Path) -> Path:
    """Write the page about a study. Raises like `write_page`."""
    return write_page(path, partial(page, study))


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
        parts=[PagePart(section.name, section.title, section.words(), tables) for section, tables in told if tables],
        origin="Made by autotune from the study's records; nothing was run for it.",
        about=_about(answer),
    )


def _about(answer: StudyResult) -> str:
    """Model, device and releases in a line."""
    manifest, record = answer.manifest, answer.best or answer.untuned
    workload = manifest.workload
    given = "".join(f" {name}={value}" for name, value in workload.arguments.items())
    machine = None if record is None else record.measurement.environment
    device: str = workload.device
    if machine is not None:
        device = f"CPU: {machine.processor}, {machine.num_cores} cores" if device == "cpu" else machine.device
    releases = f"{manifest.framework} {manifest.framework_version}, autotune {manifest.autotune_version}"
    return f"{workload.model}{given}{kind_of(workload).in_title()} · {device} · {releases} · {manifest.created[:10]}"


def _commands(answer: StudyResult) -> list[tuple[str, str]]:
    found = [("the trials again", answer.command("show")), ("which knobs mattered", answer.command("explain"))]
    if answer.best is not None:
        found.insert(0, ("run the best trial again", answer.command("run", str(answer.best.number))))
    return [*(("next", line) for section in sections(answer) for line in section.advice()), *found]
