"""The command that writes a study's report as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Protocol

import typer

from autotune.cli.app import app, print_line, say, with_exit_status
from autotune.cli.flags import Storage, StudiesDir, StudyName
from autotune.question.question import DEFAULT_STUDIES_DIR


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


class _Reported(Protocol):
    def report(self, path: Path) -> Path: ...


def write_result(result: _Reported, path: Path | None) -> None:
    """Write the report of a result, where one was asked for, and say so on stderr."""
    if path is not None:
        say(f"report: {result.report(path)}")
