"""`StudyResult`: the result of a study so far, derived from its records and never stored."""

from __future__ import annotations

import statistics
from functools import cached_property
from typing import Any

from autotune.command_line import command
from autotune.measure.blocks import Blocks
from autotune.measure.looks import Look
from autotune.measure.measurement import Measurement
from autotune.measure.objective import Objective
from autotune.measure.scatter import ProcessState, Scatter, widest
from autotune.measure.statistics import MARGIN, Speedup, Verdict, break_even_calls
from autotune.schema import Record
from autotune.space.space import SearchSpace
from autotune.study.early_stop import ExpectedGain
from autotune.study.equivalence import representatives
from autotune.study.records import (
    AnswerStep,
    BlockRow,
    Confirmation,
    DriftCheck,
    NoiseFloor,
    SecondBaseline,
    StopReason,
    TrialRecord,
    drift,
    fastest,
    states_of,
    together_in,
)
from autotune.study.slots import value_slot
from autotune.study.study import Study
from autotune.tuned.cache_file import Artifact
from autotune.tuned.tuned_config import SecondFigures


class ExportedCache(Record):
    """The compile cache of a trial, as it was exported last."""

    trial: int
    artifact: Artifact


WORTH_TELLING = 0.05
"""Gain from which on what costs nothing is told, if it is beyond the noise and `SURE`."""
SURE = 0.95
"""Probability of a gain from which on what costs nothing is told."""
ONE_SHAPE = "one shape: calls of other shapes stay untuned in a job"
EXPORTED_CACHE = value_slot("artifact", ExportedCache)


class StudyResult:
    """The result of a study at one moment: verdict, best config, and what each finding needs.

    The trials and what is stored beside them are read at once, so that the study may be closed or go on; the rest is
    derived when it is asked for.
    """

    def __init__(self, study: Study) -> None:
        """Raises StoreError where the study's records are of other configs than its manifest's."""
        study.require_own_records()
        self.manifest = study.manifest
        self.flags = study.flags
        """What a command needs to find the study."""
        self.folder = study.folder
        self.records = study.records()
        """Every trial, by number."""
        self.home = study.database.home
        """Where the files of a shared study's trials are; None: beside its records."""
        self._attributes = study.read_attributes()

    def read_attribute(self, name: str) -> Any:
        """Plain data that was stored with the study: what a `Slot` is read from."""
        return self._attributes.get(name)

    def command(self, verb: str, *more: str, **fields: str) -> str:
        """The command line that does `verb` with this study, ready to paste."""
        return command(verb, self.study, *more, **fields) + self.flags

    @property
    def study(self) -> str:
        return self.manifest.name

    @property
    def space(self) -> SearchSpace:
        return self.manifest.space

    @property
    def objective(self) -> Objective:
        """What the verdict is about."""
        return self.manifest.objective

    @cached_property
    def measured(self) -> list[TrialRecord]:
        """The trials with a measurement, those that break a constraint too."""
        return [record for record in self.records if isinstance(record.outcome, Measurement)]

    @property
    def is_being_tuned(self) -> bool:
        """A process runs a trial of it, beside which no other may go on with the study."""
        return any(record.state == "running" for record in self.records)

    @cached_property
    def untuned(self) -> TrialRecord | None:
        """The measured trial of the untuned model."""
        return next((record for record in self.measured if record.config == self.space.untuned()), None)

    @property
    def not_varied(self) -> tuple[str, ...]:
        """What the inputs of all trials leave as it is, or those of the answer's longer use, each as a sentence."""
        if self.untuned is None:
            return ()
        measured, best = self.untuned.measurement, self.best
        used = [use.not_varied for use in Study.uses.read(self) if best is not None and use.trial == best.number]
        not_varied = used[0] if used else measured.not_varied
        return (*not_varied, ONE_SHAPE) if measured.has_one_shape else not_varied

    @cached_property
    def confirmation(self) -> Confirmation | None:
        """The verdict with what it rests on; None as long as nothing was confirmed."""
        return Study.confirmation.read(self)

    @cached_property
    def answers(self) -> list[AnswerStep]:
        """The configs that were proven while the study ran, each the answer until the next one was."""
        return Study.answers.read(self)

    @cached_property
    def blocks(self) -> list[BlockRow]:
        """The blocks of live processes. Those of a study that stored none are the confirmation's."""
        stored = Study.blocks.read(self)
        if stored or self.confirmation is None:
            return stored
        rows = (zip(self.confirmation.contestants, row, strict=True) for row in self.confirmation.blocks)
        return [
            BlockRow(number=number, values={trial: value for trial, value in row if value is not None})
            for number, row in enumerate(rows, 1)
        ]

    @cached_property
    def candidate(self) -> TrialRecord | None:
        """The measured trial that the verdict is about: the winner, or what came closest."""
        number = self.confirmation and self.confirmation.candidate
        return next((record for record in self.measured if record.number == number), None)

    @property
    def verdict(self) -> Verdict | None:
        """None as long as there is no confirmation."""
        return None if self.confirmation is None else self.confirmation.verdict

    @property
    def speedup(self) -> Speedup | None:
        """The best finalist's over the untuned model."""
        return None if self.confirmation is None else self.confirmation.speedup

    @cached_property
    def best(self) -> TrialRecord | None:
        """The trial to use: the confirmed winner, the untuned model if nothing is better; before that, the leader."""
        match self.verdict:
            case None:
                measured = (record for record in self.measured if record.state == "measured")
                return fastest(representatives(measured, self.space), self.objective.value)
            case Verdict.FASTER | Verdict.FEASIBLE:
                return self.candidate
            case Verdict.INFEASIBLE:
                return None
        return self.untuned

    @cached_property
    def noise_floor(self) -> NoiseFloor | None:
        """The untuned model against itself; None if it was not measured."""
        return Study.noise_floor.read(self)

    @cached_property
    def second(self) -> SecondBaseline | None:
        """What costs nothing, beside the untuned model; None where nothing does."""
        return Study.second_baseline.read(self)

    @cached_property
    def second_figures(self) -> SecondFigures | None:
        """What that gives by itself, by the blocks in which it was. None where it was in none."""
        second, untuned = self.second, self.untuned
        if second is None or untuned is None:
            return None
        pairs = [(row.values[untuned.number], row.second) for row in self.blocks if row.second is not None]
        if not pairs:
            return None
        blocks = Blocks(tuple(pairs))
        is_sure = (blocks.confidence(0, MARGIN) or 0.0) >= SURE
        noise = 0.0 if self.noise_floor is None else self.noise_floor.spread
        plain, speedup = self.space.untuned(), Look(blocks).speedups[0]
        return SecondFigures(
            settings={name: second.config[name] for name in second.config.differing(plain)},
            value=statistics.median(value for _, value in pairs),
            speedup=speedup,
            is_beyond_noise=is_sure and speedup.median > 1 + max(WORTH_TELLING, noise),
        )

    @cached_property
    def drift_checks(self) -> list[DriftCheck]:
        """Readings of the untuned model between the trials."""
        return Study.drift_checks.read(self)

    @property
    def drift(self) -> float | None:
        """Share by which the latency of the untuned model changed during the search; None without drift checks."""
        return None if self.untuned is None else drift(self.untuned, self.drift_checks)

    @cached_property
    def states(self) -> dict[int, list[ProcessState]]:
        """What is known of each process that was compared, by trial: that of the trial, and those of the blocks."""
        compared = {number for row in self.blocks for number in row.values}
        return states_of((record for record in self.measured if record.number in compared), self.blocks)

    @cached_property
    def scatter(self) -> tuple[int, Scatter] | None:
        """Trial of the config whose processes differ most, and by what; None where none do visibly."""
        return widest(self.states, together_in(self.blocks)) if self.objective.is_latency else None

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the search ended."""
        return Study.stop_reason.read(self)

    @cached_property
    def early_stop(self) -> ExpectedGain | None:
        """The forecast with which the search stopped before its budget was used; None if it did not."""
        return Study.early_stop.read(self)

    @property
    def num_tried(self) -> int:
        """Configs with a result."""
        return sum(record.counts for record in self.records)

    @property
    def is_outdated(self) -> bool:
        """Whether trials were recorded after the verdict."""
        return self.confirmation is not None and self.confirmation.num_trials != self.num_tried

    @cached_property
    def break_even_calls(self) -> int | None:
        """Calls after which the compile time is paid for; None: never, or nothing is compiled."""
        return None if self.best is None else self.break_even_of(self.best)

    def break_even_of(self, record: TrialRecord) -> int | None:
        """Number of calls after which compiling has paid off; None where nothing was confirmed, or it never does."""
        if self.confirmation is None or self.untuned is None or record.number == self.untuned.number:
            return None
        return break_even_calls(record.measurement.compile_s, *self.calls_s(record))

    def calls_s(self, record: TrialRecord) -> tuple[float, float]:
        """Seconds of a steady call, untuned and under the record's config, of which both were measured.

        By the confirmed speed-up if it is one of latencies, else by the search's medians.
        """
        assert self.untuned is not None
        speedup = None if self.confirmation is None else self.confirmation.compared.get(record.number)
        if self.confirmation is None or speedup is None or not self.objective.gives_call_s:
            return self.untuned.measurement.steady_call_s, record.measurement.steady_call_s
        signature = record.measurement.signature
        num_items = max(signature.items_per_call, 1) if self.objective.quantity == "throughput" else 1
        untuned_s, tuned_s = self.confirmation.values_at(speedup)
        return num_items * untuned_s, num_items * tuned_s

    @cached_property
    def artifact(self) -> Artifact | None:
        """The best config's compile cache, if it is what was exported last."""
        exported, best = EXPORTED_CACHE.read(self), self.best
        return exported.artifact if exported and best and exported.trial == best.number else None
