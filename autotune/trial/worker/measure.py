"""One trial in the child: build, compile, check and time the workload under the request's config."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from autotune import environment
from autotune.apply import compile_model
from autotune.apply.config_parts import ConfigParts
from autotune.apply.warm_start import key_here, warm_start
from autotune.backends.capabilities import ImportedAhead, require
from autotune.backends.protocol import Backend
from autotune.backends.registry import entry_of
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.files import write_whole
from autotune.measure.device_state import DeviceTimes, times_beside
from autotune.measure.measurement import Measurement, Replay, Samples, Stage
from autotune.measure.profile import Profile
from autotune.measure.sampling import SamplingPlan, take_samples, take_turns
from autotune.trial.folder import KEPT_CACHES, KEY_FILE, TrialFolder
from autotune.trial.request import TrialRequest
from autotune.trial.worker.accuracy_check import check, reference_tolerance
from autotune.trial.worker.device_lock import DeviceLock
from autotune.trial.worker.memory import PeakMemory
from autotune.trial.worker.reference import complete_reference
from autotune.trial.worker.spared import Spared
from autotune.trial.worker.stages import StageReporter, Turns
from autotune.trial.worker.subject import Subject, build_subject, paired_with
from autotune.trial.worker.task import task_for
from autotune.trial.worker.timed_calls import SecondCall, calls_of_a_pass, copying_s, first_pass, one_call

PROFILED_CALLS = 5
DEVICE_TIMES_S = 0.2
"""Longest that calls are timed by the device's own clock, and pipelined, each."""


@dataclass(frozen=True)
class Supervision:
    """What the process was started with; nothing where it was started by hand."""

    turns: Turns | None
    gate: Turns | None
    ahead: ImportedAhead | None


def measure(request: TrialRequest, progress: StageReporter, supervision: Supervision, backend: Backend) -> Measurement:
    """Build, compile, check and time the workload under the request's config. Raises on any failure.

    A live process takes its samples in `turns`; a prepared one waits at the `gate` before it takes any. On an
    accelerator everything from the check on has the device for itself, and so has a compiler that times candidates.
    """
    progress.enter(Stage.BUILD)
    backend.prepare(request.workload.device, request.workload.seed)
    device = DeviceLock.of(request, backend, progress)
    memory = PeakMemory(backend)
    subject = _as_compared(request, build_subject(request.workload, backend))
    model, inputs = subject.model, subject.inputs
    task = task_for(request.workload, subject, backend)

    with task.recording():
        device.enter(Stage.COMPILE)
        memory.restart()
        spared = Spared(
            request, backend, supervision.ahead, device.without_waits(progress.without_pauses(backend.clock))
        )
        start = spared.clock()
        changes = UndoLog()
        for kind in request.without:
            require(backend.capture_despite, f"a graph break of kind {kind.value}")(kind, changes)
        config = ConfigParts.of(request.config).settings
        replay = outputs = None
        with (
            _caches_of_the_first_call(request, subject, backend),
            spared.found(),
            _alone(request, backend, supervision.turns or supervision.gate),
        ):
            step = task.compile(request.config, changes)
            if subject.stream is None:
                outputs = inputs[0].call(step)
                backend.synchronise()
            else:
                replay = first_pass(
                    subject, step, config, backend, clock=spared.clock, wrapping_s=spared.clock() - start
                )
        first_call_s = spared.clock() - start if replay is None else replay.cold_s[0]
        compile_peak_bytes = memory.peak_bytes(spared.resident_bytes)

        device.enter(Stage.CHECK)
        if replay is not None:
            outputs = inputs[0].call(step)
        second = SecondCall(step, backend, spared.clock) if _is_recorded_later(subject, config, backend) else None
        seen = task.observe(
            second or step, outputs, reference_tolerance=(held_to := reference_tolerance(request, subject.dtypes))
        )
        second_call_s = None if second is None else second.seconds
        # What is recorded in the second call is held as well; without one the check is no part of the compile.
        compile_peak_bytes = compile_peak_bytes if second is None else memory.peak_bytes(spared.resident_bytes)
        checked = check(request, seen, request.tolerance_for(subject.dtypes), task.gate)
        del outputs, seen

        program = compile_model.program(backend, model, request.config)
        here = environment.describe(device=backend.device_name(), variables=request.variables)
        if supervision.gate is None or not supervision.gate.wait():
            progress.enter(Stage.RUN)
        memory.restart()
        samples = _take(request, subject, step, backend, supervision.turns, device=device)
        peak_bytes = memory.peak_bytes(spared.resident_bytes)
        device_times, copies_s = _times_beside(request, subject, step, backend, device)
        device.release()
        task.require_sound(step)
        diagnosis = backend.diagnose(model, config)
        _profile(request, one_call(step, inputs[0], backend), backend)
        complete_reference(request, task, step, held_to)

    own_compile_s = _compile_s((first_call_s, second_call_s), replay, samples)
    cold = request.compiled_before
    return Measurement(
        samples=samples,
        first_call_s=first_call_s,
        compile_s=own_compile_s if cold is None else cold.compile_s,
        peak_memory_bytes=peak_bytes,
        compile_peak_memory_bytes=compile_peak_bytes if cold is None else cold.peak_memory_bytes,
        relative_error=None if checked.errors is None else max(checked.errors),
        output_errors=checked.errors,
        not_compared=checked.not_compared,
        not_varied=task.not_varied if request.judged else (),
        diagnosis=diagnosis,
        signature=subject.signature,
        environment=here,
        stage_s=progress.spent_s(),
        program=program,
        compiled_from=None if cold is None else cold.trial,
        replay=replay,
        second_call_s=second_call_s,
        compile_spared_s=spared.seconds,
        device_times=device_times,
        copies_s=copies_s,
    )


def _as_compared(request: TrialRequest, subject: Subject) -> Subject:
    """With the inputs that the reference was made of, if there is one."""
    return paired_with(subject, Path(request.reference)) if request.judged else subject


def _alone(request: TrialRequest, backend: Backend, waits: Turns | None) -> AbstractContextManager[None]:
    """On a CPU a compiler that times candidates has the machine for itself as long as it does; if it does not tell when
    that is, in the whole first call. Taken within the timed call, since it imports the compiler."""
    entry = entry_of(request.workload.framework)
    if waits is None or request.workload.device != "cpu" or not entry.compiles(request.config):
        return nullcontext()
    is_told = backend.lock_benchmarks(waits.alone) or not entry.picks(request.config)
    return nullcontext() if is_told else waits.alone()


def _is_recorded_later(subject: Subject, config: Config, backend: Backend) -> bool:
    """Under traffic each shape has its own second call, somewhere in the second pass, which is not told apart."""
    return subject.stream is None and backend.calls_until_compiled(subject.model, config) > 1


def _times_beside(
    request: TrialRequest, subject: Subject, step: Callable[..., Any], backend: Backend, device: DeviceLock
) -> tuple[DeviceTimes | None, float | None]:
    """Of the calls by the device's own clock, and of copies; after the samples, so that no event is recorded within a
    timed call."""
    return _device_times(subject, step, backend, device), _copies_s(request, subject, step, backend, device)


def _device_times(
    subject: Subject, step: Callable[..., Any], backend: Backend, device: DeviceLock
) -> DeviceTimes | None:
    if backend.instruments is None or subject.stream is not None:
        return None
    device.take()
    launch = partial(subject.inputs[0].call, step)
    return times_beside(launch, backend.synchronise, backend.instruments, backend.clock, DEVICE_TIMES_S)


def _copies_s(
    request: TrialRequest, subject: Subject, step: Callable[..., Any], backend: Backend, device: DeviceLock
) -> float | None:
    """Of inference with one shape: what a training step gives is a number, whose copy costs nothing."""
    copy = backend.copies_outputs(subject.model, ConfigParts.of(request.config).settings)
    if copy is None or subject.stream is not None or request.workload.task == "train":
        return None
    device.take()
    return copying_s(copy, subject.inputs[0].call(step), backend.synchronise, backend.clock)


def _compile_s(cold_s: tuple[float | None, ...], replay: Replay | None, samples: Samples) -> float:
    """Extra time of the calls that compile, compared with steady calls."""
    if replay is None:
        median_s = float(np.median(samples.latency_s))
        return max(sum(each - median_s for each in cold_s if each is not None), 0.0)
    return max(sum(replay.cold_s) - len(replay.stream) * float(np.mean(samples.latency_s)), 0.0)


def _profile(request: TrialRequest, call: Callable[[], None], backend: Backend) -> None:
    """Profile if the request says where to, after all timing, since a profiler slows the model down."""
    if request.profile_in is None:
        return
    folder = TrialFolder(Path(request.profile_in))
    folder.path.mkdir(parents=True, exist_ok=True)
    if backend.profile is None:
        profile = Profile.of({}, PROFILED_CALLS, "this framework's backend has no profiler")
    else:
        profile = backend.profile(call, PROFILED_CALLS, folder.trace_file)
    folder.write_profile(profile)


def _caches_of_the_first_call(request: TrialRequest, subject: Subject, backend: Backend) -> AbstractContextManager[Any]:
    """The compile caches that the request asks for. Raises InputError for an artifact that cannot be used here."""
    if request.keep_cache_in is None and request.shipped is None:
        return nullcontext()
    leaves = subject.inputs[0].leaves()
    structure = subject.signature.structure_sha256
    here = key_here(request.workload.framework, backend, request.config, structure, leaves)
    if request.shipped is not None:
        home, unpack_to = Path(request.shipped.home), Path(request.cache, "artifact")
        return warm_start(backend, request.shipped.artifact, home, here, unpack_to).first_call(leaves)
    assert request.keep_cache_in is not None
    kept = Path(request.keep_cache_in)
    caches = kept / KEPT_CACHES
    caches.mkdir(parents=True, exist_ok=True)
    write_whole(kept / KEY_FILE, here.model_dump_json(indent=2))
    return require(backend.compile_cache, "a shipped compile cache").use(caches, here.sha256)


def _take(
    request: TrialRequest,
    subject: Subject,
    step: Callable[..., Any],
    backend: Backend,
    turns: Turns | None,
    *,
    device: DeviceLock,
) -> Samples:
    plan = _plan(request, backend, subject)
    calls = calls_of_a_pass(subject, step, backend, plan.calls_per_sample)
    if turns is None:
        device.take()
        return take_samples(calls, plan, backend.clock, backend.instruments)
    return take_turns(calls, plan, partial(_next_turn, turns, device), backend.clock, backend.instruments)


def _next_turn(turns: Turns, device: DeviceLock) -> bool:
    """Others of this study and of other ones have the device between two turns."""
    device.release()
    if not turns.wait():
        return False
    device.take()
    return True


def _plan(request: TrialRequest, backend: Backend, subject: Subject) -> SamplingPlan:
    """The study's plan with the framework's minimum of warm-up calls, limited to the time of the stage. Calls of a
    stream are timed one by one."""
    changes = {
        "min_warmup_calls": max(request.sampling.min_warmup_calls, backend.warmup_calls),
        "longest_s": 0.9 * request.limits.run,
        "calls_per_sample": request.sampling.calls_per_sample if subject.stream is None else 1,
    }
    return request.sampling.model_copy(update=changes)
