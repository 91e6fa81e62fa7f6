"""`StudyResult`: the result of a study so far, derived from its records and never stored."""

from __future__ import annotations

from dataclasses import dataclass, field

from autotune.measure.measurement import Measurement
from autotune.measure.objective import Objective
from autotune.measure.profile import HotSpots
from autotune.measure.statistics import Speedup, Verdict, break_even_calls
from autotune.schema import Record
from autotune.space.space import SearchSpace
from autotune.study.equivalence import representatives
from autotune.study.knob_effects import Effect, effects_of
from autotune.study.marker import Home
from autotune.study.neighbours import LOST_TRIALS, NEIGHBOURS, Neighbours
from autotune.study.pareto import front
from autotune.study.records import (
    Confirmation,
    DriftCheck,
    NoiseFloor,
    StopReason,
    TrialRecord,
    closest_miss,
    drift,
    fastest,
)
from autotune.study.sampler.early_stop import ExpectedGain
from autotune.study.slots import Slot
from autotune.study.study import Study
from autotune.tuned.cache_file import Artifact
from autotune.tuning import priors
from autotune.tuning.failure_rules import FailureRule, find_failure_rules
from autotune.workload.traffic import Traffic


@dataclass(frozen=True)
class StudyResult:
    """The verdict and its evidence. `verdict` is None as long as there is no confirmation."""

    study: str
    space: SearchSpace
    objectives: tuple[Objective, ...]
    """The verdict is about the first."""
    records: list[TrialRecord]
    verdict: Verdict | None
    best: TrialRecord | None
    """The trial to use: the confirmed winner, or the untuned model if nothing is better; before that, the leader."""
    untuned: TrialRecord | None
    confirmation: Confirmation | None
    break_even_calls: int | None
    noise_floor: NoiseFloor | None
    drift_checks: list[DriftCheck]
    effects: list[Effect]
    """The effect of each knob on the programs of the trials."""
    front: list[TrialRecord]
    """The Pareto front: trials that keep every constraint, sorted by the first objective."""
    stop_reason: StopReason | None
    """Why the search ended."""
    num_configs: int | None
    """Size of the space; None: too many configs to count."""
    early_stop: ExpectedGain | None = None
    """The forecast with which the search stopped before its budget was used; None if it did not."""
    failure_rules: list[FailureRule] = field(default_factory=list)
    """Settings that the study does not try again."""
    priors: list[priors.PriorUse] = field(default_factory=list)
    artifact: Artifact | None = None
    """The best config's compile cache, as it was exported last."""
    hot_spots: HotSpots | None = None
    """The operators that take the time of the untuned model and of the best config; None if none was profiled."""
    near_best_after: int | None = None
    """Number of trials after which the search was within 2 % of its final best."""
    traffic: Traffic | None = None
    """The shapes that the model is called with; None: a single one."""
    neighbours: list[Neighbours] = field(default_factory=list)
    """Whether the workers of a machine disturb each other's timing, where a machine had several."""
    lost_trials: list[str] = field(default_factory=list)
    """The worker of each trial that was lost."""
    home: Home | None = None
    """Where the files of the trials are; None: beside the records."""

    @property
    def objective(self) -> Objective:
        """What the verdict is about."""
        return self.objectives[0]

    @property
    def num_tried(self) -> int:
        """Configs with a result."""
        return sum(each.counts for each in self.records)

    @property
    def closest_miss(self) -> TrialRecord | None:
        """The trial that misses the constraints by the least, if no config keeps them all."""
        return closest_miss(self.records) if self.verdict is Verdict.INFEASIBLE else None

    @property
    def out_of_bounds(self) -> TrialRecord | None:
        """The best trial that breaks a constraint, if it beats the result."""
        tempting = [each for each in self.records if each.state == "infeasible"]
        best = min(tempting, key=self._value, default=None)
        if best is None or self.best is None or self._value(best) >= self._value(self.best):
            return None
        return best

    def _value(self, record: TrialRecord) -> float:
        return self.objective.value(record.measurement)

    @property
    def speedup(self) -> Speedup | None:
        return None if self.confirmation is None else self.confirmation.speedup

    @property
    def drift(self) -> float | None:
        """Share by which the latency of the untuned model changed during the search; None without drift checks."""
        return None if self.untuned is None else drift(self.untuned, self.drift_checks)

    @property
    def is_outdated(self) -> bool:
        """Whether trials were recorded after the verdict."""
        confirmation = self.confirmation
        return confirmation is not None and confirmation.num_trials != sum(each.counts for each in self.records)


def result_of(study: Study) -> StudyResult:
    """The result of a study so far. Raises StoreError where its records are of other configs than its manifest's."""
    records = study.records()
    measured = [each for each in records if isinstance(each.outcome, Measurement)]
    untuned = next((each for each in measured if each.config == study.manifest.space.untuned()), None)
    confirmation = study.confirmation
    verdict = None if confirmation is None else confirmation.verdict
    study.require_own_records()
    candidate = next((each for each in measured if confirmation and each.number == confirmation.candidate), None)
    manifest = study.manifest
    one_of_each = representatives((each for each in measured if each.state == "measured"), manifest.space)
    best = {
        None: fastest(one_of_each, manifest.objective.value),
        Verdict.FASTER: candidate,
        Verdict.FEASIBLE: candidate,
        Verdict.INFEASIBLE: None,
    }.get(verdict, untuned)
    return StudyResult(
        study=study.name,
        space=manifest.space,
        objectives=manifest.objectives,
        records=records,
        verdict=verdict,
        best=best,
        untuned=untuned,
        confirmation=confirmation,
        break_even_calls=None if best is None else break_even_of(manifest.objective, confirmation, untuned, best),
        noise_floor=study.noise_floor,
        drift_checks=study.drift_checks,
        effects=effects_of(records, study.manifest.space),
        front=front(sorted(one_of_each, key=lambda each: manifest.space.num_changes(each.config)), manifest.values),
        stop_reason=study.stop_reason,
        num_configs=study.num_configs(),
        failure_rules=find_failure_rules(study.manifest.space, records),
        priors=priors.prior_uses(study, records),
        near_best_after=priors.near_best_after(study, records),
        early_stop=study.early_stop,
        artifact=None if best is None else _artifact_of(study, best.number),
        hot_spots=_hot_spots(study, untuned, best),
        traffic=manifest.traffic,
        neighbours=NEIGHBOURS.read(study),
        lost_trials=LOST_TRIALS.read(study),
        home=study.database.home,
    )


class ExportedCache(Record):
    """The compile cache of a trial, as it was exported last."""

    trial: int
    artifact: Artifact


EXPORTED_CACHE = Slot("artifact", ExportedCache)


def _artifact_of(study: Study, trial: int) -> Artifact | None:
    """What was exported last, if it was this trial's."""
    exported = EXPORTED_CACHE.read(study)
    return exported.artifact if exported is not None and exported.trial == trial else None


def _hot_spots(study: Study, untuned: TrialRecord | None, best: TrialRecord | None) -> HotSpots | None:
    """The profiles of these trials, as far as they exist; only one if the best is the untuned model."""
    first, second = (
        None if record is None else study.trial_folder(record.number).read_profile()
        for record in (untuned, None if best is untuned else best)
    )
    return HotSpots(first, second) if first or second else None


def break_even_of(
    objective: Objective, confirmation: Confirmation | None, untuned: TrialRecord | None, record: TrialRecord
) -> int | None:
    """Number of calls after which compiling has paid off; None where nothing was confirmed, or it never does."""
    if confirmation is None or untuned is None or record.number == untuned.number:
        return None
    return break_even_calls(record.measurement.compile_s, *calls_s(objective, confirmation, untuned, record))


def calls_s(
    objective: Objective, confirmation: Confirmation, untuned: TrialRecord, record: TrialRecord
) -> tuple[float, float]:
    """Seconds of a steady call, untuned and under the record's config.

    By the confirmed speed-up if it is one of latencies, else by the search's medians.
    """
    speedup = confirmation.compared.get(record.number)
    if speedup is None or not objective.is_latency:
        return untuned.measurement.steady_call_s, record.measurement.steady_call_s
    num_items = max(record.measurement.signature.items_per_call, 1) if objective.quantity == "throughput" else 1
    untuned_s, tuned_s = confirmation.values_at(speedup)
    return num_items * untuned_s, num_items * tuned_s
