"""One trial in the child: build, compile, check and time the workload under the request's config.

The order of events is part of what is measured. In each stage:

    build     The backend is prepared (seeds, device), then the lock of the device is made, which asks for it. Peak
              memory counts from before the model is there. The calls are made of the untouched subject, so that they
              know what it was before any call.
    compile   Where the compiler times candidates on an accelerator, the device is taken first, and waiting for it is
              not on the clock. Then the peak is reset, and the clock started: from here on to the end of the first
              call (or first pass of a stream) everything is compile time, the caches that are unpacked and the imports
              that were spared included. On a CPU a compiler that times candidates has the machine for itself within.
              The peak is read when all of that is over.
    check     Has the device for itself on an accelerator. The further calls begin. If something is still recorded in
              the second call, that is timed, counts as compiling, and the compile's peak is read once more after the
              calls, before their results are compared. What the calls gave is dropped with the frame of `_prove`: it
              is no part of the peak while running.
              A config that rounds and is wrong by little goes on all the same, its failure on record (`near_miss`).
    run       A prepared process waits at its gate, warm, without the device. The peak is reset; warm-up and samples
              follow with the device taken, in a live process for each turn. Right after the last sample the peak is
              read. Only then comes what would disturb samples: events of the device's own clock, copies of outputs,
              further calls to see whether memory grows. The device is released, and what runs after that may be slow or
              spoil the model: a check that training is sound, the compiler's own reports, the profile, the nudged calls
              that complete a reference; in a finalist's first block a longer use (`use`); and last, when the outcome is
              written, calls with whole numbers that the untuned model may refuse (`input_limits`).

docs/decisions/0030-device-locks.md tells about the device; `costs` what is spared, `memory`
how it is read.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from autotune import environment
from autotune.apply import compile_model
from autotune.apply.config_parts import ConfigParts
from autotune.apply.warm_start import key_here, warm_start
from autotune.backends.capabilities import ImportedAhead, require
from autotune.backends.engine import ENGINES
from autotune.backends.protocol import Backend
from autotune.backends.registry import entry_of
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.files import write_whole
from autotune.measure.device_state import DeviceTimes, times_beside
from autotune.measure.limits import InputLimits
from autotune.measure.measurement import Checked, Compiled, Growth, Measurement, Samples, Stage, Timed
from autotune.measure.sampling import Beside, SamplingPlan, take_samples, take_turns
from autotune.trial.folder import KEPT_CACHES, KEY_FILE, TrialFolder
from autotune.trial.request import TrialRequest
from autotune.trial.worker import instances, same_numbers
from autotune.trial.worker.accuracy_check import WrongResultError, check, reference_tolerance
from autotune.trial.worker.calls import calls_for
from autotune.trial.worker.calls.calls import Calls, Step
from autotune.trial.worker.costs import Spared, copying_s
from autotune.trial.worker.device_lock import DeviceLock
from autotune.trial.worker.input_limits import little_to_lose, look_for_limits
from autotune.trial.worker.memory import PeakMemory, growth_of
from autotune.trial.worker.near_miss import Near, NearMissError, near_miss
from autotune.trial.worker.reference import complete_reference
from autotune.trial.worker.stages import StageReporter, Turns
from autotune.trial.worker.subject import Subject
from autotune.trial.worker.subjects import subject_of
from autotune.workload.process_start import INSTANCES

PROFILED_CALLS = 5
DEVICE_TIMES_S = 0.2
"""Longest that calls are timed by the device's own clock, and pipelined, each."""


@dataclass(frozen=True)
class Supervision:
    """What the process was started with; nothing where it was started by hand."""

    turns: Turns | None
    gate: Turns | None
    ahead: ImportedAhead | None

    @property
    def waits(self) -> Turns | None:
        """By what a process is told that it may go on; it can ask for the machine there."""
        return self.turns or self.gate


@dataclass(frozen=True)
class _Trial:
    """What is there once the model is built."""

    request: TrialRequest
    progress: StageReporter
    supervision: Supervision
    backend: Backend
    device: DeviceLock
    memory: PeakMemory
    subject: Subject
    calls: Calls
    begun_s: Callable[[], float] | None = None
    """Tells the seconds that the compile is spared, since the compiler's processes were begun with this one."""
    others: instances.Others | None = None
    """Further instances of the model, which make calls while this process takes its samples."""

    @property
    def settings(self) -> Config:
        """The part of the config that is the backend's."""
        return ConfigParts.of(self.request.config).settings


@dataclass
class _Compiling:
    """A step, and what it took until everything was compiled."""

    step: Step
    changes: UndoLog
    """Held until the trial ends: a context that nothing holds any more may end by itself."""
    spared: Spared
    first_call_s: float
    peak_bytes: int | None
    host_bytes: int | None
    second_call_s: float | None = None

    def figures(self, trial: _Trial, samples: Samples) -> Compiled:
        """Its own, or in a process that found an earlier compile's caches those of that compile."""
        own_s = trial.calls.compile_s(self.first_call_s, self.second_call_s, samples)
        cold = trial.request.compiled_before
        return Compiled(
            first_call_s=self.first_call_s,
            second_call_s=self.second_call_s,
            compile_s=own_s if cold is None else cold.compile_s,
            compile_spared_s=self.spared.seconds,
            compile_peak_memory_bytes=self.peak_bytes if cold is None else cold.peak_memory_bytes,
            compile_host_bytes=self.host_bytes if cold is None else cold.host_bytes,
            compiled_from=None if cold is None else cold.trial,
        )


@dataclass(frozen=True)
class _Proof:
    """What the check came to."""

    checked: Checked
    held_to: float | None
    """The tolerance with which others are held to what this process computed; None if it wrote no reference."""
    near: Near | None = None
    """It is wrong by little, and timed all the same. `checked` is what a larger tolerance finds."""


def measure(request: TrialRequest, progress: StageReporter, supervision: Supervision, backend: Backend) -> Measurement:
    """Build, compile, check and time the workload under the request's config. Raises on any failure.

    A live process takes its samples in `turns`; a prepared one waits at the `gate` before it takes any. On an
    accelerator everything from the check on has the device for itself, and so has a compiler that times candidates.
    """
    with instances.Others.beside(progress.folder, request) as others:
        return _measure(replace(_build(request, progress, supervision, backend), others=others))


def be_instance(request: TrialRequest, progress: StageReporter, backend: Backend) -> None:
    """Be a further instance: all that instance 0 does up to the samples, then calls as long as that one wants them.
    Raises what it would raise."""
    first = instances.First()
    trial = _build(request, progress, Supervision(None, None, None), backend)
    if not first.says_to_prepare():
        return
    with trial.calls.recording():
        compiling, _ = _prove(trial)
        plan = _plan(trial)
        trial.memory.restart()
        if first.follow(trial.calls.one_pass(compiling.step, plan.calls_per_sample), plan, backend.clock):
            first.tell_memory(trial.memory.peak_bytes(compiling.spared.resident_bytes))


def _measure(trial: _Trial) -> Measurement:
    with trial.calls.recording():
        compiling, proof = _prove(trial)
        if proof.near is None:
            return _timed(trial, compiling, proof)

    def take() -> Measurement:
        with trial.calls.recording():
            return _timed(trial, compiling, proof)

    raise NearMissError(proof.near, take)


def _timed(trial: _Trial, compiling: _Compiling, proof: _Proof) -> Measurement:
    """Time what was checked, and complete the measurement."""
    request, backend, progress = trial.request, trial.backend, trial.progress
    model, calls = trial.subject.model, trial.calls
    if trial.others is not None:
        trial.others.prepare()
    step = compiling.step
    program = compile_model.program(backend, model, request.config)
    here = environment.describe(device=backend.device_name(), variables=request.variables)
    timed = _time(trial, step, compiling.spared.resident_bytes)
    calls.require_sound(step)
    diagnosis = backend.diagnose(model, trial.settings)
    _profile(request, calls.example(step), backend)
    complete_reference(request, calls, step, proof.held_to)
    measured = Measurement(
        **dict(compiling.figures(trial, timed.samples)),
        **dict(proof.checked),
        **dict(timed),
        diagnosis=diagnosis,
        signature=trial.subject.signature,
        environment=here,
        stage_s=progress.spent_s(),
        program=program,
        replay=calls.replay,
        generated=calls.generated,
    )
    measured = _used(trial, step, measured) if calls.is_used else measured
    return _with_limits(trial, step, measured) if request.finds_limits else measured


def _used(trial: _Trial, step: Step, measured: Measurement) -> Measurement:
    """Used longer than a trial does (`use`). Raises WrongResultError for a finalist that is wrong then. The outcome of
    the untuned model, which is asked for what nobody knows that it takes, is written before."""
    request, calls = trial.request, trial.calls
    trial.device.take()
    if request.untuned:
        trial.progress.folder.write_outcome(measured)
        is_on_cpu = request.workload.device == "cpu"
        with little_to_lose(measured.steady_call_s) if is_on_cpu else nullcontext():
            calls.lead_use(request, step)
    else:
        calls.require_use(request, step)
    trial.device.release()
    return measured.model_copy(update={"not_varied": calls.not_varied})


def _with_limits(trial: _Trial, step: Step, measured: Measurement) -> Measurement:
    """With the limits of the inputs that were found; `input_limits` says why it is written at once."""
    folder, request = trial.progress.folder, trial.request
    if request.workload.device != "cpu":
        return measured
    folder.write_outcome(measured)

    def found(limits: tuple[InputLimits, ...]) -> None:
        nonlocal measured
        measured = measured.model_copy(update={"limits": limits})
        folder.write_outcome(measured)

    with little_to_lose(measured.steady_call_s):
        look_for_limits(trial.calls, step, trial.backend, measured.steady_call_s, found)
    return measured


def _build(request: TrialRequest, progress: StageReporter, supervision: Supervision, backend: Backend) -> _Trial:
    progress.enter(Stage.BUILD)
    begun_s = _begin_compilers(request, backend)
    backend.prepare(request.workload.device, request.workload.seed)
    device = DeviceLock.of(request, backend, progress)
    memory = PeakMemory(backend)
    subject = subject_of(request, backend)
    calls = calls_for(request.workload, subject, backend)
    calls.is_used = request.is_used and request.judged
    return _Trial(request, progress, supervision, backend, device, memory, subject, calls, begun_s)


def _begin_compilers(request: TrialRequest, backend: Backend) -> Callable[[], float] | None:
    """The compiler's processes, where kernels are to be compiled. What tells the seconds that they spare."""
    begin, settings = backend.begin_compilers, ConfigParts.of(request.config).settings
    is_cold = request.compilers_ahead and request.compiled_before is None and not request.untuned
    return begin(settings, backend.clock) if is_cold and begin is not None else None


def _prove(trial: _Trial) -> tuple[_Compiling, _Proof]:
    """Compile, and check. What the calls gave ends with this frame."""
    compiling, output = _compile(trial)
    return compiling, _check(trial, compiling, output)


def _compile(trial: _Trial) -> tuple[_Compiling, Any]:
    """With the output for the first inputs, if `Calls.first` gave it."""
    request, backend, calls, supervision = trial.request, trial.backend, trial.calls, trial.supervision
    trial.device.enter(Stage.COMPILE)
    trial.memory.restart()
    clock = trial.device.without_waits(trial.progress.without_pauses(backend.clock))
    spared = Spared(request, backend, supervision.ahead, clock, trial.begun_s)
    calls.reset()
    begun = spared.clock()
    changes = UndoLog()
    for kind in request.without:
        require(backend.capture_despite, f"a graph break of kind {kind.value}")(kind, changes)
    settings = trial.settings
    with trial.memory.watched() as watch:
        with (
            _caches_of_the_first_call(request, trial.subject, backend),
            spared.found(),
            _calling_alone(trial) if request.untuned else _alone(request, backend, supervision.waits),
        ):
            if request.engine is None:
                step = calls.compile(request.config, changes)
            else:
                step = ENGINES.require(request.engine).run(trial.subject.model, trial.subject.inputs[0])
            output = calls.first(step, settings, spared.clock, begun)
        first_call_s = calls.first_call_s(spared.clock() - begun)
    peak_bytes, host_bytes = (memory.peak_bytes(spared.resident_bytes) for memory in (trial.memory, watch))
    return _Compiling(step, changes, spared, first_call_s, peak_bytes, host_bytes), output


def _check(trial: _Trial, compiling: _Compiling, output: Any) -> _Proof:
    """Raises WrongResultError. What the second call records is part of the compile, if it records anything."""
    request, calls, dtypes = trial.request, trial.calls, trial.subject.dtypes
    trial.device.enter(Stage.CHECK)
    held_to = reference_tolerance(request, dtypes)
    with _calling_alone(trial):
        second = calls.second(compiling.step, trial.settings, compiling.spared.clock)
        seen = calls.observe(second or compiling.step, output, reference_tolerance=held_to)
    if second is not None:
        compiling.second_call_s = second.seconds
        compiling.peak_bytes = trial.memory.peak_bytes(compiling.spared.resident_bytes)
    tolerance, near = request.tolerance_for(dtypes), None
    try:
        checked = check(request, seen, tolerance, calls.gate)
    except WrongResultError as error:
        is_timed = request.rounds and trial.supervision.turns is None
        near = near_miss(error, request, seen, tolerance, calls.gate) if is_timed else None
        if near is None:
            raise
        checked = near.checked
    if calls.compared_by_chance and request.compiled_before is None:
        checked = same_numbers.check_in_child(trial.progress.folder, request, trial.backend)
    not_varied = calls.not_varied if request.judged else ()
    taken = {"not_varied": not_varied, "assumed": trial.subject.assumed}
    return _Proof(checked.model_copy(update=taken), held_to, near)


def _time(trial: _Trial, step: Step, spared_bytes: int) -> Timed:
    """Take the samples, and after them what would disturb them."""
    gate = trial.supervision.gate
    if gate is not None:
        trial.device.release()  # Others are checked while this one waits.
    if gate is None or not gate.wait():
        trial.progress.enter(Stage.RUN)
    trial.memory.restart()
    samples = _take(trial, step)
    peak_bytes = trial.memory.peak_bytes(spared_bytes)
    device_memory = trial.backend.device_memory()
    if trial.others is not None:
        samples = trial.others.added_to(samples)
        peak_bytes = None if peak_bytes is None else peak_bytes + sum(trial.others.end())
    device_times, copies_s = _device_times(trial, step), _copies_s(trial, step)
    growth = _growth(trial, step, samples)
    trial.device.release()
    return Timed(
        samples=samples, peak_memory_bytes=peak_bytes, device_times=device_times, copies_s=copies_s,
        device_memory=device_memory, growth=growth,
    )  # fmt: skip


def _take(trial: _Trial, step: Step) -> Samples:
    """In one go, or turn by turn. Where the study compares instances, they are marked."""
    backend, turns, device, plan = trial.backend, trial.supervision.turns, trial.device, _plan(trial)
    one_pass = trial.calls.one_pass(step, plan.calls_per_sample)
    beside: Beside = nullcontext if trial.others is None else trial.others.calling
    if turns is None:
        device.take()
        samples = take_samples(one_pass, plan, backend.clock, backend.instruments, beside=beside)
    else:
        next_turn = partial(_next_turn, turns, device)
        samples = take_turns(
            one_pass, plan, next_turn, backend.clock, backend.instruments,
            tell=turns.tell, beside=beside, first=partial(_calling_alone, trial),
        )  # fmt: skip
    return samples.model_copy(update={"as_rate": INSTANCES in trial.request.config.root})


def _plan(trial: _Trial) -> SamplingPlan:
    """The study's plan with the framework's minimum of warm-up calls, limited to the time of the stage."""
    request = trial.request
    limits = {
        "min_warmup_calls": max(request.sampling.min_warmup_calls, trial.backend.warmup_calls),
        "longest_s": (0.4 if request.measures_growth else 0.9) * request.limits.run,
    }
    return trial.calls.sampling(request.sampling.model_copy(update=limits))


def _next_turn(turns: Turns, device: DeviceLock) -> bool:
    """Others of this study and of other ones have the device between two turns."""
    device.release()
    if not turns.wait():
        return False
    device.take()
    return True


def _device_times(trial: _Trial, step: Step) -> DeviceTimes | None:
    backend, launch = trial.backend, trial.calls.launch(step)
    if backend.instruments is None or launch is None:
        return None
    trial.device.take()
    return times_beside(launch, backend.synchronise, backend.instruments, backend.clock, DEVICE_TIMES_S)


def _copies_s(trial: _Trial, step: Step) -> float | None:
    backend, copy = trial.backend, trial.calls.copied(trial.settings)
    if copy is None:
        return None
    trial.device.take()
    trial.calls.reset()
    return copying_s(copy, trial.subject.inputs[0].call(step), backend.synchronise, backend.clock)


def _growth(trial: _Trial, step: Step, samples: Samples) -> Growth | None:
    """At most half of the stage is left to it."""
    request = trial.request
    if not request.measures_growth or trial.supervision.turns is not None:
        return None
    trial.device.take()
    calls = trial.calls.one_pass(step)
    call_s = sum(samples.latency_s) / len(samples.latency_s)
    return growth_of(calls, len(calls) * call_s, request.limits.run / 2, trial.backend)


def _alone(request: TrialRequest, backend: Backend, waits: Turns | None) -> AbstractContextManager[None]:
    """On a CPU a compiler that times candidates has the machine for itself as long as it does; if it does not tell when
    that is, in the whole first call. Taken within the timed call, since it imports the compiler."""
    entry = entry_of(request.workload.framework)
    if waits is None or request.workload.device != "cpu" or not entry.compiles(request.config):
        return nullcontext()
    is_told = backend.lock_benchmarks(waits.alone) or not entry.picks(request.config)
    return nullcontext() if is_told else waits.alone()


def _calling_alone(trial: _Trial) -> AbstractContextManager[None]:
    """On a CPU calls of many steps have the machine to themselves: beside a compile each loop of several threads waits
    for one that has no core, and a pass of 0.5 s takes 4 to 14 s (docs/decisions/0072-generate-in-the-model.md). A
    trial whose compiler times candidates may be alone within these calls already."""
    request, waits = trial.request, trial.supervision.waits
    picks = entry_of(request.workload.framework).picks(request.config)
    if waits is None or request.workload.device != "cpu" or picks or not trial.calls.has_many_steps:
        return nullcontext()
    return waits.alone()


def _profile(request: TrialRequest, call: Callable[[], None], backend: Backend) -> None:
    """Profile if the request says where to, after all timing, since a profiler slows the model down."""
    if request.profile_in is None or backend.profile is None:
        return
    folder = TrialFolder(Path(request.profile_in))
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.write_profile(backend.profile(call, PROFILED_CALLS))


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
