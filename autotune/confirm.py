"""The confirmation: finalists, the framework's default and the untuned model, side by side; and the verdict."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from autotune.classes import are_one, as_one, classes_of, program_of, simplicity
from autotune.contest import Contest
from autotune.events import BlockMeasured, ConfirmationStarted
from autotune.measurement import Measurement, Reason
from autotune.record import DRIFTING, Confirmation, TrialRecord, drift, failures_by_reason
from autotune.space import SearchSpace
from autotune.statistics import MARGIN, Comparison, Verdict, is_clear, margin_above, verdict_of
from autotune.study import Study
from autotune.workbench import Workbench, cannot_go_on

EQUALLY_FAST = 0.02
"""Configs within this share of the best count as equals even on a machine without noise."""
OUT_OF_REACH = 0.10
"""A best config this much slower than the untuned model in the search need not be compared with it again."""
MAX_FINALISTS = 3
"""The fastest config, and of those that may be as fast the simplest and the fastest. The framework's default takes part
besides."""
MAX_CONTESTS = 3
"""When every contestant fails in a fresh process, the next best ones are tried, but not for ever."""


def confirm(bench: Workbench) -> Confirmation:
    """Compare the best configs of the search with the untuned model in fresh processes. Raises HarnessError."""
    study = bench.study
    feasible = [each for each in study.records() if each.state == "measured"]
    if not feasible:
        return Confirmation(
            verdict=Verdict.INFEASIBLE, num_trials=study.num_recorded(), note=_why_infeasible(study.records())
        )
    untuned = study.untuned_record()
    assert untuned is not None, "the search does not end without it"
    contenders = _Contenders(bench, untuned, candidates_among(feasible, untuned, study.manifest.space))
    if not contenders.candidates:
        others = [each for each in feasible if each.config != untuned.config]
        aliases = "every other config that was measured is the untuned model under another name: the same program runs"
        return contenders.without_winner(aliases if others else "no other config gave a measurement")
    reach = max(OUT_OF_REACH, contenders.uncertainty)
    if contenders.best_s() > (1 + reach) * bench.value(untuned.measurement):
        return contenders.without_winner(f"no other config came within {reach:.0%} of the untuned model")
    for _ in range(MAX_CONTESTS):
        confirmation = contenders.hold_contest()
        if confirmation is not None:
            return confirmation
    return contenders.without_winner("none is left")


def candidates_among(feasible: Sequence[TrialRecord], untuned: TrialRecord, space: SearchSpace) -> list[TrialRecord]:
    """One trial for each program but the untuned model's: two names of one config cannot run against each other."""
    others = [each for each in classes_of(feasible) if not _is_untuned(each[0], untuned)]
    return [as_one(names, space) for names in others]


def likely_finalists(bench: Workbench) -> list[TrialRecord]:
    """Who would be confirmed if the search ended now, the fastest first."""
    study = bench.study
    untuned = study.untuned_record()
    if untuned is None or not isinstance(untuned.outcome, Measurement):
        return []
    feasible = [each for each in study.records() if each.state == "measured"]
    candidates = candidates_among(feasible, untuned, study.manifest.space)
    return finalists(study, candidates, uncertainty_of(study, untuned), lambda each: bench.value(each.measurement))


def _is_untuned(record: TrialRecord, untuned: TrialRecord) -> bool:
    return record.config == untuned.config or are_one(record, untuned)


def uncertainty_of(study: Study, untuned: TrialRecord) -> float:
    """Share by which two single processes of the search may differ without any difference between their configs."""
    drifted = drift(untuned, study.sentinels) or 0.0
    spread = study.noise_floor.spread if study.noise_floor else 0.0
    return max(EQUALLY_FAST, spread, drifted if drifted > DRIFTING else 0.0)


@dataclass
class _Contenders:
    """Who may still win. `candidates` are measured, keep every constraint, and run a program each."""

    bench: Workbench
    untuned: TrialRecord
    candidates: list[TrialRecord]
    notes: list[str] = field(default_factory=list)

    @property
    def uncertainty(self) -> float:
        return uncertainty_of(self.bench.study, self.untuned)

    def best_s(self) -> float:
        return min(self._value(each) for each in self.candidates)

    def hold_contest(self) -> Confirmation | None:
        """The verdict; None if all who took part failed, which takes them out of the field."""
        chosen = finalists(self.bench.study, self.candidates, self.uncertainty, self._value)
        return self._contest_of(chosen) if chosen else None

    def _contest_of(self, chosen: list[TrialRecord]) -> Confirmation | None:
        bench = self.bench
        bench.notify(ConfirmationStarted(chosen, bench.budget.confirmation.most_blocks))
        folder = bench.study.folder / "confirm"
        entries = [("untuned", self.untuned.number, self.untuned.config)]
        entries += [(_name(each), each.number, each.config) for each in chosen]
        contest = bench.contest(folder, entries, bench.budget.confirmation, on_block=self._tell_block)
        try:
            comparison = contest.run(
                lambda comparison: is_clear(comparison.speedups, self._margin(comparison)),
                cannot_win=lambda comparison, speedup: speedup.high <= 1 + self._margin(comparison),
            )
        finally:
            shutil.rmtree(folder / "cache", ignore_errors=True)
        if len(chosen) > 1 and any(each.reason is Reason.OUT_OF_MEMORY for each in contest.failures.values()):
            self.notes.append(f"no room for {len(chosen) + 1} processes at once: only the fastest config was compared")
            return self._contest_of([min(chosen, key=self._value)])
        if contest.base.name in contest.failures:
            raise cannot_go_on("the confirmation", contest.failures[contest.base.name])
        for each in chosen:
            if (failure := contest.failures.get(_name(each))) is not None:
                self.candidates.remove(each)
                self.notes.append(f"trial {each.number} failed in a fresh process: {failure.reason}: {failure.error}")
        self.notes += [_ran_otherwise(each) for each in chosen if _programs_in(contest, each) - {program_of(each)}]
        if comparison is None:
            return None
        out = contest.failures.keys() | contest.retired.keys()
        remaining = [each for each in chosen if _name(each) not in out]
        return self._judge(contest, comparison, remaining)

    def without_winner(self, note: str) -> Confirmation:
        """Keep the untuned model, if it may be kept: a constraint that it breaks rules it out like any other config."""
        return self._confirmation(Verdict.KEEP_UNTUNED, "; ".join([*self.notes, note]))

    def _judge(self, contest: Contest, comparison: Comparison, chosen: list[TrialRecord]) -> Confirmation:
        margin = self._margin(comparison)
        winner = winner_of(comparison, margin, [simplicity(each, self.bench.study.manifest.space) for each in chosen])
        speedup = comparison.speedups[winner]
        warm = [block[_name(chosen[winner])].compile_s for block in contest.blocks[1:]]
        return self._confirmation(
            verdict_of(speedup, margin),
            "; ".join(self.notes) or None,
            candidate=chosen[winner].number,
            contestants=(self.untuned.number, *(each.number for each in chosen)),
            blocks_s=comparison.latencies_s,
            speedups=comparison.speedups,
            retired={_number(name): speedup for name, speedup in contest.retired.items()},
            margin=margin,
            compile_warm_s=min(warm, default=None),
        )

    def _confirmation(self, verdict: Verdict, note: str | None, **evidence: object) -> Confirmation:
        if verdict is not Verdict.FASTER and self.untuned.violations:
            verdict = Verdict.INFEASIBLE
            broken = (
                f"the untuned model breaks {', '.join(self.untuned.violations)}, and nothing that keeps all is faster"
            )
            note = f"{broken}; {note}" if note else broken
        content = {"verdict": verdict, "note": note, "num_trials": self.bench.study.num_recorded(), **evidence}
        return Confirmation.model_validate(content)

    def _margin(self, comparison: Comparison) -> float:
        floor = self.bench.study.noise_floor
        return MARGIN if floor is None else margin_above(floor.spread, len(comparison.latencies_s))

    def _value(self, record: TrialRecord) -> float:
        return self.bench.value(record.measurement)

    def _tell_block(self, latency_s: dict[str, float]) -> None:
        others = {_number(name): s for name, s in latency_s.items() if name != "untuned"}
        self.bench.notify(BlockMeasured(latency_s["untuned"], others))


def finalists(
    study: Study, candidates: Sequence[TrialRecord], uncertainty: float, value: Callable[[TrialRecord], float]
) -> list[TrialRecord]:
    """Those that may be the fastest, `MAX_FINALISTS` at most and the simplest among them; and the default."""
    space = study.manifest.space
    values = {each.number: value(each) for each in candidates}
    by_speed = sorted(candidates, key=lambda each: values[each.number])
    fast = (1 + uncertainty) * min(values.values(), default=0.0)
    equals = [each for each in by_speed if values[each.number] <= fast]
    nearest = sorted(equals, key=lambda each: simplicity(each, space))[:1]
    best = list(dict.fromkeys(each.config for each in [*equals[:1], *nearest, *equals]))[:MAX_FINALISTS]
    return [each for each in by_speed if each.config in best or each.config == space.default()]


def winner_of(comparison: Comparison, margin: float, simplicities: Sequence[tuple[int, float]]) -> int:
    """Index of the config that the verdict is about: the fastest, or the simplest that is shown to be as good.

    As good means: a win by itself, within 2 % of the fastest, and not shown to be slower than it.
    """
    speedups = comparison.speedups
    best = max(range(len(speedups)), key=lambda index: speedups[index].median)

    def is_equal(index: int) -> bool:
        if index == best:
            return True
        near = speedups[index].median * (1 + EQUALLY_FAST) >= speedups[best].median
        wins = verdict_of(speedups[index], margin) is Verdict.FASTER
        return wins and near and comparison.between(index + 1, best + 1).high >= 1

    if verdict_of(speedups[best], margin) is not Verdict.FASTER:
        proven = [i for i, each in enumerate(speedups) if verdict_of(each, margin) is Verdict.FASTER]
        # A noisy block may leave the largest median unproven beside a smaller one that is proven.
        return max(proven, key=lambda index: speedups[index].median, default=best)
    return min(filter(is_equal, range(len(speedups))), key=lambda index: simplicities[index])


def _programs_in(contest: Contest, record: TrialRecord) -> set[str | None]:
    """What a trial's processes ran in the blocks, as far as the search's trial told its program."""
    if program_of(record) is None:
        return set()
    name = _name(record)
    return {block[name].program for block in contest.blocks if name in block}


def _ran_otherwise(record: TrialRecord) -> str:
    return f"trial {record.number} did not run the same program in the confirmation as in the search"


def _name(record: TrialRecord) -> str:
    return f"trial-{record.number:04d}"


def _number(name: str) -> int:
    return int(name.removeprefix("trial-"))


def _why_infeasible(records: Sequence[TrialRecord]) -> str:
    """The closest miss among the measured trials, or the failures counted by reason."""
    missed = [each for each in records if each.state == "infeasible"]
    if missed:
        closest = min(missed, key=lambda each: (len(each.violations), sum(each.violations.values())))
        terms = ", ".join(f"{name} (missed by {amount:.4g})" for name, amount in closest.violations.items())
        return f"closest: trial {closest.number}, {terms}"
    counted = failures_by_reason(records)
    return ", ".join(f"{count} {reason}" for reason, count in counted.items())
