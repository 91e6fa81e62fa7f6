"""The Pareto front of a study with several objectives."""

from __future__ import annotations

from typing import Any

from autotune.answer.content import Section, Table
from autotune.answer.objectives import shown


class ParetoSection(Section):
    """The trials that no other one beats in each objective, the best of each marked."""

    place = 61
    name, title = "pareto", "Pareto front"

    def tables(self) -> list[Table]:
        objectives, front = self.answer.objectives, self.answer.front
        if len(objectives) < 2 or not front:
            return []
        values = [[objective.value(record.measurement) for objective in objectives] for record in front]
        best = [min(column) for column in zip(*values, strict=True)]
        rows = []
        for record, row in zip(front, values, strict=True):
            cells = [
                shown(objective, value) + (" best" if value == least else "     ")
                for objective, value, least in zip(objectives, row, best, strict=True)
            ]
            rows.append((str(record.number), *cells, self.config(record)))
        columns = ("trial", *(objective.name for objective in objectives), "config")
        return [Table("no other trial beats these in each objective", columns, rows)]

    def document(self) -> dict[str, Any]:
        return {
            "front": [
                {
                    "trial": record.number,
                    "config": record.config.root,
                    "values": {
                        objective.name: objective.value(record.measurement) for objective in self.answer.objectives
                    },
                }
                for record in self.answer.front
            ]
        }
