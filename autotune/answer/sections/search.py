"""The search: how far it went, why no further, and each trial in its order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from autotune.answer.content import Curves, Fact, Figure, PlotAxis, Section, Series, Table
from autotune.answer.format import as_budget, promise, seconds, times
from autotune.answer.objectives import as_good_as, shown, stopped
from autotune.errors import marked
from autotune.study.records import StopReason, TrialRecord
from autotune.study.study import Study
from autotune.tuning.events import BudgetShort, Event, RoomShort, SearchEnded

LONG_CALL_S = 1.0
"""Seconds of an untuned call of which a trial consists."""
LEFT_SHARE = 0.1
"""Share of a run's time that was left: from here on `show` says so."""


class SearchSection(Section):
    """How many configs were tried, and what each of them brought."""

    place = 50

    @classmethod
    def news(cls, event: Event) -> Iterator[str]:
        if isinstance(event, SearchEnded):
            why = stopped(event.reason) if event.forecast is None else promise(event.forecast)
            yield f"the search ends: {why}"
        elif isinstance(event, BudgetShort):
            call = "" if event.call_s is None else f"a call takes {seconds(event.call_s)} here: "
            needed = f"{call}a proof needs about {as_budget(event.needed_s)}, and the run has {seconds(event.wall_s)}"
            smaller = "smaller inputs, such as a smaller batch, or " if (event.call_s or 0.0) >= LONG_CALL_S else ""
            yield f"short       {needed}; give {smaller}{marked('budget', as_budget(event.needed_s))}"

        elif isinstance(event, RoomShort):
            room = event.room
            how = f"at most {room.num_processes} at a time" if room.holds_block else "its processes run in turn"
            yield f"memory      {room}: {how}"

    def facts(self) -> Iterator[Fact]:
        answer = self.answer
        of_all = "" if answer.space.num_configs is None else f" of {answer.space.num_configs}"
        if answer.stop_reason is None:
            if answer.verdict is not None:
                yield "searched", f"{answer.num_tried}{of_all} configs so far; `resume` goes on"
            return
        more = "; `resume` goes on" if answer.stop_reason is StopReason.TIME else ""
        why = stopped(answer.stop_reason) if answer.early_stop is None else promise(answer.early_stop)
        yield "searched", f"{answer.num_tried}{of_all} configs: {why}{more}{self._left()}"

    def _left(self) -> str:
        """How much of the run's time was not needed."""
        budget, confirmation = Study.budget.read(self.answer), self.answer.confirmation
        if budget is None or budget.wall_s is None or confirmation is None or confirmation.left_s is None:
            return ""
        is_worth_a_word = confirmation.left_s > LEFT_SHARE * budget.wall_s
        return f"; {seconds(confirmation.left_s)} of {seconds(budget.wall_s)} were left" if is_worth_a_word else ""

    def document(self) -> dict[str, Any]:
        early, reason = self.answer.early_stop, self.answer.stop_reason
        return {"stop_reason": reason and reason.value, "early_stop": early and early.model_dump(exclude={"rule"})}

    def figures(self) -> Iterator[Figure]:
        answer, objective = self.answer, self.answer.objective
        if answer.untuned is None:
            return
        start = objective.value(answer.untuned.measurement)
        values = {record.number: objective.value(record.measurement) for record in answer.measured}
        ratio = {number: start / value for number, value in values.items() if math.isfinite(value)}
        plot = Curves(
            PlotAxis("trial", lambda value: f"{value:g}", is_whole=True), PlotAxis("", lambda value: f"{value:.3g}x"),
            self._series(ratio, start), 3.4, "below", level=1.0,
        )  # fmt: skip
        words = (
            f"Times {as_good_as(objective)} the untuned model, by one process each. These figures choose the "
            "finalists; the verdict rests on the comparison in fresh processes."
        )
        rows = []
        for record in answer.records:
            n = record.number
            told = (shown(objective, values[n]), times(ratio[n])) if n in ratio else ("-", "-")
            rows.append((str(n), record.state, *told))
        table = Table("The trials in order", ("trial", "state", objective.name, "ratio"), rows, frozenset({"state"}))
        yield Figure("search", "The search", words, plot, table)

    def _series(self, ratio: dict[int, float], start: float) -> list[Series]:
        """The best so far as a step, each kind of trial, the untuned model again; failures below."""

        def numbers(records: list[TrialRecord], state: str) -> list[int]:
            return [record.number for record in records if record.state == state]

        def ratios(numbers: list[int]) -> list[float]:
            return [ratio[number] for number in numbers]

        known = [record for record in self.answer.records if record.number in ratio]
        good, broken = numbers(known, "measured"), numbers(known, "infeasible")
        busy = numbers([record for record in known if record.disturbed is not None], "measured")
        calm = [number for number in good if number not in busy]
        failed = numbers(self.answer.records, "failed")
        is_timed = self.answer.objective.quantity == "latency"
        checks = self.answer.drift_checks if is_timed else []
        found = [
            Series(good, list(accumulate(ratios(good), max)), "best", "best so far", "-", is_stepped=True),
            Series(calm, ratios(calm), "other", "trial", marker="o"),
            Series(busy, ratios(busy), "muted", "disturbed trial", marker="o", is_filled=False),
            Series(broken, ratios(broken), "bad", "breaks a constraint", marker="v", is_filled=False),
            Series(
                [check.after + 0.5 for check in checks], [start / check.latency_s for check in checks], "untuned",
                "untuned model again", marker="d",
            ),
            Series(failed, [0.03] * len(failed), "bad", "failed", marker="x", is_at_bottom=True),
        ]  # fmt: skip
        return [series for series in found if series.x]
