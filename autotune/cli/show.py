"""The commands that show a study: in a terminal, for a script, or as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.app import app, print_document, print_line, with_exit_status
from autotune.cli.flags import AsJson, Storage, StudiesDir, StudyName
from autotune.question.question import DEFAULT_STUDIES_DIR

if TYPE_CHECKING:
    from autotune.answer.result import StudyResult
    from autotune.study.study import Study


@app.command()
@with_exit_status
def show(
    study: StudyName,
    studies_dir: StudiesDir = DEFAULT_STUDIES_DIR,
    storage: Storage = None,
    why: Annotated[
        bool, typer.Option("--why", help="Also print what the verdict rests on, and what stands in the way.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the verdict, the trials and what failed."""
    from autotune.answer.result import StudyResult
    from autotune.api.studies import studies_at

    opened = studies_at(studies_dir, storage).open(study)
    result = StudyResult(opened)
    if as_json:
        print_document(result)
    else:
        _print_tables(result, opened, why=why)


def _print_tables(result: StudyResult, opened: Study, *, why: bool) -> None:
    from autotune.render.console import console
    from autotune.render.terminal import summary, tables

    # A pipe has no width; wide enough for a whole row there.
    screen = console(240)
    for shown in (*tables(result, width=screen.width), summary(result, why=why)):
        screen.print(shown)
    if result.home is not None:
        where = f"files of the trials on {result.home.host}, in {result.home.folder}"
        screen.print(f"records in {opened.database}; {where}", style="dim")


@app.command()
@with_exit_status
def report(
    study: StudyName,
    output: Annotated[Path, typer.Option("-o", "--output", help="HTML file to write.")] = Path("report.html"),
    studies_dir: StudiesDir = DEFAULT_STUDIES_DIR,
    storage: Storage = None,
) -> None:
    """Write a study with figures as one HTML file.

    It can be read in a browser, printed or sent.
    """
    from autotune.api.studies import studies_at
    from autotune.render.html.page import write_report

    require_report(output)
    opened = studies_at(studies_dir, storage).open(study)
    write_report(opened, output)
    opened.close()
    print_line(f"{output}: {output.stat().st_size / 1000:.0f} kB")


def require_report(path: Path | None) -> None:
    """Raises InputError, before anything is measured, where no report could be written at the end."""
    if path is None:
        return
    from autotune.render.html.page import require_possible

    require_possible(path)
