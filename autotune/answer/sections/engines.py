"""Engines beside the framework: what ONNX Runtime, for one, takes for this model, beside the answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from autotune.answer.content import Fact, Section, Table
from autotune.answer.format import times
from autotune.answer.objectives import shown
from autotune.command_line import install
from autotune.study.records import ENGINE_BLOCK, EngineBlock, EngineFigure
from autotune.tuning.events import EnginesMissing, Event


class EnginesSection(Section):
    """One sentence beside the verdict, which it does not change; a table on a page."""

    place = 14
    name, title = "engines", "Other engines"
    is_long = True

    @classmethod
    def news(cls, event: Event) -> Iterator[str]:
        if isinstance(event, EnginesMissing):
            what = " and ".join(event.titles)
            yield f"engines     {what} could be timed beside the answer: {install('backends')}"

    @cached_property
    def _block(self) -> EngineBlock | None:
        return ENGINE_BLOCK.read(self.answer)

    @property
    def _figures(self) -> Sequence[EngineFigure]:
        return () if self._block is None else self._block.figures

    def facts(self) -> Iterator[Fact]:
        block = self._block
        if block is None:
            return
        timed = [f"{one.title} runs this model in {self._shown(one.value)}" for one in self._figures if one.value]
        if timed and block.untuned is not None:
            best = [] if block.best is None else [f"trial {block.trial} in {self._shown(block.best)}"]
            yield "engines", ", ".join([*timed, *best, f"the untuned model in {self._shown(block.untuned)}"])
        for one in self._figures:
            if one.value is None:
                yield "engines", f"{one.title} was not timed: {one.problem}"

    def words(self) -> str:
        return (
            "The exported model in engines that were not tuned, with the same checks of the outputs, in one block of "
            "fresh processes. The verdict does not depend on it."
        )

    def tables(self) -> list[Table]:
        block = self._block
        if block is None:
            return []
        rows = [self._row("untuned", block.untuned, "")]
        rows += [] if block.trial is None else [self._row(f"trial {block.trial}", block.best, "")]
        rows += [self._row(f"{one.title} {one.release}", one.value, one.problem or "") for one in self._figures]
        columns = ("who", self.answer.objective.quantity, "times as good as untuned", "why not")
        return [Table("Engines, the answer and the untuned model", columns, rows, frozenset({"who", "why not"}))]

    def document(self) -> dict[str, Any]:
        block = self._block
        return {"engines": block and block.model_dump(mode="json")}

    def _row(self, who: str, value: float | None, why: str) -> tuple[str, ...]:
        block = self._block
        if value is None or block is None or block.untuned is None:
            return who, "", "", why
        return who, self._shown(value), times(block.untuned / value), why

    def _shown(self, value: float | None) -> str:
        return "" if value is None else shown(self.answer.objective, value)
