"""The command that shows a study: for a terminal, for a script, or to paste."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.app import app, print_document, print_line, with_exit_status
from autotune.cli.flags import AsJson, Storage, StudiesDir, StudyName
from autotune.errors import InputError
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
    full: Annotated[
        bool,
        typer.Option("--full", help="Print every setting of a config, not only what differs from the untuned model."),
    ] = False,
    why: Annotated[
        bool, typer.Option("--why", help="Also print what the verdict rests on, and what stands in the way.")
    ] = False,
    as_csv: Annotated[
        bool, typer.Option("--csv", help="Print the trials as CSV: seconds, bytes, a column for each knob.")
    ] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the verdict and the trials as a Markdown table.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the verdict, the trials and what failed."""
    from autotune.answer.result import StudyResult
    from autotune.api.studies import studies_at
    from autotune.render.terminal import markdown

    if as_csv + as_markdown + as_json > 1:
        raise InputError("--csv, --markdown and --json: give one of them")
    opened = studies_at(studies_dir, storage).open(study)
    result = StudyResult(opened)
    if as_json:
        print_document(result)
    elif as_csv:
        print_line(_csv_text(result))
    elif as_markdown:
        print_line(markdown(result))
    else:
        _print_tables(result, opened, full=full, why=why)


def _print_tables(result: StudyResult, opened: Study, *, full: bool, why: bool) -> None:
    from autotune.render.console import console
    from autotune.render.terminal import summary, tables

    # A pipe has no width; wide enough for a whole row there.
    screen = console(240)
    for shown in (*tables(result, full=full, width=screen.width), summary(result, full=full, why=why)):
        screen.print(shown)
    if result.home is not None:
        where = f"files of the trials on {result.home.host}, in {result.home.folder}"
        screen.print(f"records in {opened.database}; {where}", style="dim")


def _csv_text(result: StudyResult) -> str:
    """A row a trial. A knob that a config does not have is empty."""
    from autotune.answer.sections.trials import trial_row

    rows = [_flat(trial_row(record, result.objective)) for record in result.records]
    written = io.StringIO()
    table = csv.DictWriter(written, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    return written.getvalue().rstrip("\n")


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    config = {f"config.{name}": value for name, value in row.pop("config").items()}
    return {**row, "missed_constraints": "; ".join(row["missed_constraints"]), **config}
