"""The files that leave a study: its best config, or another trial that was compared, and the compile cache."""

from __future__ import annotations

import hashlib
import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from autotune.answer.configs import as_plain_code
from autotune.answer.format import percent, times
from autotune.answer.result import EXPORTED_CACHE, ExportedCache, StudyResult
from autotune.apply.config_parts import ConfigParts
from autotune.backends.registry import entry_of
from autotune.bench.bench import Bench, Running
from autotune.bench.local import LocalBench
from autotune.config import Config
from autotune.errors import InputError, marked
from autotune.files import write_asked, write_whole
from autotune.measure.early_look import PRIOR_SCALE, noise_of
from autotune.measure.measurement import Failure, Measurement, Outcome
from autotune.measure.sampling import SamplingPlan
from autotune.measure.scatter import state_of
from autotune.measure.statistics import COMPILED, Speedup, Verdict, verdict_of
from autotune.own_folders import absolute
from autotune.study.budget import Budget
from autotune.study.manifest import Manifest
from autotune.study.own_files import clear_runs
from autotune.study.records import (
    Confirmation,
    TrialRecord,
)
from autotune.study.study import Study
from autotune.trial.folder import KEPT_CACHES, KEY_FILE, TrialFolder
from autotune.trial.request import ShippedCache, TrialRequest
from autotune.tuned.cache_file import SUFFIX, Artifact, CacheFile, Key, pack
from autotune.tuned.tuned_config import (
    EXPORT,
    Evidence,
    Figures,
    TunedConfig,
    TunedEnvironment,
    TunedTexts,
    TunedWorkload,
    require_replaceable,
)
from autotune.tuning.field import confirmed_caches, has_own_caches
from autotune.tuning.session import trial_request
from autotune.workload.process_start import ProcessStart
from autotune.workload.traffic import Shapes


def figures_of(record: TrialRecord) -> Figures:
    """The figures of a measured trial for the exported file."""
    measured = record.measurement
    state = state_of(measured)
    return Figures(
        trial=record.number,
        latency_s=measured.latency,
        peak_memory_bytes=measured.peak_memory_bytes,
        compile_cold_s=measured.compile_s,
        graph_breaks=measured.diagnosis.num_graph_breaks,
        recompiles=measured.diagnosis.num_recompiles,
        relative_error=measured.relative_error,
        page_faults=state and state.page_faults,
    )


def tuned_config(study: Study, trial: int | None = None) -> TunedConfig:
    """What is exported: the best config, or any trial that the user names and that keeps every constraint. What was not
    compared with the untuned model in fresh processes says that it is not proven.

    Raises InputError if there is no verdict yet and no trial named, or nothing usable.
    """
    if trial is not None:
        _refuse_a_near_miss(study.record(trial))
    answer = StudyResult(study)
    confirmation = answer.confirmation
    if answer.verdict is None or confirmation is None:
        return _tuned(study, answer, _unproven(study, answer, trial))
    if trial is not None and trial not in confirmation.compared:
        return _tuned(study, answer, _unproven(study, answer, trial))
    if trial is not None and (answer.best is None or trial != answer.best.number):
        return _tuned(study, answer, _chosen(study, confirmation, trial))
    if answer.best is None:
        raise InputError(
            f"study {study.name!r} is infeasible: no config keeps every constraint, so there is nothing to export",
            tip=f"relax a constraint in another study ({marked('study', 'NAME')})",
        )
    return _tuned(study, answer, _Exported(answer.best, answer.verdict, answer.speedup, confirmation.pairs))


def _refuse_a_near_miss(record: TrialRecord) -> None:
    """Raises InputError for a config that was timed although its outputs miss the tolerance."""
    if isinstance(record.outcome, Failure) and record.outcome.near is not None:
        raise InputError(
            f"trial {record.number} misses this study's tolerance: {record.outcome.error}",
            tip=f"tune with {marked('tolerance', record.outcome.near.tolerance)} under another name "
            f"({marked('study', 'NAME')}): what it gives is proven there",
        )


@dataclass(frozen=True)
class _Exported:
    """What goes into the file: the best trial, or the one that the user chose."""

    record: TrialRecord
    verdict: Verdict
    speedup: Speedup | None
    pairs: tuple[tuple[float, float], ...]


def _unproven(study: Study, answer: StudyResult, trial: int | None) -> _Exported:
    """The trial that the user chose, where nothing is proven. Raises InputError for one that cannot be exported."""
    untuned, manifest = answer.space.untuned(), study.manifest
    resume = f"run: {study.command('resume')}" if manifest.is_of_this_schema else manifest.begin_anew
    resume = "wait: a process is tuning it" if answer.is_being_tuned else resume
    if trial is None:
        leader = None if answer.best is None or answer.best.config == untuned else answer.best
        as_it_is = "" if leader is None else f"; or, unproven: {answer.command('export', trial=str(leader.number))}"
        raise InputError(f"study {study.name!r} has no verdict yet", tip=resume + as_it_is)
    record = study.record(trial)
    if record.config == untuned:
        tip = resume if answer.verdict is None else "leave the trial out: then the answer is exported"
        raise InputError(f"trial {trial} is the untuned model: there is nothing to export", tip=tip)
    if record.state != "measured" or answer.untuned is None:
        raise InputError(f"trial {trial} has no result that can be used", tip=f"run: {study.command('show')}")
    return _Exported(record, Verdict.CHOSEN, None, ())


def _chosen(study: Study, confirmation: Confirmation, trial: int) -> _Exported:
    """The trial that the user chose, which was compared with the untuned model."""
    record, speedup = study.record(trial), confirmation.compared[trial]
    is_proven = verdict_of(speedup, confirmation.margin_of(trial)) is Verdict.FASTER
    verdict = Verdict.FASTER if is_proven and confirmation.verdict in COMPILED else Verdict.CHOSEN
    return _Exported(record, verdict, speedup, confirmation.pairs_of(trial))


def _tuned(study: Study, answer: StudyResult, exported: _Exported) -> TunedConfig:
    manifest = study.manifest
    record, workload = exported.record, manifest.workload
    assert answer.untuned is not None
    measured = record.measurement
    return TunedConfig(
        schema=EXPORT.schema,
        framework=workload.framework,
        verdict=exported.verdict,
        config=record.config,
        untuned=manifest.space.untuned(),
        variants=_places(manifest.variants, ConfigParts.of(record.config).variants),
        components=manifest.components,
        workload=TunedWorkload(
            model=workload.model,
            arguments=workload.arguments,
            device=workload.device,
            task=workload.task,
            objective=manifest.objective.name,
            constraints=tuple(constraint.text for constraint in manifest.constraints),
            seed=workload.seed,
            tolerance=manifest.tolerance,
            reference_precision=manifest.reference_precision,
            signature=measured.signature,
            inputs=workload.inputs,
        ),
        search=manifest.search,
        environment=TunedEnvironment(**measured.environment.model_dump(), framework_version=manifest.framework_version),
        evidence=_evidence(answer, exported, answer.untuned),
        shapes=_shapes(manifest, measured),
        texts=_texts(measured),
        limits=answer.untuned.measurement.limits,
    )


def _evidence(answer: StudyResult, exported: _Exported, untuned: TrialRecord) -> Evidence:
    """What the exported trial rests on."""
    record, confirmation = exported.record, answer.confirmation
    is_answer = answer.best is not None and record.number == answer.best.number
    return Evidence(
        study=answer.study,
        autotune_version=answer.manifest.autotune_version,
        num_trials=answer.num_tried if confirmation is None else confirmation.num_trials,
        best=figures_of(record),
        untuned=figures_of(untuned),
        speedup=exported.speedup,
        process_pairs=exported.pairs,
        without_start=_without_start(answer, record.config),
        noise_floor=answer.noise_floor and answer.noise_floor.spread,
        second_baseline=answer.second_figures,
        compile_warm_s=confirmation.compile_warm_s if confirmation is not None and is_answer else None,
        break_even_calls=answer.break_even_of(record),
        not_compared=record.measurement.not_compared,
        not_varied=answer.not_varied,
        assumed=untuned.measurement.assumed,
    )


def _without_start(answer: StudyResult, config: Config) -> Figures | None:
    """The trial that differs from the config in nothing but that its process was started as any other."""
    parts = ConfigParts.of(config)
    if not parts.start:
        return None
    twin = replace(parts, start=ProcessStart())
    twins = (record for record in answer.measured if ConfigParts.of(record.config) == twin)
    return next(map(figures_of, twins), None)


def _shapes(manifest: Manifest, measured: Measurement) -> Shapes | None:
    """The study's traffic, and the axes of the measured model that it changes."""
    if manifest.workload.traffic is None or measured.replay is None:
        return None
    replay = measured.replay
    return Shapes(
        traffic=manifest.workload.traffic, inputs=replay.inputs, outputs=replay.outputs, padding=replay.padding
    )


def _texts(measured: Measurement) -> TunedTexts | None:
    made = measured.generated
    return None if made is None else TunedTexts(lengths=made.lengths, new_tokens=made.new_tokens, batch=made.batch)


def _places(known: Mapping[str, Mapping[str, str | None]], asked_for: Mapping[str, str]) -> dict[str, str | None]:
    """Variant -> import path, for each variant that the config uses; a variant's first value is the model as it is."""
    return {
        name: known[name].get(value)
        for name, value in asked_for.items()
        if name in known and value != next(iter(known[name]))
    }


def export(study: Study, path: Path, trial: int | None = None, *, with_cache: bool = False) -> TunedConfig:
    """Write what `tuned_config` gives to a YAML file. Raises InputError, before anything is written, also where the
    cache that comes `with_cache` could not be."""
    require_replaceable(path)
    if with_cache:
        study.require_writable()
        require_replaceable(path.with_suffix(SUFFIX))
    tuned = tuned_config(study, trial)
    tuned.write(path, plain_lines(study, tuned))
    return tuned


def plain_lines(study: Study, tuned: TunedConfig) -> list[str]:
    """What an exported config is without this package, in lines; none where it is the untuned model."""
    code = None if tuned.is_untuned else as_plain_code(tuned.config, study.manifest)
    lines = [] if code is None else [f"The same as plain code: {code.line}", *(f"and: {one}" for one in code.beside)]
    if tuned.verdict is Verdict.CHOSEN and tuned.evidence.speedup is None:
        lines.append("not proven: one process of the search measured it, and no other was compared with it")
    slower = None if tuned.artifact is None else slower_calls(tuned.artifact)
    return lines if slower is None else [*lines, slower]


def slower_calls(artifact: Artifact) -> str | None:
    """A sentence where calls from the artifact are slower than after a compile, by more than processes differ."""
    if not artifact.is_slower:
        return None
    by = f"{times(artifact.calls_ratio or 1)} as long as after a compile (noise {percent(artifact.calls_noise or 0)})"
    return f"calls that start from {artifact.file} take {by}"


def export_cache(study: Study, tuned: TunedConfig, path: Path) -> Artifact:
    """Compile in three processes, write the cache of the exported config next to `path`, and add its name to that file.

    Raises InputError if the cache is of no use, and SetupError. The file at `path` is unchanged then.
    """
    log = study.folder / "supervisor.log"
    with study.exclusive(), LocalBench(study.variables, preload=False, log=log) as bench:
        return _export_cache(study, tuned, path, bench)


def _export_cache(study: Study, tuned: TunedConfig, path: Path, bench: Bench) -> Artifact:
    if tuned.is_untuned:
        raise InputError("no artifact: the answer is the untuned model, of which nothing is compiled")
    why = tuned.kind.why_no_artifact(tuned.framework, is_exact=entry_of(tuned.framework).cache_is_exact)
    if why is not None:
        raise InputError(f"no artifact: {why}")
    number = tuned.evidence.best.trial
    folder = study.folder / EXPORTED_CACHE.name
    clear_runs(folder)
    request = trial_request(study, number, study.record(number).config, TrialFolder(folder), _PREWARMING)
    confirmed = None
    if has_own_caches(study):
        copy_to = partial(confirmed_caches(study).copy, number)
        confirmed = ConfirmedCaches(copy_to, study.record(number).measurement.compile_s)
    pairs = () if study.noise_floor is None else study.noise_floor.pairs
    noise = noise_of(sum(math.log(one / other) ** 2 for one, other in pairs), len(pairs))
    artifact = prewarm(request, folder, path.with_suffix(SUFFIX), bench, confirmed, noise=noise)
    tuned = tuned.model_copy(update={"artifact": artifact})
    tuned.write(path, plain_lines(study, tuned))
    EXPORTED_CACHE.write(study, ExportedCache(trial=number, artifact=artifact))
    # After a failure the folder is kept as evidence.
    clear_runs(folder)
    return artifact


_PREWARMING = Budget(sampling=SamplingPlan(min_samples=10, max_samples=50, max_sampling_s=1.0, max_warmup_s=2.0))
"""Enough for a steady call to take off the first one."""
MIN_GAIN = 2.0
"""A cold compile must take so many times what the first call takes with the artifact."""
MIN_SPARED_S = 0.1
"""And so many seconds longer: for less, nobody should have to trust a file."""
NUM_ROUNDS = 10
"""Turns of the process that compiled and of the one that started from the artifact."""
LOOKS_SLOWER, MOST_PAIRS = 0.03, 3
"""Share by which calls from the artifact look slower, so that further pairs of processes are worth it; pairs in all."""


@dataclass(frozen=True)
class ConfirmedCaches:
    """The caches that a confirmation measured, and what it took to fill them."""

    copy_to: Callable[[Path], bool]
    """False, and no folder, where they are not there any more."""
    compile_s: float


def prewarm(
    request: TrialRequest,
    folder: Path,
    target: Path,
    bench: Bench,
    confirmed: ConfirmedCaches | None = None,
    *,
    noise: float = PRIOR_SCALE,
) -> Artifact:
    """Make the artifact of the request's config and write it to `target`. `folder` is for the processes. With
    `confirmed`, what was confirmed is what is in it; else it is compiled once more. `noise` is the share by which two
    processes of one config differ.

    Raises InputError, before anything is written, where nothing is compiled, a process fails, or the file does not
    keep its promise; SetupError where no process can be started.
    """
    return _Making(request, absolute(folder), bench, confirmed, noise).make(target)


class _Making:
    """One artifact.

    Compiled code that comes from a cache need not be what a compile of one's own gives. So the process that compiles
    stays alive, warm, and takes its samples in turns with the one that starts from the artifact. Where that looks
    slower, further pairs of processes say whether it is.
    """

    def __init__(
        self, request: TrialRequest, folder: Path, bench: Bench, confirmed: ConfirmedCaches | None, noise: float
    ) -> None:
        self._noise = noise
        self._request = request
        self._folder = folder
        self._bench = bench
        self._confirmed = confirmed

    def make(self, target: Path) -> Artifact:
        kept = self._folder / "kept"
        was_confirmed = self._confirmed is not None and self._confirmed.copy_to(kept / KEPT_CACHES)
        keeping = self._request.keeping_cache_in(kept)
        with self._held("cold", keeping) as compiled:
            # Started from its cached graph, MindSpore gives fused kernels other names and compiles them once more.
            _measured("again", self._bench.run(*self._place("again", keeping), fresh=True))
            content = pack(kept / KEPT_CACHES)
            write_whole(kept / target.name, content)
            file = self._described(target.name, content, kept / KEY_FILE)
            from_artifact = self._request.started_from(ShippedCache(artifact=file, home=str(kept)))
            with self._held("shipped", from_artifact) as started:
                cold, shipped = self._side_by_side(compiled, started)
        if cold.diagnosis.compiled is False:
            raise InputError("no artifact: under this config nothing is compiled")
        cold_s = self._confirmed.compile_s if self._confirmed and was_confirmed else cold.compile_s
        _refuse_if_useless(cold_s, shipped.compile_s)
        ratio, noise = self._compared(cold, shipped, from_artifact)
        write_asked(target, content, tip="choose another place with -o")
        costs = {"compile_s": shipped.compile_s, "compile_cold_s": cold_s}
        return Artifact(**dict(file), **costs, calls_ratio=ratio, calls_noise=noise)

    def _compared(self, cold: Measurement, shipped: Measurement, from_artifact: TrialRequest) -> tuple[float, float]:
        """How many times as long calls from the artifact take as after a compile, and the noise of that: by one pair of
        processes, or a few more where it looks slower."""
        logs = [math.log(shipped.latency.p50 / cold.latency.p50)]
        while logs[0] > math.log1p(LOOKS_SLOWER) and len(logs) < MOST_PAIRS:
            with self._held("cold", self._request) as compiled, self._held("shipped", from_artifact) as started:
                cold, shipped = self._side_by_side(compiled, started)
            logs.append(math.log(shipped.latency.p50 / cold.latency.p50))
        return math.exp(statistics.mean(logs)), self._noise / math.sqrt(len(logs))

    def _side_by_side(self, compiled: Running, started: Running) -> tuple[Measurement, Measurement]:
        with self._bench.quiet():
            for number in range(NUM_ROUNDS):
                for running in (compiled, started)[:: 1 - 2 * (number % 2)]:
                    running.turn()
        return _measured("cold", compiled.finish()), _measured("shipped", started.finish())

    @contextmanager
    def _held(self, name: str, request: TrialRequest) -> Iterator[Running]:
        """A live process, with empty caches but for what the request keeps or starts from, warm. It ends with this."""
        running = self._bench.hold(*self._place(name, request))
        try:
            if running.outcome is not None:
                _measured(name, running.outcome)
            yield running
        finally:
            if running.outcome is None:
                self._bench.drop([running])

    def _place(self, name: str, request: TrialRequest) -> tuple[TrialFolder, TrialRequest]:
        folder = TrialFolder(self._folder / name)
        return folder, request.cached_in(folder.path / "cache", cold=True)

    def _described(self, name: str, content: bytes, key_file: Path) -> CacheFile:
        return CacheFile(
            file=name,
            sha256=hashlib.sha256(content).hexdigest(),
            num_bytes=len(content),
            key=Key.model_validate_json(key_file.read_text(encoding="utf-8")),
            check_first_call=not entry_of(self._request.workload.framework).cache_is_exact,
        )


def _measured(name: str, outcome: Outcome) -> Measurement:
    """What a process gave. Raises InputError where it failed."""
    if isinstance(outcome, Measurement):
        return outcome
    raise InputError(f"no artifact: {_DOING[name]} failed: {outcome.error}", tip=f"full log: {outcome.evidence}")


_DOING = {
    "cold": "compiling the config",
    "again": "a second process with the first one's caches",
    "shipped": "a process that started from the artifact",
}


def _refuse_if_useless(cold_s: float, shipped_s: float) -> None:
    if cold_s < max(MIN_GAIN * shipped_s, shipped_s + MIN_SPARED_S):
        raise InputError(
            f"no artifact: it would save too little, {shipped_s:.3g} s of compiling instead of {cold_s:.3g} s",
            tip="some configs cannot be cached (docs/warm-start.md)",
        )
