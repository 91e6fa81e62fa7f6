"""`Evidence`: what is known of a study's configs by now, wherever it was measured: in trials of the search, and in
blocks. It is read from what is stored, so that a run that goes on knows what the run before knew.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

from autotune.measure.blocks import Blocks
from autotune.measure.early_look import EARLY_GAINS
from autotune.measure.measurement import Measurement
from autotune.measure.proof import Proof
from autotune.measure.statistics import Speedup
from autotune.study.budget import BlockPlan
from autotune.study.equivalence import simplicity
from autotune.study.records import BlockRow, DriftCheck, TrialRecord, counted
from autotune.study.study import Study
from autotune.tuning.finalists import EQUALLY_FAST, MAX_FINALISTS, candidates_among
from autotune.tuning.pruning import NeededSettings

CLEARLY_BETTER = 0.05
"""Log gain by which a config has to look better than the one that is being proven to take its blocks."""
WORTH_A_BLOCK = 0.001
"""Expected log gain over the answer from which on a config takes part in its blocks."""


@dataclass(frozen=True)
class Evidence:
    """`candidates` are measured, keep every constraint, and run a program each; `rows` are the blocks that count."""

    study: Study
    untuned: TrialRecord
    candidates: Sequence[TrialRecord]
    rows: Sequence[BlockRow]
    plan: BlockPlan

    @cached_property
    def finalists(self) -> tuple[TrialRecord, ...]:
        """The candidates that took part in a block, by number."""
        seen = {number for row in self.rows for number in row.values}
        return tuple(record for record in self.candidates if record.number in seen)

    @cached_property
    def comparison(self) -> Proof | None:
        """The finalists against the untuned model; None before the first block."""
        return self.comparison_of(self.finalists)

    def comparison_of(self, finalists: Sequence[TrialRecord]) -> Proof | None:
        """Some of the finalists against the untuned model, over the blocks in which one of them took part; None where
        there is no such block."""
        numbers = {record.number for record in finalists}
        blocks = [row for row in self.rows if not row.values.keys().isdisjoint(numbers)]
        return Proof(self._blocks(finalists, blocks), self.plan.num_looks, self.plan.first_look) if blocks else None

    @cached_property
    def _all(self) -> Blocks:
        """All candidates, those without a block by their trials alone."""
        return self._blocks(self.candidates, self.rows)

    def _blocks(self, records: Sequence[TrialRecord], blocks: Sequence[BlockRow]) -> Blocks:
        columns = [self.untuned.number, *(record.number for record in records)]
        return Blocks(
            tuple(tuple(row.values.get(number) for number in columns) for row in blocks),
            searched=tuple(self.searched(record) for record in records),
            drifts=tuple(self._drift_at(record) for record in records),
            controls=tuple(row.control for row in blocks),
        )

    def searched(self, record: TrialRecord) -> float:
        """How many times as good as the untuned model the config is by its own trial, with the untuned model taken as
        it was then."""
        return self._value(self.untuned) * self._drift_at(record) / self._value(record)

    def num_blocks(self, record: TrialRecord) -> int:
        """Blocks in which it took part."""
        return sum(record.number in row.values for row in self.rows)

    @cached_property
    def gains(self) -> dict[int, float]:
        """Candidate's trial -> expected log speed-up, by its blocks and its trial together."""
        speedups = self._all.expected_speedups
        known = zip(self.candidates, speedups, strict=True)
        return {record.number: math.log(speedup) for record, speedup in known if speedup is not None}

    def gain(self, record: TrialRecord) -> float:
        """Expected log speed-up of a candidate."""
        return self.gains[record.number]

    def regret(self, record: TrialRecord) -> float:
        """Expected log gain that the best of all candidates would bring over this one: what knowing it is worth."""
        return self._all.expected_regret(self.candidates.index(record))

    def is_proven(self, record: TrialRecord) -> bool:
        """It is shown to be faster than the untuned model."""
        if self.comparison is None or record not in self.finalists:
            return False
        return self.comparison.is_proven(self.finalists.index(record))

    def speedup(self, record: TrialRecord) -> Speedup:
        """A finalist's speed-up by the blocks in which it took part."""
        assert self.comparison is not None, "it took part in one"
        speedup = self.comparison.stated(self.finalists.index(record))
        assert speedup is not None, "it took part in one"
        return speedup

    @cached_property
    def proven(self) -> tuple[TrialRecord, ...]:
        """All that are, the best first."""
        return tuple(sorted(filter(self.is_proven, self.finalists), key=self.gain, reverse=True))

    @cached_property
    def leader(self) -> TrialRecord | None:
        """The candidate of which the most is expected. Beside other programs it stays the one that led the last block,
        unless another looks clearly better: blocks spread over several prove nothing there."""
        leader, last = max(self.candidates, key=self.gain, default=None), self.study.blocks[-1:]
        led = [record for record in self.candidates if last and record.number in last[0].values]
        if leader is None or not led or last[0].disturbed is None:
            return leader
        stays = min(led, key=lambda record: last[0].values[record.number])
        return leader if self.gain(leader) > self.gain(stays) + CLEARLY_BETTER else stays

    @property
    def num_disturbed(self) -> int:
        """Blocks beside other programs that count for want of enough quiet ones."""
        return sum(row.disturbed is not None for row in self.rows)

    @property
    def _first(self) -> TrialRecord | None:
        """The answer, or the leader."""
        return self.proven[0] if self.proven else self.leader

    @cached_property
    def simplest(self) -> TrialRecord | None:
        """The simplest of those that look as good as the answer, or the leader: it is the one to export."""
        first = self._first
        if first is None:
            return None
        equals = [record for record in self.candidates if self.gain(record) >= self.gain(first) - EQUALLY_FAST]
        return min(equals, key=lambda record: simplicity(record, self.study.manifest.space))

    @cached_property
    def field(self) -> tuple[TrialRecord, ...]:
        """Whom to compare, the most important first: the answer, or the leader; whoever is expected to bring most over
        it; and the simplest of those that are as good. Who took part in the latest block stays as long as anything is
        expected of it: a look needs several."""
        first, simplest = self._first, self.simplest
        if first is None or simplest is None:
            return ()
        expected = self._all.expected_gains(self.candidates.index(first))
        worth = dict(zip((record.number for record in self.candidates), expected, strict=True))
        latest = self.rows[-1].values if self.rows else {}
        rivals = sorted(self.candidates, key=lambda record: (record.number not in latest, -worth[record.number]))
        rivals = [record for record in rivals if record != first and worth[record.number] > WORTH_A_BLOCK]
        chosen = [first, *rivals[:1], simplest, *rivals[1:]]
        chosen = list({record.number: record for record in chosen}.values())[:MAX_FINALISTS]
        if len(chosen) == 1 and not self.proven and self.searched(first) < min(EARLY_GAINS.values()):
            # A small gain takes many blocks: how another config scatters says how much they prove.
            rest = [record for record in self.candidates if record != first]
            chosen += sorted(rest, key=self.gain)[-1:]
        return tuple({record.number: record for record in chosen}.values())

    def simplicities(self) -> list[tuple[int, bool, float]]:
        """How simple each finalist is, for `winner_of`."""
        return [simplicity(record, self.study.manifest.space) for record in self.finalists]

    def _value(self, record: TrialRecord) -> float:
        return self.study.manifest.objective.value(record.measurement)

    @cached_property
    def _readings(self) -> list[DriftCheck]:
        """What changes the objective's values, by trial; read from the study once."""
        readings = self.study.drift_checks if self.study.manifest.objective.is_timed else []
        return sorted(readings, key=attrgetter("after"))

    def _drift_at(self, record: TrialRecord) -> float:
        """The untuned model's latency just after that trial, else before it, in multiples of what it was in its own; 1
        where nothing was read by then."""
        place = bisect_left(self._readings, record.number, key=attrgetter("after"))
        after, before = self._readings[place : place + 1], self._readings[max(place - 1, 0) : place]
        nearest = [*(check for check in after if check.after == record.number), *before][:1]
        return nearest[0].latency_s / self.untuned.measurement.latency.p50 if nearest else 1.0


def evidence_of(
    study: Study, plan: BlockPlan, without: Sequence[int] = (), needed_settings: NeededSettings | None = None
) -> Evidence | None:
    """All that a study knows; None as long as its untuned model is not measured. `without`: trials whose configs failed
    in a fresh process. `needed_settings` keeps what an earlier call compared."""
    untuned = study.untuned_record()
    if untuned is None or not isinstance(untuned.outcome, Measurement):
        return None
    value = study.manifest.objective.value
    feasible = [
        record
        for record in study.records()
        if record.state == "measured" and record.number not in without and math.isfinite(value(record.measurement))
    ]
    candidates = candidates_among(feasible, untuned, study.manifest.space)
    needed_settings = needed_settings or NeededSettings(study.manifest, EQUALLY_FAST)
    needed = {record.number for record in needed_settings.among(candidates)}
    rows = counted(study.blocks)
    compared = {number for row in rows for number in row.values}
    # One for which a simpler one stands keeps what blocks have shown of it.
    candidates = [record for record in candidates if record.number in needed or record.number in compared]
    return Evidence(study, untuned, candidates, rows, plan)
