"""The second baseline: what of a gain is had for nothing, such as by keeping memory in the process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from autotune.answer.content import Fact, Section
from autotune.answer.format import interval, times
from autotune.answer.objectives import shown
from autotune.answer.result import StudyResult
from autotune.errors import marked
from autotune.measure.statistics import COMPILED


def of_it(answer: StudyResult) -> str:
    """The end of a headline: what of the gain costs nothing, or what would be gained so; empty where that is no more
    than the noise, or the answer itself."""
    second, figures = answer.second, answer.second_figures
    is_answer = second is not None and answer.best is not None and answer.best.config == second.config
    if second is None or figures is None or not figures.is_beyond_noise or is_answer:
        return ""
    alone, gained = f"by {second.deed} alone", times(figures.speedup.median)
    if answer.verdict not in COMPILED:
        return f"; {gained} {alone}"
    is_all = answer.speedup is not None and answer.speedup.median <= figures.speedup.median
    return f", all of it {alone} ({gained})" if is_all else f", {gained} of it {alone}"


class SecondBaselineSection(Section):
    """The untuned model with what an informed user would set for it, beside the untuned model as it is."""

    place = 12

    def facts(self) -> Iterator[Fact]:
        second, figures = self.answer.second, self.answer.second_figures
        if second is None or figures is None or not figures.is_beyond_noise:
            return
        gained = f"{shown(self.answer.objective, figures.value)} by {second.deed} alone, {interval(figures.speedup)}"
        yield "for nothing", f"{gained}: {second.by_hand}, or {marked('process_settings', True)}"

    def document(self) -> dict[str, Any]:
        figures = self.answer.second_figures
        return {"second_baseline": figures and figures.model_dump(mode="json")}
