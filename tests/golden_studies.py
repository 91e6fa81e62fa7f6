"""The studies of `test_golden.py`: made with `Study` itself, from figures that are chosen so that each finding of a
result has something to say. No process runs, so a change of how trials are run or stored changes nothing here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.answer.result import EXPORTED_CACHE, ExportedCache
from autotune.bench.workers import LOST_TRIALS, NEIGHBOURS, Neighbours
from autotune.config import Config
from autotune.measure.constraint import Constraint
from autotune.measure.diagnosis import BreakKind, Compilations, Diagnosis, GraphBreak, Recompile
from autotune.measure.measurement import Axis, Failure, Measurement, OnWorker, Reason, Replay, Samples, Stage, Usage
from autotune.measure.objective import Objective
from autotune.measure.scatter import ProcessState
from autotune.measure.statistics import Speedup, Verdict
from autotune.space.load import Circumstances, load_space
from autotune.space.space import SearchSpace
from autotune.study.budget import Budget
from autotune.study.early_stop import ExpectedGain
from autotune.study.folder import FolderStudies
from autotune.study.manifest import Manifest
from autotune.study.records import (
    AnswerStep,
    BlockRow,
    Confirmation,
    DriftCheck,
    NoiseFloor,
    SecondBaseline,
    StopReason,
)
from autotune.study.study import Study
from autotune.tuned.cache_file import Artifact, Key
from autotune.tuning import priors
from autotune.workload.traffic import Traffic, parse_shapes
from autotune.workload.workload import Workload
from tests.asking import ask
from tests.conftest import REPOSITORY

MEASURED = Measurement.model_validate_json((REPOSITORY / "tests" / "measurement.json").read_text())
SPACE = """
schema: 1
framework: fake
knobs:
  execution: {doc: "https://example.org/execution", values: [eager, compile], untuned: eager, default: compile}
  mode:
    doc: https://example.org/mode
    when: {execution: compile}
    values: [default, most]
    default: default
  gemm: {doc: "https://example.org/gemm", when: {mode: most}, values: [plain, fancy], default: plain}
  freezing: {doc: "https://example.org/freezing", when: {execution: compile}, values: [false, true], default: false}
  threads: {doc: "https://example.org/threads", values: [2, 4], untuned: 2, default: 2}
"""
LATENCY_MS = {"default": 8.0, "most": 5.0, None: 10.0}


def make_all(folder: Path) -> None:
    """Write them into the folder's `studies`."""
    (folder / "space.yaml").write_text(SPACE)
    space = load_space(folder / "space.yaml", framework="fake", circumstances=Circumstances(version="0", device="cpu"))
    workload = Workload(
        model="model.py:tiny",
        reference=f"{folder}/model.py:tiny",
        framework="fake",
        device="cpu",
        search_path=str(folder),
    )

    def make_study(name: str, traffic: Traffic | None = None, **more: Any) -> Study:
        fields = {
            "schema": 4,
            "id": name,
            "name": name,
            "created": "2026-01-01T00:00:00+00:00",
            "autotune_version": "0",
            "optuna_version": "0",
            "framework_version": "0",
            "space_file": "space.yaml",
            "space": space,
            "workload": workload.model_copy(update={"traffic": traffic}),
            "objectives": (Objective(),),
            "constraints": (),
            "tolerance": 1e-3,
            "variables": {},
        }
        return FolderStudies(folder / "studies").create(Manifest.model_validate({**fields, **more}))

    for make in (_earlier, _rich, _shapes, _infeasible, _noisy):
        make(make_study, space).close()


def _measured(ms: float, **changes: Any) -> Measurement:
    """Three calls of that many milliseconds, more or less."""
    samples = Samples(latency_s=(ms / 1e3, 1.01 * ms / 1e3, 1.02 * ms / 1e3), steady=True, ended_by="precision")
    return MEASURED.model_copy(update={"samples": samples, "compile_s": 16.0, **changes})


def outcome_of(config: Config) -> Measurement | Failure:
    """What a trial of the config gives, in every study alike."""
    if config.get("gemm") == "fancy":
        error = "RuntimeError: no fancy kernel for this processor\nand a second line"
        return Failure(reason=Reason.COMPILE_ERROR, stage=Stage.COMPILE, error=error, evidence="stderr.txt")
    is_compiled, is_frozen = config["execution"] == "compile", bool(config.get("freezing"))
    ms = LATENCY_MS[config.get("mode")] * (0.9 if is_frozen else 1.0)
    broken = (GraphBreak(reason="print", location="model.py:7", count=2, ailment=BreakKind.PRINT, hint="do not"),)
    again = (Recompile(reason="L['x'].size()[0] == 4", ailment=BreakKind.CHANGING_SHAPE, compile_s=1.5),)
    diagnosis = Diagnosis(
        compiled=is_compiled,
        num_graphs=2 if is_compiled else 0,
        graph_breaks=broken if is_frozen else (),
        recompiles=again if is_frozen else (),
        num_kernels=12 if is_compiled else None,
    )
    return _measured(
        ms,
        diagnosis=diagnosis,
        # Threads make no difference to what is compiled.
        program=f"{config.get('mode')}-{is_frozen}" if is_compiled else None,
        peak_memory_bytes=(900 if is_frozen else 600 if is_compiled else 500) * 2**20,
        relative_error=3e-6 if is_compiled else None,
        compile_s=20.0 if is_frozen else 16.0 if is_compiled else 0.0,
        compile_peak_memory_bytes=(1500 if is_frozen else 600) * 2**20,
    )


def _search(study: Study, configs: list[Config], outcome_at: Callable[[int, Config], Any] | None = None) -> None:
    """Untuned, default, then these, in their order; None for an outcome is a trial that was lost."""
    study.budget = Budget(num_trials=len(configs) + 2)
    study.enqueue(configs)
    for _ in range(len(configs) + 2):
        asked = ask(study)
        assert asked is not None
        outcome = outcome_of(asked.config) if outcome_at is None else outcome_at(asked.number, asked.config)
        study.abandon(asked) if outcome is None else study.tell(asked, outcome)


def _configs(space: SearchSpace) -> list[Config]:
    anchors = {space.untuned(), space.default()}
    return sorted((config for config in space.configs() if config not in anchors), key=str)


def _earlier(make_study: Callable[..., Study], space: SearchSpace) -> Study:
    """Another study of the model, whose configs are a prior; its verdict is a tie."""
    study = make_study("earlier")
    with study.writing():
        _search(study, [config for config in _configs(space) if config.get("gemm") == "plain"])
        study.stop_reason = StopReason.TIME
        study.confirmation = Confirmation(
            verdict=Verdict.TIE,
            candidate=3,
            contestants=(0, 3),
            num_trials=6,
            margin=0.02,
            blocks=((0.01, 0.0099), (0.01, 0.01), (0.0101, 0.01)),
            speedups=(Speedup(median=1.01, low=0.99, high=1.02),),
        )
    return study


def _rich(make_study: Callable[..., Study], space: SearchSpace) -> Study:
    """A study of two objectives on two workers, in which nearly everything was found that can be."""
    study = make_study(
        "rich",
        objectives=(Objective(), Objective(quantity="memory")),
        constraints=(Constraint.parse("graph_breaks <= 0"),),
        variables={"OMP_NUM_THREADS": "2"},
    )
    here, there = ({"name": f"{host}:0", "host": host, "study_s": 0.01} for host in ("here", "there"))

    def outcome_at(number: int, config: Config) -> Measurement | Failure | None:
        outcome = outcome_of(config)
        if number == 4:
            return None
        if isinstance(outcome, Failure):
            return outcome
        worker = OnWorker(**here, untuned_s=0.01) if number % 3 else OnWorker(**there, untuned_s=0.0104)
        changes: dict[str, Any] = {"worker": worker}
        if number == 0:
            changes["not_varied"] = ("every input has 4 rows",)
        if config.get("mode") == "most":
            changes["not_compared"] = ("output 'cache' (Cache)",)
        if number == 3:
            usage = Usage(cpu_s=(0.01,) * 3, page_faults=(0,) * 3, involuntary_switches=(9,) * 3, taken_s=0.01)
            changes["samples"] = outcome.samples.model_copy(update={"usage": usage})
        return outcome.model_copy(update=changes)

    with study.writing():
        source = priors.read_prior("earlier", study.studies)
        priors.enqueue_priors(study, [source], lambda event: None)
        _search(study, _configs(space), outcome_at)
        best, other = (
            record.number
            for record in study.records()
            if record.state == "measured" and record.config.get("mode") == "most"
        )
        study.noise_floor = NoiseFloor(
            pairs=((0.01, 0.0101), (0.01, 0.00995)), spread=0.012, relative_error=0.0, start_s=1.5
        )
        study.second_baseline = _second_baseline(study)
        for after, latency_s in ((3, 0.0101), (9, 0.0109)):
            study.drift_checks = [*study.drift_checks, DriftCheck(after=after, latency_s=latency_s)]
        workers, pairs = ("here:0", "here:1"), ((0.01, 0.0112),) * 3
        NEIGHBOURS.write(study, [Neighbours(host="here", workers=workers, pairs=pairs, noise_floor=0.012)])
        LOST_TRIALS.write(study, ["there:0"])
        for number, x in enumerate((1.0, 1.01, 0.99, 1.0), 1):
            values = {0: 0.01 * x, best: 0.005 * x}
            # The other one was tried when the first was proven already.
            more = {} if number < 3 else {other: 0.0052 * x}
            control = 0.0101 * x if number < 4 else None
            row = BlockRow(number=number, values=values | more, control=control, second=0.0081 * x)
            study.blocks = [*study.blocks, row]
        study.answers = [
            AnswerStep(after_s=31.2, trial=1, speedup=Speedup(median=1.25, low=1.1, high=1.42), num_blocks=3),
            AnswerStep(after_s=58.4, trial=best, speedup=Speedup(median=2.0, low=1.95, high=2.05), num_blocks=2),
        ]
        study.stop_reason = StopReason.UNPROMISING
        study.early_stop = ExpectedGain(num_trials=9, num_untried=3, expected_gain=0.0004, num_idle=5)
        study.confirmation = Confirmation(
            verdict=Verdict.FASTER,
            candidate=best,
            contestants=(0, best, other),
            num_trials=study.num_recorded(),
            blocks=tuple((row.values[0], row.values[best], row.values.get(other)) for row in study.blocks),
            compile_warm_s=0.8,
            speedups=(Speedup(median=2.0, low=1.95, high=2.05), Speedup(median=1.92, low=1.85, high=1.99)),
            note="one process crashed and was started again",
        )
        key = Key(
            framework="fake",
            framework_version="0",
            autotune_version="0",
            python="3.11",
            platform="Linux",
            processor="x",
            cpu_flags_sha256=None,
            num_cores=2,
            device="cpu",
            tools={},
            variables={},
            structure_sha256="0",
            inputs=(),
            config="f",
        )
        artifact = Artifact(
            file="best.cache",
            sha256="0" * 64,
            num_bytes=5 * 2**20,
            key=key,
            check_first_call=False,
            compile_s=1.25,
            compile_cold_s=16.0,
        )
        EXPORTED_CACHE.write(study, ExportedCache(trial=best, artifact=artifact))
    return study


def _shapes(make_study: Callable[..., Study], space: SearchSpace) -> Study:
    """A study under traffic; its winner hits the limit of compilations."""
    study = make_study(
        "shapes",
        objectives=(Objective.parse("total:1000"),),
        traffic=parse_shapes(["rows=1:50%,2:30%,5:20%"]),
    )
    stream = (0, 1, 0, 2)

    def outcome_at(number: int, config: Config) -> Measurement | Failure:
        outcome = outcome_of(config)
        if isinstance(outcome, Failure):
            return outcome
        ms = outcome.latency.p50 * 1e3
        samples = outcome.samples.model_copy(
            update={"latency_s": tuple((1 + shape) * ms / 1e3 for shape in stream) * 2}
        )
        graphs = (1, 2, 2, 2) if outcome.diagnosis.compiled else (0, 0, 0, 0)
        replay = Replay(
            sizes=({"rows": 1}, {"rows": 2}, {"rows": 5}),
            stream=stream,
            cold_s=(outcome.compile_s + 0.01, 1.0, 0.01, 0.03),
            compilations=tuple(Compilations(num_graphs=number, num_given_up=number // 2) for number in graphs),
            inputs=(Axis(dimension="rows", leaf=0, axis=0),),
        )
        return outcome.model_copy(update={"samples": samples, "replay": replay})

    with study.writing():
        _search(study, _configs(space)[:3], outcome_at)
        study.stop_reason = StopReason.TRIALS
        study.confirmation = Confirmation(
            verdict=Verdict.FASTER,
            candidate=3,
            contestants=(0, 3),
            num_trials=5,
            compile_warm_s=0.5,
            cut_short=True,
            blocks=((20.0, 16.5), (20.2, 16.6)),
            speedups=(Speedup(median=1.21, low=1.15, high=1.3),),
        )
    return study


def _infeasible(make_study: Callable[..., Study], space: SearchSpace) -> Study:
    """No config keeps the constraint, and nothing was compared."""
    study = make_study("infeasible", constraints=(Constraint.parse("peak_memory <= 400MiB"),))
    with study.writing():
        _search(study, _configs(space)[:2])
        study.budget = Budget(num_trials=4, wall_s=215)
        study.stop_reason = StopReason.TRIALS
        study.confirmation = Confirmation(verdict=Verdict.INFEASIBLE, num_trials=4, left_s=161.3)
    return study


def _noisy(make_study: Callable[..., Study], space: SearchSpace) -> Study:
    """A config looks faster, but not beyond doubt."""
    study = make_study("noisy")
    with study.writing():
        _search(study, _configs(space)[:2])
        study.stop_reason = StopReason.TRIALS
        study.confirmation = Confirmation(
            verdict=Verdict.UNDECIDED,
            candidate=3,
            contestants=(0, 3),
            num_trials=4,
            blocks=((0.01, 0.0096), (0.012, 0.0101), (0.0098, 0.0097), (0.011, 0.0099)),
            speedups=(Speedup(median=1.07, low=0.91, high=1.27),),
            confidence=0.947,
            left_s=3.2,
            why="another block did not fit in the 3 s left",
            cut_short=True,
        )
        study.second_baseline = _second_baseline(study)
        study.blocks = [
            BlockRow(
                number=number,
                values={0: untuned_s, 3: tuned_s},
                second=0.0088,
                states={0: _state(untuned_s, faults), 3: _state(tuned_s, 0)},
            )
            for number, (untuned_s, tuned_s), faults in zip(
                (1, 2, 3, 4), ((0.01, 0.0096), (0.012, 0.0101), (0.0098, 0.0097), (0.011, 0.0099)),
                (0, 1500, 0, 750), strict=True,
            )
        ]  # fmt: skip
    return study


def _second_baseline(study: Study) -> SecondBaseline:
    config = Config({**study.manifest.space.untuned().root, "allocator": "keep"})
    pairs = ((0.01, 0.0082), (0.01, 0.0081))
    return SecondBaseline(config=config, deed="keeping memory", by_hand="KEEP=1 in the environment", pairs=pairs)


def _state(latency_s: float, faults: int) -> ProcessState:
    return ProcessState(latency_s=latency_s, page_faults=faults, switches=4, cores=1, others=0, stolen=0)
