"""Generated text: tokens a second, the time to the first token and for each further one; and what compiled again."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

from autotune.answer.content import Fact, Section, Table
from autotune.answer.format import amount, count, seconds
from autotune.measure.generated import Generated
from autotune.measure.measurement import Measurement
from autotune.study.records import TrialRecord
from autotune.workload.kinds.text import Text

_LIBRARYS_OWN = {"cache": "transformers"}
"""Configs in which the library that generates compiles by itself."""


class GenerationSection(Section):
    """The untuned model beside the answer, and beside the best of what Hugging Face's own settings give."""

    place = 13
    name, title = "generation", "Generated text"

    def facts(self) -> Iterator[Fact]:
        for name, measured in self._compared.items():
            yield "tokens", f"{name}: {_figures(measured)}"
        made = list(self._compared.values())
        again = None if not made else _generated(made[-1]).num_recompiles
        if again:
            graphs = "1 graph was" if again == 1 else f"{count(again)} graphs were"
            yield "recompiles", f"{graphs} compiled in passes after the first: further ones may compile as well"

    @cached_property
    def _compared(self) -> dict[str, Measurement]:
        answer = self.answer
        records: dict[str, TrialRecord | None] = {"untuned": answer.untuned}
        own = [record for record in answer.measured if record.config.matches(_LIBRARYS_OWN)]
        records["Hugging Face's own"] = min(own, key=lambda one: answer.objective.value(one.measurement), default=None)
        records["tuned"] = None if answer.best == answer.untuned else answer.best
        return {
            name: record.measurement
            for name, record in records.items()
            if record is not None and record.measurement.generated is not None
        }

    def words(self) -> str:
        return "Medians over passes, by one process each. A pass continues each prompt once."

    def tables(self) -> list[Table]:
        if not self._compared:
            return []
        made = _generated(next(iter(self._compared.values())))
        lengths = ", ".join(map(str, made.lengths))
        batch = "" if made.batch == 1 else f", {made.batch} at a time"
        return [
            Table(
                f"prompts of {lengths} tokens, each continued by {made.new_tokens}{batch}:",
                ("model", "tokens/s", "first token", "further ones", "a pass", "first pass", "graphs", "later"),
                [self._row(name, measured) for name, measured in self._compared.items()],
                frozenset({"model"}),
                ["graphs: compiled in the first pass; later: compiled in passes after it"],
            )
        ]

    def _row(self, name: str, measured: Measurement) -> tuple[str, ...]:
        made = _generated(measured)
        return (
            name,
            amount(measured.throughput, ""),
            seconds(measured.ttft_s),
            seconds(measured.tpot_s),
            seconds(measured.latency.p50),
            seconds(sum(made.cold_s)),
            count(None if made.cold is None else made.cold.num_graphs),
            count(made.num_recompiles),
        )

    def document(self) -> dict[str, Any]:
        """Studies of other tasks have no such key."""
        if self.answer.manifest.workload.task != Text.task:
            return {}
        return {"generation": {name: _document(measured) for name, measured in self._compared.items()}}


def _generated(measured: Measurement) -> Generated:
    assert measured.generated is not None
    return measured.generated


def _figures(measured: Measurement) -> str:
    rate = amount(measured.throughput, "")
    return f"{rate} a second; the first after {seconds(measured.ttft_s)}, each further one {seconds(measured.tpot_s)}"


def _document(measured: Measurement) -> dict[str, Any]:
    made = _generated(measured)
    return {
        "lengths": made.lengths,
        "new_tokens": made.new_tokens,
        "batch": made.batch,
        "tokens_per_second": measured.throughput,
        "ttft_s": measured.ttft_s,
        "tpot_s": measured.tpot_s,
        "cold_s": sum(made.cold_s),
        "compilations": None if made.cold is None else made.cold.num_graphs,
        "recompiles": made.num_recompiles,
    }
