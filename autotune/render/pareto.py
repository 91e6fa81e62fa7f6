"""The Pareto front of a study with several objectives, as a table."""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from autotune.answer.configs import config_text
from autotune.answer.objectives import shown
from autotune.answer.result import StudyResult


def front_table(answer: StudyResult, *, full: bool = False) -> Group | None:
    """The trials that no other one beats in each objective, the best of each marked; None for a single objective."""
    if len(answer.objectives) < 2 or not answer.front:
        return None
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("", *(each.name for each in answer.objectives)):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("config")
    rows = [[each.value(record.measurement) for each in answer.objectives] for record in answer.front]
    best = [min(column) for column in zip(*rows, strict=True)]
    for record, row in zip(answer.front, rows, strict=True):
        cells = [
            shown(objective, value) + (" best" if value == least else "     ")
            for objective, value, least in zip(answer.objectives, row, best, strict=True)
        ]
        table.add_row(str(record.number), *cells, config_text(record.config, answer.space, full=full))
    # A title of the table would be wrapped where the table is narrow.
    return Group(Text("no other trial beats these in each objective", style="italic"), table)
