"""What one block more is for once the verdict is there, which nothing of it changes.

On a CPU, the third baseline: engines beside the framework, beside the answer and the untuned model. An engine is a
contestant that is no config: its process exports the model, is held to the same outputs as any trial, and takes its
turns.

On a device, load that lasts: the answer and the untuned model make calls for some seconds without a pause, as a job
does. The device becomes hot then and its clocks drop, and whoever keeps it busier may be held back first. Turns of a
tenth of a second with pauses between them do not show that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.backends.engine import Engine, engines_for
from autotune.measure.statistics import COMPILED, Verdict
from autotune.own_folders import remove
from autotune.study.records import (
    ENGINE_BLOCK,
    SUSTAINED,
    SUSTAINED_S,
    Confirmation,
    EngineBlock,
    EngineFigure,
    Sustained,
    TrialRecord,
)
from autotune.study.study import Study
from autotune.trial.folder import TrialFolder
from autotune.tuning.blocks import Contestant, blocked_run
from autotune.tuning.estimate import block_plan
from autotune.tuning.events import EnginesMissing, EnginesStarted
from autotune.tuning.session import Session, trial_request
from autotune.tuning.time_budget import TimeBudget
from autotune.workload.kinds import kind_of

_UNTUNED, _BEST = "untuned", "best"
MOST_COMPILE_S = 120.0
"""An export that takes longer is given up."""


def engines_of(study: Study) -> dict[str, Engine]:
    """Engines that could run the model of this study, installed or not: it is about steady calls of one model and one
    shape on a CPU."""
    manifest = study.manifest
    workload = manifest.workload
    is_one_model = kind_of(workload).has_engines and not manifest.components
    is_for_it = workload.device == "cpu" and manifest.objective.is_latency and is_one_model
    return engines_for(manifest.framework) if is_for_it else {}


def tell_of_missing(session: Session) -> None:
    """Say which of them are not installed."""
    missing = [engine.title for engine in engines_of(session.study).values() if not engine.is_installed]
    if missing and session.bench.is_here:
        session.notify(EnginesMissing(tuple(missing)))


def to_be_timed(session: Session) -> dict[str, Engine]:
    """Those that are installed, where the processes of this study run."""
    is_here = session.bench.is_here
    return {name: each for name, each in engines_of(session.study).items() if each.is_installed and is_here}


def time_after_verdict(session: Session, time: TimeBudget, confirmation: Confirmation) -> Confirmation:
    """The verdict as it is. What is timed in one block more is kept with the study."""
    study = session.study
    _time_sustained(session, time, confirmation)
    engines = to_be_timed(session)
    is_usual = study.untuned_record() is not None and session.untuned.measurement.signature.work is None
    if not engines or not is_usual:
        return confirmation
    number = confirmation.candidate if confirmation.verdict in COMPILED else None
    best = next((record for record in study.records() if record.number == number), None)
    if time.engines_s(best) > time.left_s:
        ENGINE_BLOCK.write(study, EngineBlock(figures=_left_out(engines, "no time was left for it")))
        return confirmation
    session.notify(EnginesStarted(tuple(engine.title for engine in engines.values())))
    ENGINE_BLOCK.write(study, _block(session, engines, [] if best is None else [best]))
    return confirmation


def _time_sustained(session: Session, time: TimeBudget, confirmation: Confirmation) -> None:
    """The answer and the untuned model, one turn of `SUSTAINED_S` each, kept with the study: on a device, where
    something is faster, as far as there is time."""
    study, folder = session.study, session.study.folder / "sustained"
    is_asked = study.manifest.workload.device != "cpu" and session.objective.is_latency and session.bench.is_here
    if not is_asked or confirmation.verdict is not Verdict.FASTER:
        return
    best = next(record for record in study.records() if record.number == confirmation.candidate)
    if time.block_s([best]) + 2 * SUSTAINED_S > time.left_s:
        return
    remove(folder)
    plan = block_plan([session.untuned, best], session.objective, session.budget)
    entries = [(_UNTUNED, session.untuned.number, session.untuned.config), (_BEST, best.number, best.config)]
    once = {"num_rounds": 1, "fewest_rounds": 1, "first_look": 1, "num_looks": 1}
    run = blocked_run(session, folder, entries, plan.model_copy(update=once))
    run.contestants = [_under_load(contestant) for contestant in run.contestants]
    run.measure_block()
    remove(folder)
    if run.blocks:
        values = {name: session.value(measured) for name, measured in run.blocks[0].items()}
        SUSTAINED.write(study, Sustained(trial=best.number, untuned=values[_UNTUNED], best=values[_BEST]))


def _under_load(contestant: Contestant) -> Contestant:
    sampling = contestant.request.sampling.model_copy(update={"turn_s": SUSTAINED_S})
    return replace(contestant, request=contestant.request.model_copy(update={"sampling": sampling}))


def _block(session: Session, engines: dict[str, Engine], finalists: Sequence[TrialRecord]) -> EngineBlock:
    study, folder = session.study, session.study.folder / "engines"
    remove(folder)
    entries = [(_UNTUNED, session.untuned.number, session.untuned.config)]
    entries += [(_BEST, record.number, record.config) for record in finalists]
    plan = block_plan([session.untuned, *finalists], session.objective, session.budget)
    run = blocked_run(session, folder, entries, plan.model_copy(update={"first_look": 1, "num_looks": 1}))
    for name in engines:
        request = trial_request(study, 0, session.untuned.config, TrialFolder(folder / name), session.budget)
        limits = request.limits.model_copy(update={"compile": min(request.limits.compile, MOST_COMPILE_S)})
        run.contestants.append(Contestant(name, request.run_by(name).limited_to(limits)))
    run.measure_block()
    remove(folder / "cache")
    if not run.blocks:
        why = {name: failure.error for name, failure in run.failures.items()}
        return EngineBlock(figures=_left_out(engines, "its block did not end in time", why))
    values = {name: session.value(measured) for name, measured in run.blocks[0].items()}
    figures = [
        EngineFigure(name=name, title=engine.title, release=engine.release, value=values.get(name), problem=problem)
        for name, engine in engines.items()
        for problem in [None if name in values else run.failures[name].error]
    ]
    best = finalists[0].number if finalists else None
    return EngineBlock(figures=tuple(figures), untuned=values[_UNTUNED], trial=best, best=values.get(_BEST))


def _left_out(engines: dict[str, Engine], why: str, own: dict[str, str] = {}) -> tuple[EngineFigure, ...]:  # noqa: B006
    return tuple(
        EngineFigure(name=name, title=engine.title, release=engine.release, problem=own.get(name, why))
        for name, engine in engines.items()
    )
