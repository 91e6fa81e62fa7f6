"""Load that lasts: what is left of the gain when a device is hot."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from autotune.answer.content import Fact, Section
from autotune.answer.format import times
from autotune.study.records import SUSTAINED, SUSTAINED_S, Sustained


class SustainedSection(Section):
    """A line: what one process each gives. The verdict rests on the blocks."""

    place = 15

    @cached_property
    def _measured(self) -> Sustained | None:
        """None where another trial is the answer by now."""
        found = SUSTAINED.read(self.answer)
        best = self.answer.best
        return found if best is not None and found is not None and found.trial == best.number else None

    def facts(self) -> Iterator[Fact]:
        found = self._measured
        if found is not None:
            gained = times(found.untuned / found.best)
            yield "sustained", f"{gained} over {SUSTAINED_S:g} s of calls without a pause (one process each)"

    def document(self) -> dict[str, Any]:
        found = self._measured
        return {"sustained": found and found.model_dump(mode="json")}
