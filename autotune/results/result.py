"""`StudyResult`: what a study says so far, derived from its records and never stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.apply.compile_model import asked
from autotune.backends.registry import entry_of
from autotune.errors import InputError
from autotune.measure.measurement import Measurement
from autotune.measure.objective import Objective
from autotune.measure.profile import HotSpots
from autotune.measure.sampling import SamplingPlan
from autotune.measure.statistics import Speedup, Verdict, break_even_calls, verdict_of
from autotune.results.export_cache import prewarm
from autotune.space.combined import plain
from autotune.study.budget import Budget
from autotune.study.equivalence import are_one, simplest
from autotune.study.knob_effects import Effect, effects_of
from autotune.study.manifest import Manifest
from autotune.study.own_files import clear_runs
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
from autotune.study.study import Study
from autotune.trial.folder import TrialFolder
from autotune.trial.runner.runner import Trials
from autotune.tuned.cache_file import SUFFIX, Artifact
from autotune.tuned.tuned_config import (
    SCHEMA,
    Baseline,
    Evidence,
    Figures,
    TunedConfig,
    TunedEnvironment,
    TunedWorkload,
)
from autotune.tuning import priors
from autotune.tuning.failure_rules import FailureRule, find_failure_rules
from autotune.tuning.session import trial_request
from autotune.workload.shapes import Shapes
from autotune.workload.traffic import Traffic


@dataclass(frozen=True)
class StudyResult:
    """The verdict with what it rests on. `verdict` is None as long as no confirmation was made."""

    study: str
    objectives: tuple[Objective, ...]
    """The verdict is about the first."""
    records: list[TrialRecord]
    verdict: Verdict | None
    best: TrialRecord | None
    """What to use: the confirmed winner, or the untuned model where nothing is better; the leader if unconfirmed."""
    untuned: TrialRecord | None
    confirmation: Confirmation | None
    break_even_calls: int | None
    noise_floor: NoiseFloor | None
    sentinels: list[DriftCheck]
    effects: list[Effect]
    """What the programs of the trials say about each knob."""
    front: list[TrialRecord]
    """Trials that keep every constraint and that no other one beats in each objective, by the first objective."""
    stop_reason: StopReason | None
    """Why the search ended."""
    num_configs: int | None
    """Of the space; None: too many to count."""
    early_stop: ExpectedGain | None = None
    """What made the search stop before its budget was used; None if nothing did."""
    failure_rules: list[FailureRule] = field(default_factory=list)
    """Settings that the study does not try again."""
    priors: list[priors.Use] = field(default_factory=list)
    artifact: Artifact | None = None
    """The best config's compile cache, as it was exported last."""
    hot_spots: HotSpots | None = None
    """Where the time of the untuned model and of the best config goes; None if neither was profiled."""
    near_best_after: int | None = None
    """Trials after which the search was within 2 % of what it ends with."""
    traffic: Traffic | None = None
    """The shapes that the model is called with; None: always the same."""

    @property
    def objective(self) -> Objective:
        """What the verdict is about."""
        return self.objectives[0]

    @property
    def closest_miss(self) -> TrialRecord | None:
        """Where no config keeps every constraint: the one that misses them by the least."""
        return closest_miss(self.records) if self.verdict is Verdict.INFEASIBLE else None

    @property
    def out_of_bounds(self) -> TrialRecord | None:
        """The best of those that break a constraint, if it beats the answer."""
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
        """Share by which the untuned model's latency changed during the search; None without sentinels."""
        return None if self.untuned is None else drift(self.untuned, self.sentinels)

    @property
    def is_outdated(self) -> bool:
        """Trials were recorded after the verdict."""
        confirmation = self.confirmation
        return confirmation is not None and confirmation.num_trials != sum(each.counts for each in self.records)


def result_of(study: Study) -> StudyResult:
    """Read a study's answer."""
    records = study.records()
    measured = [each for each in records if isinstance(each.outcome, Measurement)]
    untuned = next((each for each in measured if each.config == study.manifest.space.untuned()), None)
    confirmation = study.confirmation
    verdict = None if confirmation is None else confirmation.verdict
    candidate = next((each for each in measured if confirmation and each.number == confirmation.candidate), None)
    manifest = study.manifest
    best = {
        None: _leader(records, study),
        Verdict.FASTER: candidate,
        Verdict.FEASIBLE: candidate,
        Verdict.INFEASIBLE: None,
    }.get(verdict, untuned)
    return StudyResult(
        study=study.name,
        objectives=manifest.objectives,
        records=records,
        verdict=verdict,
        best=best,
        untuned=untuned,
        confirmation=confirmation,
        break_even_calls=None if best is None else _break_even(manifest.objective, confirmation, untuned, best),
        noise_floor=study.noise_floor,
        sentinels=study.sentinels,
        effects=effects_of(records, study.manifest.space),
        front=front(sorted(measured, key=lambda each: manifest.space.num_changes(each.config)), manifest.values),
        stop_reason=study.stop_reason,
        num_configs=study.num_configs(),
        failure_rules=find_failure_rules(study.manifest.space, records),
        priors=priors.uses(study, records),
        near_best_after=priors.near_best_after(study, records),
        early_stop=study.early_stop,
        artifact=None if best is None else _artifact_of(study, best.number),
        hot_spots=_hot_spots(study, untuned, best),
        traffic=manifest.traffic,
    )


def figures_of(record: TrialRecord) -> Figures:
    """A measured trial in the words of the exported file."""
    measured = record.measurement
    return Figures(
        trial=record.number,
        latency_s=measured.latency,
        peak_memory_bytes=measured.peak_memory_bytes,
        compile_cold_s=measured.compile_s,
        graph_breaks=measured.diagnosis.num_graph_breaks,
        recompiles=measured.diagnosis.num_recompiles,
        relative_error=measured.relative_error,
    )


def tuned_config(study: Study, trial: int | None = None) -> TunedConfig:
    """The answer as it is exported, or another trial that was compared with the untuned model.

    Raises InputError while there is no verdict, or nothing usable.
    """
    answer = result_of(study)
    confirmation = answer.confirmation
    if answer.verdict is None or confirmation is None:
        raise InputError(f"study {study.name!r} has no verdict yet", tip=f"run: {study.command('resume')}")
    if trial is not None and (answer.best is None or trial != answer.best.number):
        return _tuned(study, answer, _chosen(study, confirmation, trial))
    if answer.best is None:
        raise InputError(
            f"study {study.name!r} is infeasible: no config keeps every constraint, so there is nothing to export",
            tip="loosen a constraint under another --study NAME",
        )
    return _tuned(study, answer, _Exported(answer.best, answer.verdict, answer.speedup, confirmation.pairs))


@dataclass(frozen=True)
class _Exported:
    """What goes into the file: the answer, or what the user prefers to it."""

    record: TrialRecord
    verdict: Verdict
    speedup: Speedup | None
    pairs: tuple[tuple[float, float], ...]


def _chosen(study: Study, confirmation: Confirmation, trial: int) -> _Exported:
    """A trial that the user prefers to the answer. Raises InputError where it was not compared."""
    record = study.record(trial)
    speedup = confirmation.compared.get(trial)
    if speedup is None:
        compared = ", ".join(str(number) for number in confirmation.compared) or "none"
        raise InputError(
            f"trial {trial} was not compared with the untuned model in fresh processes (compared: {compared})",
            tip=f"`{study.command('compare')} 0 {trial}` measures it; an export rests on the study's own confirmation",
        )
    is_faster = verdict_of(speedup, confirmation.margin) is Verdict.FASTER
    verdict = Verdict.FASTER if is_faster else Verdict.CHOSEN
    return _Exported(record, verdict, speedup, confirmation.pairs_of(trial))


def _tuned(study: Study, answer: StudyResult, exported: _Exported) -> TunedConfig:
    manifest = study.manifest
    confirmation, record = answer.confirmation, exported.record
    target, config = manifest.target_of(record.config)
    workload = target.workload
    assert confirmation is not None
    assert answer.untuned is not None
    measured = record.measurement
    is_answer = answer.best is not None and record.number == answer.best.number
    return TunedConfig(
        schema=SCHEMA,
        framework=workload.framework,
        verdict=exported.verdict,
        config=config,
        untuned=plain(manifest.space.untuned(workload.framework)),
        variants=_places(manifest.variants.get(workload.framework, {}), asked(config)),
        baseline=None if workload == manifest.workload else _baseline(manifest, answer.untuned),
        workload=TunedWorkload(
            model=workload.model,
            arguments=workload.arguments,
            device=workload.device,
            task=workload.task,
            objective=manifest.objective.name,
            constraints=tuple(each.text for each in manifest.constraints),
            seed=workload.seed,
            tolerance=manifest.tolerance,
            reference_precision=manifest.reference_precision,
            signature=measured.signature,
        ),
        environment=TunedEnvironment(**measured.environment.model_dump(), framework_version=target.framework_version),
        evidence=Evidence(
            study=study.name,
            autotune_version=manifest.autotune_version,
            num_trials=confirmation.num_trials,
            best=figures_of(record),
            untuned=figures_of(answer.untuned),
            speedup=exported.speedup,
            process_pairs=exported.pairs,
            noise_floor=answer.noise_floor and answer.noise_floor.spread,
            compile_warm_s=confirmation.compile_warm_s if is_answer else None,
            break_even_calls=_break_even(manifest.objective, confirmation, answer.untuned, record),
        ),
        shapes=_shapes(manifest, measured),
    )


def _shapes(manifest: Manifest, measured: Measurement) -> Shapes | None:
    """The study's traffic, and where its dimensions show in the model that was measured."""
    if manifest.traffic is None or measured.replay is None:
        return None
    replay = measured.replay
    return Shapes(traffic=manifest.traffic, inputs=replay.inputs, outputs=replay.outputs, padding=replay.padding)


def _places(known: Mapping[str, Mapping[str, str | None]], asked_for: Mapping[str, str]) -> dict[str, str | None]:
    """Where the config's variants are, but for those that are the model as it is: each's first value."""
    return {
        name: known[name].get(value)
        for name, value in asked_for.items()
        if name in known and value != next(iter(known[name]))
    }


def _baseline(manifest: Manifest, untuned: TrialRecord) -> Baseline:
    """The untuned model of the study's first framework."""
    return Baseline(
        framework=manifest.workload.framework,
        framework_version=manifest.framework_version,
        model=manifest.workload.model,
        config=plain(untuned.config),
        signature=untuned.measurement.signature,
    )


def export(study: Study, path: Path, trial: int | None = None) -> TunedConfig:
    """Write the answer, or another trial that was compared, to a YAML file. Raises InputError."""
    tuned = tuned_config(study, trial)
    tuned.write(path)
    return tuned


def export_artifact(study: Study, tuned: TunedConfig, path: Path, trials: Trials) -> Artifact:
    """Write the compile cache of what was exported to `path` beside it, and name it there. Raises InputError where
    there is none worth having, and HarnessError; the file at `path` stays as it was then."""
    if tuned.is_untuned:
        raise InputError("no artifact: the answer is the untuned model, of which nothing is compiled")
    if tuned.shapes is not None:
        raise InputError("no artifact: it holds what one first call compiles, and this answer is for many shapes")
    if tuned.workload.task == "train" and not entry_of(tuned.framework).cache_is_exact:
        raise InputError(
            f"no artifact: what comes from {tuned.framework}'s cache has to be checked, and a training step cannot be: "
            "made twice, it trains twice"
        )
    number = tuned.evidence.best.trial
    folder = study.folder / _ARTIFACT
    clear_runs(folder)
    request = trial_request(study, number, study.record(number).config, TrialFolder(folder), _PREWARMING)
    artifact = prewarm(request, folder, path.with_suffix(SUFFIX), trials)
    tuned.model_copy(update={"artifact": artifact}).write(path)
    study.remember(_ARTIFACT, {"trial": number, "artifact": artifact.model_dump(mode="json")})
    # It stays where a process failed: it is the evidence.
    clear_runs(folder)
    return artifact


_ARTIFACT = "artifact"
_PREWARMING = Budget(sampling=SamplingPlan(min_samples=10, max_samples=50, max_sampling_s=1.0, max_warmup_s=2.0))
"""Enough for a steady call to take off the first one."""


def _artifact_of(study: Study, trial: int) -> Artifact | None:
    """What was exported last, if it was this trial's."""
    remembered = study.recall(_ARTIFACT)
    if remembered is None or remembered["trial"] != trial:
        return None
    return Artifact.model_validate(remembered["artifact"])


def _hot_spots(study: Study, untuned: TrialRecord | None, best: TrialRecord | None) -> HotSpots | None:
    """As far as these trials were profiled. Where the best is the untuned model, there is one to show."""
    first, second = (
        None if record is None else study.trial_folder(record.number).read_profile()
        for record in (untuned, None if best is untuned else best)
    )
    return HotSpots(first, second) if first or second else None


def _leader(records: Sequence[TrialRecord], study: Study) -> TrialRecord | None:
    """The best so far, by the simplest name that its program has."""
    first = fastest(records, study.manifest.objective.value)
    if first is None:
        return None
    names = [each for each in records if each.state == "measured" and are_one(each, first)]
    return simplest(names or [first], study.manifest.space)


def _break_even(
    objective: Objective, confirmation: Confirmation | None, untuned: TrialRecord | None, record: TrialRecord
) -> int | None:
    """Calls that earn back what compiling costs: by the confirmed ratio where it is one of latencies, else by the
    search's medians.
    """
    if confirmation is None or untuned is None or record.number == untuned.number:
        return None
    speedup = confirmation.compared.get(record.number)
    latencies_s = untuned.measurement.steady_call_s, record.measurement.steady_call_s
    if speedup is not None and objective.is_latency:
        num_items = max(record.measurement.signature.items_per_call, 1) if objective.quantity == "throughput" else 1
        untuned_s, tuned_s = confirmation.values_at(speedup)
        latencies_s = num_items * untuned_s, num_items * tuned_s
    return break_even_calls(record.measurement.compile_s, *latencies_s)
