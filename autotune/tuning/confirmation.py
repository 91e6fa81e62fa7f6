"""The confirmation: finalists, the framework's default and the untuned model, side by side; and the verdict."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.measure.device_state import CLOCK_DRIFT, mean_of_known
from autotune.measure.measurement import Measurement, Reason
from autotune.measure.objective import Objective
from autotune.measure.statistics import ALIKE, MARGIN, Comparison, Verdict, margin_above, verdict_of
from autotune.study.equivalence import program_of, simplicity
from autotune.study.records import Confirmation, StopReason, TrialRecord, why_unreliable
from autotune.study.study import Study
from autotune.tuning.attempts import UNTUNED_ATTEMPTS
from autotune.tuning.blocks import BlockedRun, Contestant, blocked_run
from autotune.tuning.cache_store import CacheStore
from autotune.tuning.estimate import confirmation_times
from autotune.tuning.events import BlockMeasured, ConfirmationLooked, ConfirmationStarted
from autotune.tuning.finalists import EQUALLY_FAST, by_importance, candidates_among, uncertainty_of
from autotune.tuning.pruning import without_idle_settings
from autotune.tuning.session import Session

OUT_OF_REACH = 0.10
"""A best config this much slower than the untuned model in the search need not be compared with it again."""
MAX_CONTESTS = 3
"""When every contestant fails in a fresh process, the next best ones are tried, but not for ever."""
SAFETY = 1.25
"""A confirmation is expected to take so many times what its parts took in the search."""
_NEXT_BLOCK = "the confirmation's next block"
CONFIRMATION_SHARE = 0.5
"""Share of a run's time that is kept at most for a confirmation of more than one finalist."""


def confirm(session: Session) -> Confirmation:
    """Compare the best configs of the search with the untuned model in fresh processes. Raises HarnessError."""
    study = session.study
    feasible = [record for record in study.records() if record.state == "measured"]
    if not feasible:
        return Confirmation(verdict=Verdict.INFEASIBLE, num_trials=study.num_recorded())
    untuned = study.untuned_record()
    assert untuned is not None, "the search does not end without it"
    candidates = candidates_among(feasible, untuned, study.manifest.space)
    finalists = _Finalists(session, untuned, without_idle_settings(candidates, study.manifest, EQUALLY_FAST))
    if not finalists.candidates:
        if not any(record.counts and record.config != untuned.config for record in study.records()):
            return finalists.untried()
        others = [record for record in feasible if record.config != untuned.config]
        aliases = "every other config that was measured is the untuned model under another name: the same program runs"
        return finalists.without_winner(aliases if others else "no other config gave a measurement")
    reach = max(OUT_OF_REACH, finalists.uncertainty)
    if not untuned.violations and finalists.best() > (1 + reach) * session.value(untuned.measurement):
        return finalists.without_winner(f"no other config came within {reach:.0%} of the untuned model")
    for _ in range(MAX_CONTESTS):
        confirmation = finalists.compare()
        if confirmation is not None:
            return confirmation
    return finalists.without_winner("none is left")


def likely_contestants(session: Session) -> list[TrialRecord]:
    """Who would take part in a confirmation held now, the untuned model first; it stands for another one too where
    there is none yet.

    In a run with a time budget no more than fits into the part of it that a confirmation may take.
    """
    untuned = session.study.untuned_record()
    assert untuned is not None, "it is the first trial"
    feasible = [record for record in session.study.records() if record.state == "measured"]
    candidates = candidates_among(feasible, untuned, session.study.manifest.space)
    if not candidates:
        return [untuned] * 2
    likely = without_idle_settings(candidates, session.study.manifest, EQUALLY_FAST)
    finalists = _Finalists(session, untuned, likely)
    part_s = CONFIRMATION_SHARE * (session.budget.wall_s or math.inf)
    chosen = finalists.that_fit(finalists.by_importance(), part_s) or finalists.by_importance()[:1]
    return [untuned, *chosen]


def expected_s(session: Session, contestants: Sequence[TrialRecord]) -> float:
    """Seconds that a confirmation of these, the untuned model first, is expected to take until its first look, to be on
    the safe side."""
    plan = session.budget.confirmation.fit_for(session.objective)
    floor, caches = session.study.noise_floor, session.caches
    times = confirmation_times(contestants, floor, session.objective, session.budget, caches.holds)
    return SAFETY * times.of(plan.first_look)


@dataclass
class _Finalists:
    """Who may still win. `candidates` are measured, keep every constraint, and run a program each."""

    session: Session
    untuned: TrialRecord
    candidates: list[TrialRecord]
    notes: list[str] = field(default_factory=list)
    were_left_out: bool = False

    @property
    def uncertainty(self) -> float:
        return uncertainty_of(self.session.study, self.untuned)

    def best(self) -> float:
        return min(self._value(record) for record in self.candidates)

    def by_importance(self) -> list[TrialRecord]:
        """Whom to compare: the finalists, and where there are several objectives the best in each other one."""
        study = self.session.study
        chosen = by_importance(study, self.candidates, self.uncertainty, self._value)
        others = [_best_in(objective, self.candidates) for objective in study.manifest.objectives[1:]]
        return list({record.number: record for record in [*chosen, *others]}.values())

    def that_fit(self, chosen: Sequence[TrialRecord], left_s: float) -> list[TrialRecord]:
        """As many of them as can be compared in this time, the more important ones first."""
        fitting: list[TrialRecord] = []
        for record in chosen:
            more = [*fitting, record]
            if expected_s(self.session, [self.untuned, *more]) <= left_s:
                fitting = more
        return fitting

    def compare(self) -> Confirmation | None:
        """The verdict; None if all who took part failed, which takes them out of the field."""
        if not self.candidates:
            return None
        wanted = self.by_importance()
        chosen = self.that_fit(wanted, SAFETY * self.session.deadline.left_s())
        left_out = [record for record in wanted if record not in chosen]
        if left_out:
            self.were_left_out = True
            names = ", ".join(f"trial {record.number}" for record in left_out)
            self.notes.append(f"no time to compare {names}")
        if chosen:
            return self._compare(sorted(chosen, key=self._value))
        needed_s = min(expected_s(self.session, [self.untuned, record]) for record in wanted) / SAFETY
        return self._out_of_time(f"the confirmation, which takes some {math.ceil(needed_s)} s,")

    def _compare(self, chosen: list[TrialRecord]) -> Confirmation | None:
        session = self.session
        plan = session.budget.confirmation
        folder = session.study.folder / "confirm"
        entries = [("untuned", self.untuned.number, self.untuned.config)]
        entries += [(_name(record), record.number, record.config) for record in chosen]
        started = ConfirmationStarted(chosen, plan.most_blocks)
        blocked = blocked_run(
            session, folder, entries, plan, on_begin=lambda: session.notify(started), on_block=self._tell_block
        )

        def taking_part() -> list[TrialRecord]:
            names = {contestant.name for contestant in blocked.contestants}
            return [record for record in chosen if _name(record) in names]

        try:
            comparison = blocked.run(lambda comparison: self._is_clear(comparison, taking_part()))
            keep_confirmed(session.study, blocked.contestants)
        finally:
            shutil.rmtree(folder / "cache", ignore_errors=True)
        if len(chosen) > 1 and any(failure.reason is Reason.OUT_OF_MEMORY for failure in blocked.failures.values()):
            self.notes.append(f"no room for {len(chosen) + 1} processes at once: only the best config was compared")
            return self._compare([min(chosen, key=self._value)])
        self._note_mishaps(blocked)
        for record in chosen:
            if (failure := blocked.failures.get(_name(record))) is not None:
                self.candidates.remove(record)
                self.notes.append(f"trial {record.number} failed in a fresh process: {failure.reason}: {failure.error}")
        self.notes += [
            f"trial {record.number} did not run the same program in the confirmation as in the search"
            for record in chosen
            if _programs_in(blocked, record) - {program_of(record)}
        ]
        if comparison is not None:
            return self._judge(blocked, comparison, taking_part())
        if blocked.base.name in blocked.failures:
            return self._without_comparison(why=_lost_base(blocked))
        return self._out_of_time(_NEXT_BLOCK) if blocked.was_cut_short else None

    def _is_clear(self, comparison: Comparison, chosen: Sequence[TrialRecord]) -> bool:
        """More blocks would not change the verdict, nor whom it is about: the answer is the best, not the first."""
        is_over = self._is_decided(comparison, chosen)
        speedups = dict(zip((record.number for record in chosen), comparison.speedups, strict=True))
        self.session.notify(ConfirmationLooked(len(comparison.values), speedups, is_over))
        return is_over

    def _is_decided(self, comparison: Comparison, chosen: Sequence[TrialRecord]) -> bool:
        margin = self._margin(comparison)
        if not comparison.is_clear(margin):
            return False
        winner = self._winner(comparison, chosen)
        is_proven = verdict_of(comparison.speedups[winner], margin) is Verdict.FASTER
        return not (is_proven and comparison.has_faster_finalist(winner))

    def _winner(self, comparison: Comparison, chosen: Sequence[TrialRecord]) -> int:
        simplicities = [simplicity(record, self.session.study.manifest.space) for record in chosen]
        return winner_of(comparison, self._margin(comparison), simplicities, must_win=not self.untuned.violations)

    def _note_mishaps(self, blocked: BlockedRun) -> None:
        """What failed and then ran; what failed for good is told elsewhere."""
        last = {name: failure for name, failure in blocked.mishaps if name not in blocked.failures}
        for name, failure in last.items():
            who = "the untuned model" if name == blocked.base.name else f"trial {_number(name)}"
            self.notes.append(f"{who} failed and was run again: {failure.reason}: {failure.error}")

    def without_winner(self, note: str) -> Confirmation:
        """Keep the untuned model, if it may be kept: a constraint that it breaks rules it out like any other config."""
        if self.untuned.violations:
            broken = f"the untuned model breaks {', '.join(self.untuned.violations)}"
            return self._confirmation(Verdict.INFEASIBLE, "; ".join([broken, *self.notes, note]))
        return self._confirmation(Verdict.KEEP_UNTUNED, "; ".join([*self.notes, note]))

    def untried(self) -> Confirmation:
        """Nothing was compared, and nothing was ruled out either."""
        was_cut = self.session.study.stop_reason is StopReason.TIME
        verdict = Verdict.INFEASIBLE if self.untuned.violations else Verdict.UNDECIDED
        why = "no other config was measured" + (f": {self._did_not_fit('a trial of one')}" if was_cut else "")
        return self._confirmation(verdict, "; ".join(self.notes) or None, cut_short=was_cut, why=why)

    def _out_of_time(self, what: str) -> Confirmation:
        return self._without_comparison(cut_short=True, why=self._did_not_fit(what))

    def _did_not_fit(self, what: str) -> str:
        """What was not begun for lack of time, and how much there was."""
        left_s = math.floor(self.session.deadline.left_s())
        return f"{what} did not fit in the {left_s} s left" if left_s > 0 else "the time was used up"

    def _without_comparison(self, **reason: object) -> Confirmation:
        """Nothing could be compared: undecided, unless only one of the candidates keeps what was asked for. The best of
        the search is named all the same, if one is left."""
        if not self.candidates:
            verdict = Verdict.INFEASIBLE if self.untuned.violations else Verdict.UNDECIDED
            return self._confirmation(verdict, "; ".join([*self.notes, "no candidate is left"]), **reason)
        best = min(self.candidates, key=self._value)
        gain = self._value(self.untuned) / self._value(best)
        named = f"the best of the search, unconfirmed, is trial {best.number} ({gain:.2f}x the untuned model)"
        verdict = Verdict.FEASIBLE if self.untuned.violations else Verdict.UNDECIDED
        return self._confirmation(verdict, "; ".join([*self.notes, named]), candidate=best.number, **reason)

    def _judge(self, blocked: BlockedRun, comparison: Comparison, chosen: list[TrialRecord]) -> Confirmation:
        """The untuned model is the one to beat, unless it breaks a constraint: then the best of the others it is."""
        margin = self._margin(comparison)
        must_win = not self.untuned.violations
        winner = self._winner(comparison, chosen)
        verdict = comparison.verdict(winner, margin)
        was_lost = blocked.base.name in blocked.failures
        if verdict in (Verdict.TIE, Verdict.UNDECIDED) and comparison.correlation > ALIKE:
            self.notes.append(
                f"successive blocks are alike (correlation {comparison.correlation:.1f}) and prove less for it: "
                "something on this machine changes from minute to minute"
            )
        if verdict is not verdict_of(comparison.speedups[winner], margin):
            most = f"{comparison.upper_limits[winner]:.2f}x at most (95 % sure)"
            self.notes.append(f"trial {chosen[winner].number} does not look faster, and is {most}")
        self.notes += filter(None, [clocks_note(blocked.blocks)])
        warm = [] if self.session.objective.compiles_cold else blocked.blocks[1:]
        why = self._did_not_fit(_NEXT_BLOCK) if blocked.was_cut_short else None
        return self._confirmation(
            verdict if must_win or verdict is Verdict.FASTER else Verdict.FEASIBLE,
            "; ".join(self.notes) or None,
            candidate=chosen[winner].number,
            contestants=(self.untuned.number, *(record.number for record in chosen)),
            blocks=comparison.values,
            speedups=comparison.speedups,
            margin=margin,
            compile_warm_s=min((block[_name(chosen[winner])].compile_s for block in warm), default=None),
            why=_lost_base(blocked) if was_lost else why,
            cut_short=blocked.was_cut_short or self.were_left_out or was_lost,
        )

    def _confirmation(self, verdict: Verdict, note: str | None, **evidence: object) -> Confirmation:
        content = {"verdict": verdict, "note": note, "num_trials": self.session.study.num_recorded(), **evidence}
        return self._unless_unreliable(Confirmation.model_validate(content))

    def _unless_unreliable(self, confirmation: Confirmation) -> Confirmation:
        """That nothing is faster needs a search that could tell which configs to compare, or all of them compared."""
        study = self.session.study
        is_denied = confirmation.verdict in (Verdict.KEEP_UNTUNED, Verdict.TIE) and study.manifest.objective.is_timed
        why = why_unreliable(self.untuned, study.records(), study.drift_checks) if is_denied else None
        if why is None or {record.number for record in self.candidates} <= confirmation.compared.keys():
            return confirmation
        note = "; ".join(
            filter(None, [confirmation.note, f"the search could not tell which configs to compare: {why}"])
        )
        return confirmation.model_copy(update={"verdict": Verdict.UNDECIDED, "note": note})

    def _margin(self, comparison: Comparison) -> float:
        floor = self.session.study.noise_floor
        return MARGIN if floor is None else margin_above(floor.spread, len(comparison.values))

    def _value(self, record: TrialRecord) -> float:
        return self.session.value(record.measurement)

    def _tell_block(self, values: dict[str, float]) -> None:
        others = {_number(name): value for name, value in values.items() if name != "untuned"}
        self.session.notify(BlockMeasured(values["untuned"], others))


def winner_of(
    comparison: Comparison, margin: float, simplicities: Sequence[tuple[int, float]], *, must_win: bool = True
) -> int:
    """Index of the config that the verdict is about: the fastest, or the simplest that is shown to be as good.

    As good means: a win by itself (unless the base is out of the question: `must_win` False), within 2 % of the
    fastest, and not shown to be slower than it.
    """
    speedups = comparison.speedups
    best = max(range(len(speedups)), key=lambda index: speedups[index].median)

    def is_equal(index: int) -> bool:
        if index == best:
            return True
        near = speedups[index].median * (1 + EQUALLY_FAST) >= speedups[best].median
        wins = not must_win or verdict_of(speedups[index], margin) is Verdict.FASTER
        return wins and near and comparison.between(index + 1, best + 1).high >= 1

    if must_win and verdict_of(speedups[best], margin) is not Verdict.FASTER:
        proven = [i for i, speedup in enumerate(speedups) if verdict_of(speedup, margin) is Verdict.FASTER]
        # A noisy block may leave the largest median unproven beside a smaller one that is proven.
        return max(proven, key=lambda index: speedups[index].median, default=best)
    return min(filter(is_equal, range(len(speedups))), key=lambda index: simplicities[index])


def _lost_base(blocked: BlockedRun) -> str:
    failure = blocked.failures[blocked.base.name]
    return f"the untuned model failed {UNTUNED_ATTEMPTS} times in a row: {failure.reason}: {failure.error}"


def _programs_in(blocked: BlockedRun, record: TrialRecord) -> set[str | None]:
    """What a trial's processes ran in the blocks, as far as the search's trial told its program."""
    if program_of(record) is None:
        return set()
    name = _name(record)
    return {block[name].program for block in blocked.blocks if name in block}


def _best_in(objective: Objective, candidates: Sequence[TrialRecord]) -> TrialRecord:
    return min(candidates, key=lambda record: objective.value(record.measurement))


def _name(record: TrialRecord) -> str:
    return f"trial-{record.number:04d}"


def _number(name: str) -> int:
    return int(name.removeprefix("trial-"))


def clocks_note(blocks: Sequence[Mapping[str, Measurement]]) -> str | None:
    """A sentence where the mean clocks of the contestants differ; None where they do not, or cannot be read.

    A config that draws more power runs at a lower clock under a power cap: that is part of what it is worth here, and
    may be otherwise on a GPU with another cap.
    """
    means = {name: mean for name in (blocks[-1] if blocks else ()) if (mean := _mean_mhz(blocks, name)) is not None}
    if not means or max(means.values()) - min(means.values()) <= CLOCK_DRIFT * max(means.values()):
        return None
    return "mean SM clock: " + ", ".join(f"{_in_words(name)} {mean:.0f} MHz" for name, mean in means.items())


def _in_words(name: str) -> str:
    number = name.removeprefix("trial-")
    return f"trial {int(number)}" if number != name else name


def _mean_mhz(blocks: Sequence[Mapping[str, Measurement]], name: str) -> float | None:
    states = [block[name].samples.device for block in blocks if name in block]
    return mean_of_known(reading.sm_clock_mhz for state in states if state is not None for reading in state.readings)


def confirmed_caches(study: Study) -> CacheStore:
    """Caches of the latest confirmation, by the trials' numbers."""
    return CacheStore(study.folder / "confirmed")


def keep_confirmed(study: Study, contestants: Sequence[Contestant]) -> None:
    """Keep the caches of those whose compiler picks kernels by timing them, and drop those of an earlier confirmation.

    Caches that lie on another host are not kept.
    """
    store = confirmed_caches(study)
    store.clear()
    picking = [contestant.request for contestant in contestants if contestant.compiles_anew]
    for request in picking:
        store.take_in(request.number, Path(request.cache))
    if picking:
        store.keep([request.number for request in picking])
