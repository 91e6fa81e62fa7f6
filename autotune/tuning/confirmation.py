"""The verdict: what the blocks and trials of a study come to when a run ends, or is cut off."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.measure.device_state import CLOCK_DRIFT, mean_of_known
from autotune.measure.measurement import Failure, Measurement, Reason
from autotune.measure.proof import Proof
from autotune.measure.statistics import MARGIN, Verdict
from autotune.study.equivalence import program_of
from autotune.study.records import Confirmation, StopReason, TrialRecord, why_unreliable
from autotune.tuning.attempts import UNTUNED_ATTEMPTS
from autotune.tuning.evidence import Evidence
from autotune.tuning.field import Field
from autotune.tuning.finalists import EQUALLY_FAST
from autotune.tuning.race import Standing
from autotune.tuning.session import Session

_EQUAL = math.log1p(EQUALLY_FAST)
_OF_A_FULL_DEVICE = {Reason.OUT_OF_MEMORY, Reason.RUN_ERROR, Reason.COMPILE_ERROR, Reason.CRASH}
_ALIKE = 0.4
"""From this estimated correlation on, a verdict that found nothing names it as the reason."""
_STANDARD_ERRORS = 2.0
"""Two configs that are equal differ by more in one case of twenty."""


def conclude(
    session: Session, standing: Standing, field: Field, reason: StopReason | None, *, is_interim: bool = False
) -> Confirmation:
    """The verdict over all that is stored. `is_interim`: the run goes on, and may not come to its end."""
    return _Verdict(session, standing, field, reason, is_interim).of_all()


@dataclass
class _Verdict:
    session: Session
    standing: Standing
    field: Field
    reason: StopReason | None
    is_interim: bool

    def __post_init__(self) -> None:
        self.notes: list[str] = []

    @property
    def evidence(self) -> Evidence:
        return self.standing.evidence

    def of_all(self) -> Confirmation:
        records = self.session.study.records()
        self._note_failures()
        if not any(record.state == "measured" for record in records):
            return self._confirmation(Verdict.INFEASIBLE, None)
        if self.evidence.comparison is not None:
            return self._judged(self.evidence.comparison)
        return self._without_blocks() if self.evidence.candidates else self._without_candidates(records)

    def _without_candidates(self, records: Sequence[TrialRecord]) -> Confirmation:
        others = [record for record in records if record.config != self.evidence.untuned.config]
        if self.field.lost is not None:
            return self._untried()
        if self.field.failed:
            return self._without_winner("none is left")
        is_alias = any(record.state == "measured" for record in others)
        was_late = self.reason is StopReason.TIME
        if not is_alias and (was_late or not any(isinstance(record.outcome, Measurement) for record in others)):
            return self._untried()
        aliases = "every other config that was measured is the untuned model under another name: the same program runs"
        return self._without_winner(aliases if is_alias else "no other config that was measured keeps every constraint")

    def _note_failures(self) -> None:
        """What failed and then ran, and what failed for good."""
        for who, failure in self.field.mishaps:
            self.notes.append(f"{who} failed and was run again: {failure.reason}: {failure.error}")
        for number, failure in self.field.failed.items():
            self.notes.append(f"trial {number} failed in a fresh process: {failure.reason}: {failure.error}")
        if self.field.most_finalists == 1:
            self.notes.append("no room for several processes at once: only the best config was compared")
        if self.field.is_in_turn:
            room = self.field.room
            planned = "" if room is None or room.holds_block else f" ({room})"
            self.notes.append(f"there was room for one process at a time{planned}: those of a block ran in turn")

    def _judged(self, comparison: Proof) -> Confirmation:
        """The untuned model is the one to beat, unless it breaks a constraint: then the best of the others it is."""
        comparison = replace(comparison, is_final=self._is_ended_by_clock())
        evidence, must_win = self.evidence, not self.evidence.untuned.violations
        winner = winner_of(comparison, MARGIN, evidence.simplicities(), must_win=must_win, gains=self._gains())
        candidate, margin = evidence.finalists[winner], comparison.margin_of(winner)
        verdict = comparison.verdict(winner)
        if verdict in (Verdict.TIE, Verdict.UNDECIDED) and comparison.look.correlation > _ALIKE:
            self.notes.append(
                f"successive blocks are alike (correlation {comparison.look.correlation:.1f}) and prove less for it: "
                "something on this machine changes from minute to minute"
            )
        if verdict in (Verdict.TIE, Verdict.KEEP_UNTUNED) and comparison.look.rules_out(winner):
            most = f"{comparison.look.upper_limits[winner]:.2f}x at most (95 % sure)"
            self.notes.append(f"trial {candidate.number} does not look better, and is {most}")
        self._note_programs()
        self.notes += filter(None, [clocks_note(self.field.seen), _disturbed_note(self.evidence)])
        if self.field.num_contradicted:
            self.notes.append(f"{self.field.num_contradicted} blocks of earlier runs tell of another machine: left out")
        is_cut = self._is_cut(verdict)
        return self._confirmation(
            verdict if must_win or verdict is Verdict.FASTER else Verdict.FEASIBLE,
            "; ".join(self.notes) or None,
            candidate=candidate.number,
            contestants=(self.evidence.untuned.number, *(record.number for record in evidence.finalists)),
            blocks=comparison.blocks.values,
            speedups=tuple(filter(None, map(comparison.stated, range(len(evidence.finalists))))),
            margin=margin,
            margins=tuple(map(comparison.margin_of, range(len(evidence.finalists)))),
            confidence=comparison.blocks.confidence(winner, margin) if verdict is Verdict.UNDECIDED else None,
            compile_warm_s=self._compile_warm_s(candidate),
            why=self._why(candidate) if is_cut or verdict is Verdict.UNDECIDED else None,
            cut_short=is_cut,
        )

    def _gains(self) -> list[float]:
        return [self.evidence.gain(record) for record in self.evidence.finalists]

    def _is_cut(self, verdict: Verdict) -> bool:
        """The run did not come to its end: more blocks could still say more. A proven answer may have a better one."""
        if self.is_interim or self.field.lost is not None:
            return True
        if self.standing.is_decided or verdict is Verdict.FASTER:
            return False
        return verdict is Verdict.UNDECIDED or not self.standing.has_used_its_time

    def _is_ended_by_clock(self) -> bool:
        """Whether the run ends here does not depend on what its blocks show."""
        return not self.is_interim and self.field.lost is None and self.standing.is_ended_by_clock

    def _why(self, candidate: TrialRecord | None = None) -> str:
        """What kept the run from its end, or its end from a verdict."""
        if self.is_interim:
            return "the run has not come to its end"
        standing, lost = self.standing, self.field.lost
        if lost is not None and lost.reason is Reason.WRONG_RESULT:
            return f"the untuned model gave another output in another process: {lost.error}"
        if lost is not None:
            return f"the untuned model failed {UNTUNED_ATTEMPTS} times in a row: {lost.reason}: {lost.error}"
        if candidate is not None and standing.is_decided:
            return f"this machine is too noisy to tell by {self.evidence.num_blocks(candidate)} blocks"
        if standing.has_used_its_time:
            return f"no time was given, and the next look takes {standing.seconds_to_look / 60:.0f} min more"
        return self._did_not_fit("another block")

    def _without_blocks(self) -> Confirmation:
        """Nothing came near the untuned model, or nothing could be compared: undecided then, unless only a candidate
        keeps what was asked for. The best of the search is named all the same."""
        if not self.standing.is_within_reach:
            return self._without_winner(f"no other config came within {self.standing.reach:.0%} of the untuned model")
        best = max(self.evidence.candidates, key=self.evidence.gain)
        gain = self.evidence.searched(best)
        named = f"the best of the search, unconfirmed, is trial {best.number} ({gain:.2f}x the untuned model)"
        verdict = Verdict.FEASIBLE if self.evidence.untuned.violations else Verdict.UNDECIDED
        notes = [*self.notes, *([named] if verdict is Verdict.FEASIBLE else [])]
        why = self._why() if self.is_interim or self.field.lost else self._did_not_fit("a block of two processes")
        return self._confirmation(verdict, "; ".join(notes) or None, candidate=best.number, why=why, cut_short=True)

    def _without_winner(self, note: str) -> Confirmation:
        """Keep the untuned model, if it may be kept: a constraint that it breaks rules it out like any other config."""
        if self.evidence.untuned.violations:
            broken = f"the untuned model breaks {', '.join(self.evidence.untuned.violations)}"
            return self._confirmation(Verdict.INFEASIBLE, "; ".join([broken, *self.notes, note]))
        if (number := self._without_room()) is not None:
            why = f"trial {number} ran alone, and where it was compared its processes failed, maybe for lack of memory"
            return self._confirmation(Verdict.UNDECIDED, "; ".join(self.notes) or None, why=why, cut_short=True)
        return self._confirmation(Verdict.KEEP_UNTUNED, "; ".join([*self.notes, note]))

    def _without_room(self) -> int | None:
        """A trial that was measured, and whose processes of blocks failed for what need not be its config's fault: a
        device that is full is told of in many ways."""
        is_on_cpu = self.session.study.manifest.workload.device == "cpu"
        reasons = {Reason.OUT_OF_MEMORY} if is_on_cpu else _OF_A_FULL_DEVICE
        return next((number for number, each in self.field.failed.items() if each.reason in reasons), None)

    def _untried(self) -> Confirmation:
        """Nothing was compared, and nothing was ruled out either."""
        is_lost, was_late = self.field.lost is not None, self.reason is StopReason.TIME
        verdict = Verdict.INFEASIBLE if self.evidence.untuned.violations else Verdict.UNDECIDED
        records = self.session.study.records()
        failures = [record.outcome for record in records if record.state == "failed" and record.counts]
        reasons = {failure.reason for failure in failures if isinstance(failure, Failure)}
        common = next(iter(reasons)) if len(reasons) == 1 else None
        failed = f"{len(failures)} failed{_of_failures(self.session, common)}" if failures else ""
        late = self._did_not_fit("a trial of one") if was_late else ""
        why = ": ".join(filter(None, ["no other config was measured", "; ".join(filter(None, [failed, late]))]))
        return self._confirmation(
            verdict,
            "; ".join(self.notes) or None,
            cut_short=is_lost or was_late,
            why=self._why() if is_lost else why,
        )

    def _did_not_fit(self, what: str) -> str:
        """What was not begun for lack of time, and how much there was."""
        left_s = math.floor(self.session.deadline.left_s())
        return f"{what} did not fit in the {left_s} s left" if left_s > 0 else "the time was used up"

    def _confirmation(self, verdict: Verdict, note: str | None, **evidence: object) -> Confirmation:
        left_s, num_trials = self.session.deadline.left_s(), self.session.study.num_recorded()
        left = {"left_s": max(left_s, 0.0) if math.isfinite(left_s) else None}
        content = {"verdict": verdict, "note": note, "num_trials": num_trials, **left, **evidence}
        return self._unless_unreliable(Confirmation.model_validate(content))

    def _unless_unreliable(self, confirmation: Confirmation) -> Confirmation:
        """That nothing is faster needs a search that could tell which configs to compare, or all of them compared."""
        study = self.session.study
        is_denied = confirmation.verdict in (Verdict.KEEP_UNTUNED, Verdict.TIE) and study.manifest.objective.is_timed
        checks = [] if self.session.has_beside else study.drift_checks
        why = why_unreliable(self.evidence.untuned, study.records(), checks) if is_denied else None
        if why is None or {record.number for record in self.evidence.candidates} <= confirmation.compared.keys():
            return confirmation
        told = f"the search could not tell which configs to compare: {why}"
        return confirmation.model_copy(update={"verdict": Verdict.UNDECIDED, "why": told})

    def _note_programs(self) -> None:
        for record in self.evidence.finalists:
            programs = {block[record.number].program for block in self.field.seen if record.number in block}
            if program_of(record) is not None and programs - {program_of(record)}:
                self.notes.append(f"trial {record.number} did not run the same program in the blocks as in the search")

    def _compile_warm_s(self, record: TrialRecord) -> float | None:
        """The shortest compile of a process that found the caches of an earlier one, in this run or an earlier one."""
        processes = [block[record.number] for block in self.field.seen if record.number in block]
        warm = [] if self.session.objective.compiles_cold else processes[1:]
        earlier = self.session.study.confirmation
        known_s = earlier.compile_warm_s if earlier is not None and earlier.candidate == record.number else None
        return min((process.compile_s for process in warm), default=known_s)


def _of_failures(session: Session, common: Reason | None) -> str:
    """What trials that all failed for this reason say beyond how many they are."""
    if common is Reason.OUT_OF_MEMORY:
        return " for lack of memory"
    if common is not Reason.WRONG_RESULT:
        return ""
    has_two = session.has_beside or session.study.noise_floor is not None
    unknown = "" if has_two else ", which another process of it was not compared with either"
    return f", whose outputs are not the untuned model's{unknown}"


def winner_of(
    comparison: Proof,
    margin: float,
    simplicities: Sequence[tuple[int, bool, float]],
    *,
    must_win: bool = True,
    gains: Sequence[float] = (),
) -> int:
    """Index of the config that the verdict is about: the best, or the simplest that is shown to be as good.

    As good means: a win by itself (unless the base is out of the question: `must_win` False), within 2 % of the
    best, and not shown to be slower than it. What compiles nothing is also as good as what compiles where they differ
    by no more than their blocks may by chance: compiling has to gain something by itself. `gains` are the expected log
    gains; without them the speed-ups speak.
    """
    speedups = comparison.look.speedups
    indices = range(len(speedups))
    gains = gains or [math.log(speedup.median) for speedup in speedups]
    proven = [index for index in indices if comparison.is_proven(index, margin, is_last=True)]
    # A noisy block may leave the largest gain unproven beside a smaller one that is proven.
    best = max((proven if must_win else None) or indices, key=lambda index: gains[index])

    def is_equal(index: int) -> bool:
        if index == best:
            return True
        is_spared = simplicities[best][1] and not simplicities[index][1]
        near = gains[best] - gains[index] <= (_by_chance(comparison, index, best) if is_spared else _EQUAL)
        wins = not must_win or index in proven
        return wins and near and _may_be_as_good(comparison, index, best)

    if must_win and not proven:
        return best
    return min(filter(is_equal, indices), key=lambda index: simplicities[index])


def _by_chance(comparison: Proof, index: int, best: int) -> float:
    """Log gain by which equal configs may well differ over so many blocks."""
    num_blocks = min(comparison.blocks.num_blocks(index), comparison.blocks.num_blocks(best))
    return max(_EQUAL, _STANDARD_ERRORS * comparison.blocks.noise / math.sqrt(num_blocks))


def _may_be_as_good(comparison: Proof, index: int, best: int) -> bool:
    """By the blocks in which both took part."""
    try:
        return comparison.between(index + 1, best + 1).high >= 1
    except ValueError:  # There is none.
        return False


def _disturbed_note(evidence: Evidence) -> str | None:
    """How many blocks other programs disturbed, and whether they count."""
    rows = evidence.study.blocks
    disturbed = [row.disturbed for row in rows if row.disturbed is not None]
    if not disturbed:
        return None
    told = f"{len(disturbed)} of {len(rows)} blocks were disturbed ({disturbed[-1]})"
    if not evidence.num_disturbed:
        return f"{told} and do not count"
    return f"{told}, so all count: on a quiet machine the figure may be another"


def clocks_note(blocks: Sequence[Mapping[int, Measurement]]) -> str | None:
    """A sentence where the mean clocks of the finalists differ; None where they do not, or cannot be read.

    A config that draws more power runs at a lower clock under a power cap: that is part of what it is worth here, and
    may be otherwise on a GPU with another cap.
    """
    means = {number: mean for number in (blocks[-1] if blocks else ()) if (mean := _mean_mhz(blocks, number))}
    if not means or max(means.values()) - min(means.values()) <= CLOCK_DRIFT * max(means.values()):
        return None
    return "mean SM clock: " + ", ".join(f"trial {number} {mean:.0f} MHz" for number, mean in means.items())


def _mean_mhz(blocks: Sequence[Mapping[int, Measurement]], number: int) -> float | None:
    states = [block[number].samples.device for block in blocks if number in block]
    return mean_of_known(reading.sm_clock_mhz for state in states if state is not None for reading in state.readings)
