"""What no check looks into: outputs that were not compared, what all inputs have in common, and what was assumed."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.answer.content import Fact, Section


class UncheckedSection(Section):
    """A line for each output, for each way in which the inputs never varied, and for what was assumed."""

    place = 85

    def facts(self) -> Iterator[Fact]:
        best, untuned = self.answer.best, self.answer.untuned
        for output in () if best is None else best.measurement.not_compared:
            yield "unchecked", f"{output}: what is in it was not compared"
        for sentence in self.answer.not_varied:
            yield "unchecked", sentence
        for sentence in () if untuned is None else untuned.measurement.assumed:
            yield "assumed", sentence
