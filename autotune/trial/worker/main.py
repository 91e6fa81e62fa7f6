"""The child of a trial: build, compile, check, run; then one outcome in the trial's folder.

A folder is the whole interface, by hand too (`cli.py run` prints the command). The process belongs to one trial and
ends with it, so it may set what it likes: environment, working folder, a framework's global switches.
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import psutil

from autotune import environment
from autotune.apply import compile_model
from autotune.apply.warm_start import key_here, warm_start
from autotune.backends.protocol import Backend
from autotune.backends.registry import load_backend
from autotune.backends.undo import UndoLog
from autotune.errors import AutotuneError, InvalidConfigError, quoted
from autotune.files import write_whole
from autotune.measure.measurement import Failure, Measurement, Outcome, Reason, Replay, Samples, Stage
from autotune.measure.passes import take_passes, take_passes_in_turns
from autotune.measure.sampling import SamplingPlan, take_samples, take_turns
from autotune.trial.command import module_command
from autotune.trial.folder import KEPT_CACHES, KEY_FILE, TrialFolder
from autotune.trial.request import TrialRequest
from autotune.trial.room import is_without_room
from autotune.trial.toolchain import hand_over
from autotune.trial.worker import reference
from autotune.trial.worker.accuracy_check import WrongResultError, check
from autotune.trial.worker.memory import PeakMemory
from autotune.trial.worker.reused_samples import find_equivalent_trial
from autotune.trial.worker.subject import Subject, put_on_device
from autotune.trial.worker.task import task_for
from autotune.trial.worker.traffic_replay import first_pass, stream_calls
from autotune.workload.workload import Arguments

STAGE_FD_VARIABLE = "AUTOTUNE_STAGE_FD"
"""Number of the pipe on which a supervisor listens for stages; unset when started by hand."""
TURN_FD_VARIABLE = "AUTOTUNE_TURN_FD"
"""Number of the pipe on which a live process is told when to take samples; unset where they are taken in one go."""

_STARTED_ANEW = "AUTOTUNE_STARTED_ANEW"

PROFILED_CALLS = 5


_REASONS: dict[type[BaseException], Reason] = {
    WrongResultError: Reason.WRONG_RESULT,
    InvalidConfigError: Reason.INVALID,
    AutotuneError: Reason.HARNESS,
}
"""First match wins, so a subclass stands before its base."""


class Progress:
    """The stage that the child is in, told to the folder and to the supervisor; and the seconds spent in each."""

    def __init__(self, folder: TrialFolder) -> None:
        self._folder = folder
        self._pipe = _pipe_named(STAGE_FD_VARIABLE)
        self.stage = Stage.START
        # The age of a process is told by the wall clock; all that follows is not.
        self._entered = time.monotonic() - max(time.time() - psutil.Process().create_time(), 0.0)
        self._spent_s: dict[Stage, float] = {}

    def enter(self, stage: Stage) -> None:
        self._note_time()
        self.stage = stage
        self._folder.write_stage(stage)
        if self._pipe is not None:
            with suppress(BrokenPipeError):
                os.write(self._pipe, f"{stage.value}\n".encode())

    def spent_s(self) -> dict[Stage, float]:
        """Seconds in each stage until now; `start` counts from the process's own beginning."""
        self._note_time()
        return {stage: round(seconds, 4) for stage, seconds in self._spent_s.items()}

    def _note_time(self) -> None:
        now = time.monotonic()
        self._spent_s[self.stage] = self._spent_s.get(self.stage, 0.0) + now - self._entered
        self._entered = now


class Turns:
    """When a live process may take samples. `None` in its place: at once, by the plan."""

    def __init__(self, pipe: int, progress: Progress) -> None:
        self._pipe = pipe
        self._progress = progress

    def wait(self) -> bool:
        """Idle until the next turn; False when there will be no more."""
        self._progress.enter(Stage.WAIT)
        told = os.read(self._pipe, 1)
        self._progress.enter(Stage.RUN)
        return bool(told)


def _pipe_named(variable: str) -> int | None:
    """The pipe whose number an environment variable holds; what the child starts must not have either."""
    number = os.environ.pop(variable, None)
    if number is None:
        return None
    os.set_inheritable(int(number), False)
    return int(number)


def main(arguments: list[str]) -> int:
    """Run the trial in the folder `arguments[0]`; 0 if it left an outcome of any kind.

    With `reference.ONLY` as a second argument: write the wide reference and measure nothing.
    """
    if not arguments or arguments[1:] not in ([], [reference.ONLY]):
        print("usage: worker.py FOLDER   (a folder that holds request.json)", file=sys.stderr)
        return 2
    folder = TrialFolder(Path(arguments[0]).resolve())
    try:
        request = folder.read_request()
    except (OSError, ValueError) as error:
        print(f"{folder.path}: no readable request.json: {error}", file=sys.stderr)
        return 2
    only_reference = arguments[1:] == [reference.ONLY]
    temporary = None
    if not only_reference:
        _stand_on_variables(request, folder)
        temporary = _use_temporary_folder(request, folder)
    progress = Progress(folder)
    pipe = _pipe_named(TURN_FD_VARIABLE)
    if not only_reference and reference.is_missing(request):
        progress.enter(Stage.CHECK)
        status = reference.let_another_process_write(folder)
        if reference.is_missing(request):
            return status
    job: Callable[[Backend], Measurement | None]
    if only_reference:
        job = partial(reference.write, request, enter=progress.enter)
    else:
        job = partial(measure, request, progress, None if pipe is None else Turns(pipe, progress))
    outcome = run(job, request, progress, folder)
    if outcome is not None:
        folder.write_outcome(outcome)
    if isinstance(outcome, Failure):
        print(f"{outcome.reason} at {outcome.stage}: {outcome.error}", file=sys.stderr)
    if temporary is not None:
        shutil.rmtree(temporary, ignore_errors=True)
    return 0


def run(
    job: Callable[[Backend], Measurement | None], request: TrialRequest, progress: Progress, folder: TrialFolder
) -> Outcome | None:
    """What the job gives, or whatever goes wrong in it as a `Failure`; the traceback goes to stderr."""
    backend: Backend | None = None
    try:
        backend = load_backend(request.workload.framework)
        _use_folders(request, folder, backend)
        return job(backend)
    except BaseException as error:
        traceback.print_exc()
        return failure_of(error, progress.stage, request, backend, evidence=str(folder.stderr))


def measure(request: TrialRequest, progress: Progress, turns: Turns | None, backend: Backend) -> Measurement:
    """Build, compile, check and time the workload under the request's config. Raises on any failure."""
    progress.enter(Stage.BUILD)
    backend.prepare(request.workload.device, request.workload.seed)
    memory = PeakMemory(backend)
    subject = put_on_device(request.workload, backend)
    model, inputs = subject.model, subject.inputs
    tolerance = request.tolerance_for(subject.dtypes)
    exercise = task_for(request.workload, subject, backend)

    with exercise.recording():
        progress.enter(Stage.COMPILE)
        memory.restart()
        start = time.perf_counter()
        changes = UndoLog()
        for ailment in request.without:
            backend.capture_despite(ailment, changes)
        config = compile_model.without_variants(request.config)
        replay = outputs = None
        with _caches_of_the_first_call(request, subject, backend):
            step = exercise.compile(request.config, changes)
            if subject.stream is None:
                outputs = inputs[0].call(step)
                backend.synchronise()
            else:
                replay = first_pass(subject, step, config, backend, time.perf_counter() - start)
        first_call_s = time.perf_counter() - start if replay is None else replay.cold_s[0]
        compile_peak_bytes = memory.peak_bytes()

        progress.enter(Stage.CHECK)
        if replay is not None:
            outputs = inputs[0].call(step)
        seen = exercise.observe(step, outputs)
        errors = check(request, seen, tolerance, exercise.gate) if request.judged else None
        del outputs, seen

        program = compile_model.program(backend, model, request.config)
        here = environment.describe(device=backend.device_name(), variables=request.variables)
        # A live process is there to be timed beside others: it never takes anything over.
        mate = find_equivalent_trial(request, program, here) if turns is None else None
        if mate is not None:
            samples, peak_bytes = mate.measurement.samples, mate.measurement.peak_memory_bytes
        else:
            progress.enter(Stage.RUN)
            memory.restart()
            samples = _take(request, subject, step, backend, turns)
            peak_bytes = memory.peak_bytes()
            exercise.require_sound(step)
        diagnosis = backend.diagnose(model, config)
        if request.profile_in is not None:
            _profile(_one_call(backend, step, inputs[0]), TrialFolder(Path(request.profile_in)), backend)

    own_compile_s = _compile_s(first_call_s, replay, samples)
    paid = request.compiled_before
    return Measurement(
        samples=samples,
        first_call_s=first_call_s,
        compile_s=own_compile_s if paid is None else paid.compile_s,
        peak_memory_bytes=peak_bytes,
        compile_peak_memory_bytes=compile_peak_bytes if paid is None else paid.peak_memory_bytes,
        relative_error=None if errors is None else max(errors),
        output_errors=errors,
        diagnosis=diagnosis,
        signature=subject.signature,
        environment=here,
        stage_s=progress.spent_s(),
        program=program,
        reused_from=None if mate is None else mate.number,
        compiled_from=None if paid is None else paid.trial,
        replay=replay,
    )


def _compile_s(first_call_s: float, replay: Replay | None, samples: Samples) -> float:
    """What the calls that compile took beyond steady ones."""
    if replay is None:
        return max(first_call_s - float(np.median(samples.latency_s)), 0.0)
    return max(sum(replay.cold_s) - len(replay.stream) * float(np.mean(samples.latency_s)), 0.0)


def _profile(call: Callable[[], None], folder: TrialFolder, backend: Backend) -> None:
    """After everything that is timed: a profiler slows down what it watches."""
    folder.path.mkdir(parents=True, exist_ok=True)
    folder.write_profile(backend.profile(call, PROFILED_CALLS, folder.trace_file))


def failure_of(
    error: BaseException, stage: Stage, request: TrialRequest, backend: Backend | None, evidence: str
) -> Failure:
    """The reason behind an exception: told by its type first, else by the stage in which it came."""
    return Failure(
        reason=_reason(error, stage, request, backend),
        stage=stage,
        error=_in_words(error),
        evidence=evidence,
        relative_error=_finite(getattr(error, "relative_error", None)),
    )


def _reason(error: BaseException, stage: Stage, request: TrialRequest, backend: Backend | None) -> Reason:
    by_type = next((reason for kind, reason in _REASONS.items() if isinstance(error, kind)), None)
    if by_type is not None:
        return by_type
    if stage in (Stage.START, Stage.BUILD) or (isinstance(error, OSError) and error.errno == errno.ENOSPC):
        return Reason.HARNESS
    if is_without_room(error):
        return Reason.HARNESS
    told = backend.classify(error) if backend is not None else None
    if told is not None:
        return told
    if isinstance(error, MemoryError):
        return Reason.OUT_OF_MEMORY
    return Reason.COMPILE_ERROR if stage is Stage.COMPILE and not request.untuned else Reason.RUN_ERROR


def _in_words(error: BaseException) -> str:
    if isinstance(error, AutotuneError):
        return f"{error} ({error.tip})" if error.tip else str(error)
    return quoted(error, max_lines=4, max_chars=600)


def _finite(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None


def _stand_on_variables(request: TrialRequest, folder: TrialFolder) -> None:
    """Start this Python anew if a declared variable does not stand: some are read only when a process starts."""
    # PYTHONPATH stands as far as it can: this package must come first. And once only: Python changes some itself.
    missing = {n: v for n, v in request.variables.items() if os.environ.get(n) != v and n != "PYTHONPATH"}
    if missing and os.environ.pop(_STARTED_ANEW, None) is None:
        command = module_command("trial.worker.main", str(folder.path))
        os.execve(sys.executable, command, {**os.environ, **missing, _STARTED_ANEW: "1"})


def _use_temporary_folder(request: TrialRequest, folder: TrialFolder) -> Path | None:
    """Temporary files of this process and of the compilers go with the trial. None where the user says where to."""
    if "TMPDIR" in request.variables:
        return None
    folder.drop_temporary()
    temporary = folder.temporary
    temporary.mkdir(mode=0o700)
    os.environ["TMPDIR"] = str(temporary)
    tempfile.tempdir = None  # Somebody may have asked in the process that this one was forked from.
    return temporary


def _use_folders(request: TrialRequest, folder: TrialFolder, backend: Backend) -> None:
    """An own working folder and own, if asked for empty, compile caches."""
    if request.cold:
        shutil.rmtree(request.cache, ignore_errors=True)
    Path(request.cache).mkdir(parents=True, exist_ok=True)
    if request.toolchain is not None and "TMPDIR" not in request.variables:
        hand_over(Path(request.toolchain), Path(request.cache), Path(tempfile.gettempdir()))
    os.environ.update(backend.cache_variables(request.cache))
    folder.scratch.mkdir(exist_ok=True)
    os.chdir(folder.scratch)


def _caches_of_the_first_call(request: TrialRequest, subject: Subject, backend: Backend) -> AbstractContextManager[Any]:
    """Where the request wants them. Raises InputError for an artifact that cannot be used here."""
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
    return backend.compile_cache(caches, here.sha256)


def _one_call(backend: Backend, step: Callable[..., Any], inputs: Arguments) -> Callable[[], None]:
    def call() -> None:
        inputs.call(step)
        backend.synchronise()

    return call


def _take(
    request: TrialRequest, subject: Subject, step: Callable[..., Any], backend: Backend, turns: Turns | None
) -> Samples:
    """Of the example inputs, or of the stream in whole passes."""
    plan = _plan(request, backend)
    if subject.stream is not None:
        calls = stream_calls(subject, step, backend)
        if turns is None:
            return take_passes(calls, plan, incumbent_s=request.incumbent_s)
        return take_passes_in_turns(calls, plan, turns.wait)
    call = _one_call(backend, step, subject.inputs[0])
    if turns is None:
        return take_samples(call, plan, incumbent_s=request.incumbent_s)
    return take_turns(call, plan, turns.wait)


def _plan(request: TrialRequest, backend: Backend) -> SamplingPlan:
    """The study's plan, with the framework's own least number of warm-up calls, within the limit of the stage."""
    least = max(request.sampling.min_warmup_calls, backend.warmup_calls)
    return request.sampling.model_copy(update={"min_warmup_calls": least, "longest_s": 0.9 * request.limits.run})


def leave(code: int) -> NoReturn:
    """End without the interpreter's shutdown: frameworks hang or abort in theirs, and the outcome is on disk."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
