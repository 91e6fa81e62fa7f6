"""What a fleet's command leaves beside its table: one HTML page, and a JUnit file for a CI's page of tests."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from autotune.answer.content import Figure, Intervals, PagePart
from autotune.errors import printable_lines
from autotune.files import write_asked
from autotune.plugins.fleet.row import FAILED, INTERRUPTED, UNCLEAR, Row, notes_of, table_of, worst
from autotune.render.html.page import render, write_page


def headline(rows: Sequence[Row]) -> str:
    """How many there are of each outcome, e.g. `6 models: 4 faster, 1 tie, 1 failed`."""
    outcomes = [row.outcome for row in rows]
    counted = ", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(outcomes))
    return f"{len(rows)} model{'' if len(rows) == 1 else 's'}: {counted or 'none'}"


def write_fleet_page(path: Path, rows: Sequence[Row], what: str) -> Path:
    """Write the page of a command's rows. Raises InputError like `write_page`."""
    return write_page(path, partial(_page, rows, what))


def _page(rows: Sequence[Row], what: str) -> str:
    return render(
        name=what,
        kind="fleet report",
        about=datetime.now(UTC).strftime("%Y-%m-%d"),
        headline=headline(rows),
        wins=worst(row.exit_status for row in rows) == 0,
        lines=notes_of(rows),
        configs=[],
        commands=[],
        figures=_figures(rows),
        parts=[PagePart("fleet", "All models", "", [table_of(rows)])],
        origin="Made by autotune from its studies and exported files.",
    )


def _figures(rows: Sequence[Row]) -> list[Figure]:
    labels = list(dict.fromkeys(label for row in rows for label, each in row.speedups.items() if each is not None))
    return [
        Figure(
            name=label.replace(" ", "-"),
            title=label[:1].upper() + label[1:],
            words="Times as good, with the 98 % interval, a row for each model.",
            plot=Intervals([(row.name, each, each.low > 1) for row in rows if (each := row.speedups.get(label))]),
            table=table_of([row for row in rows if row.speedups.get(label) is not None]),
        )
        for label in labels
    ]


def write_junit(path: Path, rows: Sequence[Row], what: str) -> Path:
    """Write a test for each row: what is wrong or lost fails, what could not be measured is an error, and what is
    unclear is skipped. Raises InputError where it cannot be written."""
    kinds = {FAILED: "failure", UNCLEAR: "skipped", INTERRUPTED: "skipped"}
    suite = ET.Element("testsuite", name=what, timestamp=datetime.now(UTC).isoformat(timespec="seconds"))
    numbers = {"tests": len(rows), "failures": 0, "errors": 0, "skipped": 0}
    for row in rows:
        test = ET.SubElement(
            suite, "testcase", classname=what.replace(" ", "."), name=_text(row.name), time=f"{row.seconds:.3f}"
        )
        if row.exit_status:
            kind = kinds.get(row.exit_status, "error")
            numbers[{"failure": "failures", "error": "errors"}.get(kind, kind)] += 1
            ET.SubElement(test, kind, message=_text(f"{row.outcome}: {row.why}"), type=row.outcome)
        said = table_of([row])
        cells = [*zip(said.columns, said.rows[0], strict=True), *(("note", why) for _, why in notes_of([row]))]
        ET.SubElement(test, "system-out").text = _text("\n".join(f"{name}: {cell}" for name, cell in cells))
    suite.attrib.update({name: str(number) for name, number in numbers.items()})
    suite.set("time", f"{sum(row.seconds for row in rows):.3f}")
    root = ET.Element("testsuites")
    root.append(suite)
    write_asked(path, ET.tostring(root, encoding="unicode", xml_declaration=True))
    return path


def _text(text: str) -> str:
    """Foreign text without the characters that XML cannot hold."""
    return printable_lines(text)
