"""The verdict: what to use, how much better it is, and after how many calls it has paid off."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from autotune.answer.content import Curves, Fact, Figure, Intervals, PlotAxis, Section, Series, Table
from autotune.answer.export import figures_of
from autotune.answer.format import count, ends, misses, percent, seconds, times
from autotune.answer.objectives import as_good_as, described, faster, gain, how_sure, ratio, to_be_better
from autotune.answer.result import StudyResult
from autotune.answer.sections.second_baseline import of_it
from autotune.measure.statistics import COMPILED, MARGIN, Speedup, Verdict
from autotune.study.records import Confirmation, TrialRecord, closest_miss
from autotune.tuned.cache_file import Artifact


def headline(answer: StudyResult) -> str:
    """The verdict in one sentence."""
    if answer.verdict is None:
        return "no verdict yet: nothing is proven in fresh processes"
    if answer.verdict is Verdict.INFEASIBLE:
        return _infeasible(answer)
    if answer.verdict is Verdict.FEASIBLE:
        return _feasible(answer)
    if answer.verdict is Verdict.FASTER and answer.speedup is not None:
        return faster(answer.objective, answer.speedup) + of_it(answer) + _uncompared(answer)
    return _why_untuned(answer) + of_it(answer)


def _feasible(answer: StudyResult) -> str:
    """The untuned model is out of the question, so that the best of the others is the answer."""
    assert answer.best is not None
    compared = f"; {gain(answer.objective, answer.speedup)} against it" if answer.speedup else ""
    return f"feasible: trial {answer.best.number} keeps every constraint, the untuned model does not{compared}"


def _infeasible(answer: StudyResult) -> str:
    """Nothing can be used: the trial that comes closest to what was asked for."""
    closest = closest_miss(answer.records)
    if closest is None:
        return "infeasible: no config works"
    tried = f"none of the {answer.num_tried} configs that were tried keeps every constraint"
    return f"infeasible: {tried}; closest is trial {closest.number}: {misses(closest)}"


def _uncompared(answer: StudyResult) -> str:
    """How much of what the winner gives nobody has looked into."""
    number = 0 if answer.best is None else len(answer.best.measurement.not_compared)
    return f", {number} output{'' if number == 1 else 's'} not compared" if number else ""


def _why_untuned(answer: StudyResult) -> str:
    objective, confirmation = answer.objective, answer.confirmation
    if answer.verdict is Verdict.TIE:
        better = to_be_better(objective, f"{confirmation.margin if confirmation else MARGIN:.1%}")
        return f"tie: {_nothing_tried(answer)} is shown to {better} the untuned model; keep it untuned"
    if answer.verdict is Verdict.UNDECIDED:
        return f"undecided: {_best_known(answer)}; the model is kept untuned"
    if objective.quantity == "latency":
        return f"keep untuned: {_nothing_tried(answer)} is faster than leaving the model as it is"
    return f"keep untuned: {_nothing_tried(answer)} is shown to {to_be_better(objective)} leaving the model as it is"


def _best_known(answer: StudyResult) -> str:
    """What came closest as far as it was compared, and why no more is known."""
    confirmation = answer.confirmation
    assert confirmation is not None, "there is a verdict"
    noise = "this machine is too noisy to tell"
    why = confirmation.why or ("the time did not hold all of the comparison" if confirmation.cut_short else noise)
    if answer.speedup is not None:
        sure = how_sure(confirmation)
        looks = f"{ratio(answer.objective, answer.speedup)}, {sure}" if sure else gain(answer.objective, answer.speedup)
        return f"trial {confirmation.candidate} looks {looks}; {why}"
    candidate, value = answer.candidate, answer.objective.value
    if candidate is None or answer.untuned is None:
        return why
    seen = value(answer.untuned.measurement) / value(candidate.measurement)
    by_trial = ratio(answer.objective, Speedup(median=seen, low=seen, high=seen))
    return f"trial {candidate.number} looks {by_trial} by its trial alone, unconfirmed; {why}"


def _nothing_tried(answer: StudyResult) -> str:
    """A search says nothing about configs that it did not try."""
    untuned = None if answer.untuned is None else answer.untuned.config
    number = sum(record.counts and record.config != untuned for record in answer.records)
    return f"nothing else that was tried ({count(number)} config{'' if number == 1 else 's'})"


class VerdictSection(Section):
    """The answer with its figures, each finalist, and when it pays off."""

    place = 10

    def facts(self) -> Iterator[Fact]:
        answer, confirmation = self.answer, self.answer.confirmation
        if answer.best is not None:
            yield "config", f"trial {answer.best.number}: {self.config(answer.best)}"
        if confirmation is None:
            return
        if answer.speedup is not None:
            if answer.verdict in COMPILED:
                yield from self._confirmed(confirmation)
            else:
                yield "closest", f"trial {confirmation.candidate}: {gain(answer.objective, answer.speedup)}"
        configs = {record.number: self.config(record) for record in answer.records}
        for number, speedup in confirmation.compared.items():
            if number != confirmation.candidate:
                yield "also", f"trial {number}: {gain(answer.objective, speedup)}  {configs[number]}"

    def _confirmed(self, confirmation: Confirmation) -> Iterator[Fact]:
        """The objective's values in the blocks' fresh processes; the rest as the search's trial measured it."""
        answer = self.answer
        assert answer.best is not None
        for name, record, value in zip(
            ("untuned", "tuned"), (answer.untuned, answer.best), confirmation.values, strict=True
        ):
            assert record is not None
            yield name, described(answer.objective, value, record)
        warm = "" if answer.objective.compiles_cold else f", {seconds(confirmation.compile_warm_s)} with caches"
        shipped = "" if answer.artifact is None else _shipped(answer.artifact)
        calls = answer.break_even_calls
        pays = "never breaks even" if calls is None else f"breaks even after {_calls(calls)}"
        yield "compile", f"{seconds(answer.best.measurement.compile_s)} cold{warm}{shipped}; {pays}"

    def figures(self) -> Iterator[Figure]:
        confirmation, best, untuned = self.answer.confirmation, self.answer.best, self.answer.untuned
        if confirmation is None:
            return
        if confirmation.compared:
            yield self._finalists(confirmation)
        if best is not None and untuned is not None and best.number != untuned.number:
            yield self._break_even(best, confirmation)

    def _finalists(self, confirmation: Confirmation) -> Figure:
        """Every finalist's ratio with its interval, and the band of what is no difference here."""
        configs = {record.number: self.config(record) for record in self.answer.records}
        ordered = sorted(confirmation.compared.items(), key=lambda item: -item[1].median)
        noise = 0.0 if self.answer.noise_floor is None else self.answer.noise_floor.spread
        words = (
            f"Times {as_good_as(self.answer.objective)} the untuned model (the line at 1), with 98 % intervals that "
            f"hold for all of them at once. Band: two processes of the untuned model differ by {percent(noise)} here. "
            f"Dashed: the whole interval has to lie beyond {1 + confirmation.margin:.3g}x."
        )
        table = Table(
            "The finalists against the untuned model, in fresh processes side by side",
            ("trial", "ratio", "from", "to", "blocks", "config"),
            [(str(n), times(x.median), *ends(x), str(len(confirmation.pairs_of(n))), configs[n]) for n, x in ordered],
        )
        rows = [(f"trial {n}: {configs[n]}", speedup, n == confirmation.candidate) for n, speedup in ordered]
        return Figure("finalists", "Finalists", words, Intervals(rows, noise, confirmation.margin), table)

    def _break_even(self, best: TrialRecord, confirmation: Confirmation) -> Figure:
        """Total time against the number of calls: untuned, tuned with a cold compile, tuned with caches."""
        untuned_s, tuned_s = self.answer.calls_s(best)
        starts_s = self._starts_s(best, confirmation)
        crossing = self.answer.break_even_calls
        last = math.ceil(math.log10(max(1000, 20 * (crossing or 1))))
        calls = [10 ** (last * n / 199) for n in range(200)]
        series = [Series(calls, [n * untuned_s for n in calls], "untuned", "untuned", "-")]
        for line, (name, start_s) in zip(("-", "--", ":"), starts_s.items(), strict=False):
            series.append(Series(calls, [start_s + n * tuned_s for n in calls], "best", name, line))  # type: ignore[arg-type]
        plot = Curves(
            PlotAxis("calls", lambda value: f"{value:,.0f}", is_log=True, limits=(1, 10**last)),
            PlotAxis("", seconds, is_log=True), series, 3.3, "upper left",
            crossing=(crossing, _calls(crossing)) if crossing else None,
        )  # fmt: skip
        if crossing is None:
            words = (
                "Time of so many calls, compiling included. A call under the config saves no time: it never pays off."
            )
        elif crossing == 0:
            words = "Time of so many calls. The config compiles nothing: it pays off at once."
        else:
            words = (
                f"Time of so many calls, compiling included. After {_calls(crossing)} ({seconds(crossing * untuned_s)}"
                " untuned) the config has paid off its cold compile."
            )
        points = sorted({*(10**n for n in range(last + 1)), *([crossing] if crossing else [])})
        table = Table(
            "Time of so many calls, compiling included",
            ("calls", "untuned", *starts_s),
            [
                (count(n), *map(seconds, (n * untuned_s, *(start_s + n * tuned_s for start_s in starts_s.values()))))
                for n in points
            ],
        )
        return Figure("break-even", "When it pays off", words, plot, table)

    def _starts_s(self, best: TrialRecord, confirmation: Confirmation) -> dict[str, float]:
        """Way to start -> seconds of compiling."""
        found = {"tuned, compiled cold": max(best.measurement.compile_s, 0.0)}
        if confirmation.compile_warm_s is not None and best.number == confirmation.candidate:
            found["tuned, with caches"] = max(confirmation.compile_warm_s, 0.0)
        if self.answer.artifact is not None:
            found["tuned, exported cache"] = self.answer.artifact.compile_s
        return found

    def document(self) -> dict[str, Any]:
        answer = self.answer
        return {
            "verdict": answer.verdict and answer.verdict.value,
            "best": _figures(answer.best),
            "baseline": _figures(answer.untuned),
            "speedup": answer.speedup and answer.speedup.model_dump(),
            "break_even_calls": answer.break_even_calls,
            "artifact": answer.artifact and answer.artifact.model_dump(mode="json"),
        }


def _shipped(artifact: Artifact) -> str:
    slower = f" (its calls take {times(artifact.calls_ratio or 1)} as long)" if artifact.is_slower else ""
    return f", {seconds(artifact.compile_s)} with the exported artifact{slower}"


def _calls(number: int) -> str:
    return "1 call" if number == 1 else f"{count(number)} calls"


def _figures(record: TrialRecord | None) -> dict[str, Any] | None:
    if record is None:
        return None
    return {**figures_of(record).model_dump(mode="json"), "config": record.config.root}
