"""Effects of the knobs: on the program that ran, and on the objective in pairs of trials that differ in one knob."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from autotune.answer.content import Fact, Figure, Intervals, Section, Table
from autotune.answer.explain import Influence, explain
from autotune.answer.format import times
from autotune.measure.statistics import Speedup


class EffectsSection(Section):
    """Knobs without effect, and what each of the others did."""

    place = 60

    def facts(self) -> Iterator[Fact]:
        idle = [effect.knob for effect in self.answer.effects if effect.verdict == "no effect"]
        if idle:
            yield "no effect", f"here: {', '.join(idle)} (the same program ran with every value)"

    def document(self) -> dict[str, Any]:
        return {"effects": [{**asdict(effect), "verdict": effect.verdict} for effect in self.answer.effects]}

    def figures(self) -> Iterator[Figure]:
        told = explain(self.answer)
        if told is None or not told.effects:
            return
        words = (
            "Ratio of speeds in pairs of trials that differ in this one knob. Filled: larger than the noise. Hollow: "
            "cannot be told from it."
        )
        table = Table(
            "The effect of one value of a knob over another",
            ("knob", "from", "to", "ratio", "at least", "at most", "pairs", "measured", "larger than noise"),
            [_row(effect) for effect in told.effects],
            texts=frozenset({"knob", "from", "to", "measured"}),
        )
        rows = [
            (f"{effect.knob}: {effect.slower} → {effect.faster}", _middle(effect), effect.is_significant)
            for effect in told.effects
        ]
        yield Figure("knobs", "Effect of each knob", words, Intervals(rows), table)


def _row(effect: Influence) -> tuple[str, ...]:
    middle = _middle(effect)
    return (
        *(effect.knob, str(effect.slower), str(effect.faster)),
        *map(times, (middle.median, middle.low, middle.high)),
        *(str(len(effect.pairs)), "side by side" if effect.confirmed else "in the search"),
        "yes" if effect.is_significant else "no",
    )


def _middle(effect: Influence) -> Speedup:
    """The medians over the pairs."""
    return Speedup(
        median=effect.median,
        low=statistics.median(pair.low for pair in effect.pairs),
        high=statistics.median(pair.high for pair in effect.pairs),
    )
