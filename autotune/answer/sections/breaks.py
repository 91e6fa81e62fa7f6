"""Graph breaks and recompiles of the answer, or where that is not compiled of the framework's default compile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

from autotune.answer.content import Fact, Section, Table
from autotune.answer.findings import KINDS, finding_row, one_line
from autotune.measure.findings import Finding, findings_of, ranked

_MOST_SHOWN = 5
_COLUMNS = ("finding and reason", "location and line", "cost", "fix")


class BreaksSection(Section):
    """The most expensive first."""

    place = 80
    name, title, is_long = "breaks", "Graph breaks and recompiles", True

    @cached_property
    def _findings(self) -> list[Finding]:
        best = self.answer.best
        for record in (*([] if best is None else [best]), *self.answer.measured):
            if record.measurement.diagnosis.compiled is not False:
                return ranked(findings_of(record.measurement.diagnosis))
        return []

    def facts(self) -> Iterator[Fact]:
        for finding in self._findings[:_MOST_SHOWN]:
            yield KINDS[finding.kind], one_line(finding)

    def words(self) -> str:
        of_whom = "Of the best config if it compiles, else of the first trial that does."
        return f"{of_whom} `diagnose` measures what each costs."

    def tables(self) -> list[Table]:
        return findings_tables(self._findings, self.answer.manifest.workload.framework)


def findings_tables(findings: Sequence[Finding], framework: str) -> list[Table]:
    """Graph breaks and recompiles, one a row; no table without any."""
    rows = [finding_row(finding, framework) for finding in findings]
    return [Table("Each finding", _COLUMNS, rows, frozenset(_COLUMNS))] if rows else []
