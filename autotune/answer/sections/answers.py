"""How the answer came about: which config was proven when, and by how many blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autotune.answer.content import Fact, Section, Table
from autotune.answer.format import ends, num_blocks, seconds, short_interval, times
from autotune.study.records import AnswerStep
from autotune.tuning.events import AnswerProven, Event, SearchStarted


class AnswersSection(Section):
    """The answers of a study in the order in which they were proven; each stood until the next one."""

    place = 45
    name, title, is_long = "answers", "How the answer came about", True

    @classmethod
    def news(cls, event: Event) -> Iterator[str]:
        match event:
            case AnswerProven():
                step, before = event.step, event.replaced
                better = (
                    "" if before is None else f", better than trial {before.trial} ({times(before.speedup.median)})"
                )
                kept = "the run goes on, Ctrl-C keeps it"
                yield f"proven after {seconds(step.after_s)}: {_found(step)}{better}; {kept}"
            case SearchStarted() if event.answer is not None:
                yield f"proven in an earlier run: {_found(event.answer)}"

    def facts(self) -> Iterator[Fact]:
        told = [
            f"after {seconds(step.after_s)} trial {step.trial}, {times(step.speedup.median)} "
            f"({num_blocks(step.num_blocks)})"
            for step in self.answer.answers
        ]
        if told:
            yield "proven", "; ".join(told)

    def words(self) -> str:
        return "A config is the answer from the moment when it is proven. Only a better one that is proven replaces it."

    def tables(self) -> list[Table]:
        steps = self.answer.answers
        configs = {record.number: self.config(record) for record in self.answer.records}
        rows = [
            (
                *(seconds(step.after_s), str(step.trial)),
                times(step.speedup.median),
                *ends(step.speedup),
                *(str(step.num_blocks), configs[step.trial]),
            )
            for step in steps
        ]
        columns = ("after", "trial", "ratio", "from", "to", "blocks", "config")
        return [Table("Seconds of the run until each answer", columns, rows)] if rows else []

    def document(self) -> dict[str, Any]:
        return {"answers": [step.model_dump() for step in self.answer.answers]}


def _found(step: AnswerStep) -> str:
    return f"trial {step.trial} {short_interval(step.speedup)}, by {num_blocks(step.num_blocks)}"
