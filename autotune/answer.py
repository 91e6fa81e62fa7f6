"""`Answer`: what a study says so far, derived from its records. Reports and exports read it, nothing else stores it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.classes import are_one, simplest
from autotune.effects import Effect, effects_of
from autotune.errors import InputError
from autotune.measurement import Measurement
from autotune.record import Confirmation, NoiseFloor, Sentinel, TrialRecord, drift, fastest
from autotune.statistics import Speedup, Verdict, break_even_calls
from autotune.study import Study
from autotune.tuned import SCHEMA, Evidence, Figures, TunedConfig, TunedEnvironment, TunedWorkload


@dataclass(frozen=True)
class Answer:
    """The verdict with what it rests on. `verdict` is None as long as no confirmation was made."""

    study: str
    records: list[TrialRecord]
    verdict: Verdict | None
    best: TrialRecord | None
    """What to use: the confirmed winner, or the untuned model where nothing is faster; the leader if unconfirmed."""
    untuned: TrialRecord | None
    confirmation: Confirmation | None
    break_even_calls: int | None
    noise_floor: NoiseFloor | None
    sentinels: list[Sentinel]
    effects: list[Effect]
    """What the programs of the trials say about each knob."""

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


def answer_of(study: Study) -> Answer:
    """Read a study's answer."""
    records = study.records()
    measured = [each for each in records if isinstance(each.outcome, Measurement)]
    untuned = next((each for each in measured if each.config == study.manifest.space.untuned()), None)
    confirmation = study.confirmation
    verdict = None if confirmation is None else confirmation.verdict
    candidate = next((each for each in measured if confirmation and each.number == confirmation.candidate), None)
    best = {
        None: _leader(records, study),
        Verdict.FASTER: candidate,
        Verdict.INFEASIBLE: None,
    }.get(verdict, untuned)
    return Answer(
        study=study.name,
        records=records,
        verdict=verdict,
        best=best,
        untuned=untuned,
        confirmation=confirmation,
        break_even_calls=_break_even(confirmation, candidate) if verdict is Verdict.FASTER else None,
        noise_floor=study.noise_floor,
        sentinels=study.sentinels,
        effects=effects_of(records, study.manifest.space),
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


def tuned_config(study: Study) -> TunedConfig:
    """The answer as it is exported. Raises InputError while there is no verdict, or nothing usable."""
    answer = answer_of(study)
    if answer.verdict is None:
        raise InputError(f"study {study.name!r} has no verdict yet", tip=f"run: {study.command('resume')}")
    if answer.best is None or answer.untuned is None:
        raise InputError(
            f"study {study.name!r} is infeasible: no config keeps every constraint, so there is nothing to export",
            tip="loosen a constraint under another --study NAME",
        )
    measured = answer.best.measurement
    assert answer.confirmation is not None
    manifest, workload = study.manifest, study.manifest.workload
    return TunedConfig(
        schema=SCHEMA,
        framework=workload.framework,
        verdict=answer.verdict,
        config=answer.best.config,
        untuned=manifest.space.untuned(),
        workload=TunedWorkload(
            model=workload.model,
            arguments=workload.arguments,
            device=workload.device,
            task=workload.task,
            objective=manifest.objective.quantity,
            seed=workload.seed,
            tolerance=manifest.tolerance,
            reference_precision=manifest.reference_precision,
            signature=measured.signature,
        ),
        environment=TunedEnvironment(**measured.environment.model_dump(), framework_version=manifest.framework_version),
        evidence=Evidence(
            study=study.name,
            autotune_version=manifest.autotune_version,
            num_trials=answer.confirmation.num_trials,
            best=figures_of(answer.best),
            untuned=figures_of(answer.untuned),
            speedup=answer.speedup,
            process_pairs_s=answer.confirmation.pairs,
            noise_floor=answer.noise_floor and answer.noise_floor.spread,
            compile_warm_s=answer.confirmation.compile_warm_s,
            break_even_calls=answer.break_even_calls,
        ),
    )


def export(study: Study, path: Path) -> TunedConfig:
    """Write the answer to a YAML file. Raises InputError."""
    tuned = tuned_config(study)
    tuned.write(path)
    return tuned


def _leader(records: Sequence[TrialRecord], study: Study) -> TrialRecord | None:
    """The fastest so far, by the simplest name that its program has."""
    first = fastest(records, study.manifest.objective.value)
    if first is None:
        return None
    names = [each for each in records if each.state == "measured" and are_one(each, first)]
    return simplest(names or [first], study.manifest.space)


def _break_even(confirmation: Confirmation | None, candidate: TrialRecord | None) -> int | None:
    if confirmation is None or candidate is None:
        return None
    untuned_s, tuned_s = confirmation.latencies_s
    return break_even_calls(candidate.measurement.compile_s, untuned_s, tuned_s)
