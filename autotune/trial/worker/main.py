"""The program of a trial's child: it prepares the process, measures, and writes one outcome to the trial's folder.

The folder is the whole interface, also by hand (`run` prints the command). The process runs one trial and ends
with it, so it may change the environment, the working folder and a framework's global switches.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

import numpy as np

from autotune import own_folders
from autotune.apply.config_parts import ConfigParts
from autotune.backends.capabilities import ImportedAhead
from autotune.backends.protocol import Backend
from autotune.backends.registry import load_backend
from autotune.environment import usable_cpus
from autotune.errors import AutotuneError, InvalidConfigError, quoted, worded
from autotune.measure.measurement import Failure, Measurement, Outcome, Reason, Stage
from autotune.trial.folder import TrialFolder
from autotune.trial.processes import lacks_process_resources, lacks_room_on_disk, module_command
from autotune.trial.request import TrialRequest
from autotune.trial.toolchain import install_toolchain
from autotune.trial.worker import instances, reference, same_numbers
from autotune.trial.worker.accuracy_check import WrongResultError
from autotune.trial.worker.measure import Supervision, be_instance, measure
from autotune.trial.worker.near_miss import NearMissError
from autotune.trial.worker.stages import GATE_FD_VARIABLE, TURN_FD_VARIABLE, StageReporter, Turns, take_pipe
from autotune.workload.process_start import ProcessStart

_RESTARTED = "AUTOTUNE_RESTARTED"
_PACKAGE = Path(__file__).resolve().parents[2]
_REASONS: dict[type[BaseException], Reason] = {
    WrongResultError: Reason.WRONG_RESULT,
    InvalidConfigError: Reason.INVALID,
    AutotuneError: Reason.SETUP,
}
"""The first match wins, so subclasses come before their bases."""


def main(arguments: list[str], ahead: ImportedAhead | None = None) -> int:
    """Run the trial in the folder `arguments[0]`; 0 if it left an outcome of any kind.

    With a second argument it helps the process of a trial, and measures nothing: with `reference.ONLY` it writes the
    wide reference, with `same_numbers.ONLY` it checks training steps, with `instances.ONLY` it is
    a further instance. `ahead` is what the process that this one was forked from has imported.
    """
    if not arguments or not set(arguments[1:]) <= set(_HELPERS):
        print("usage: trial/worker/main.py FOLDER   (a folder that holds request.json)", file=sys.stderr)
        return 2
    folder = TrialFolder(own_folders.absolute(arguments[0]))
    try:
        request = folder.read_request()
    except (OSError, ValueError) as error:
        print(f"{folder.path}: no readable request.json: {error}", file=sys.stderr)
        return 2
    helps = arguments[1:]
    temporary = None
    if not helps:
        _require_start(request, folder)
        temporary = _use_temporary_folder(request, folder)
    progress = StageReporter(folder)
    turns, gate = (_turns(name, progress) for name in (TURN_FD_VARIABLE, GATE_FD_VARIABLE))
    if not helps and reference.is_missing(request):
        progress.enter(Stage.CHECK)
        status = reference.write_in_child(folder)
        if reference.is_missing(request):
            return status
    supervision = Supervision(turns, gate, ahead)
    measuring = partial(_measured, request, progress, supervision)
    job = _HELPERS[helps[0]](request, folder, progress) if helps else measuring
    outcome = run(job, request, progress, folder, ahead)
    if outcome is not None:
        folder.write_outcome(outcome)
    if isinstance(outcome, Failure):
        print(worded(f"{outcome.reason} at {outcome.stage}: {outcome.error}"), file=sys.stderr)
    if temporary is not None:
        own_folders.remove(temporary)
    return 0


_Job = Callable[[Backend], Measurement | None]
_HELPERS: dict[str, Callable[[TrialRequest, TrialFolder, StageReporter], _Job]] = {
    reference.ONLY: lambda request, _, progress: partial(reference.write, request, enter=progress.enter),
    same_numbers.ONLY: lambda request, folder, progress: partial(
        same_numbers.write, request, folder, enter=progress.enter
    ),
    instances.ONLY: lambda request, _, progress: partial(be_instance, request, progress),
}
"""What a process does that helps that of a trial, by the name that it is started with."""


def run(
    job: _Job,
    request: TrialRequest,
    progress: StageReporter,
    folder: TrialFolder,
    ahead: ImportedAhead | None = None,
) -> Outcome | None:
    """The result of `job`, or a `Failure` for any exception in it; the traceback goes to stderr."""
    backend: Backend | None = None
    try:
        backend = load_backend(request.workload.framework)
        _use_folders(request, folder, backend)
        if ahead is not None:
            ahead.adopt(request.cache)
        return job(backend)
    except NearMissError as near:
        traceback.print_exc()
        return near.timed(failure_of(near.wrong, progress.stage, request, backend, str(folder.stderr)), folder)
    except BaseException as error:
        traceback.print_exc()
        return failure_of(error, progress.stage, request, backend, evidence=str(folder.stderr))


def _turns(variable: str, progress: StageReporter) -> Turns | None:
    pipe = take_pipe(variable)
    return None if pipe is None else Turns(pipe, progress)


def _require_start(request: TrialRequest, folder: TrialFolder) -> None:
    """Restart this Python if a variable that is declared is not set, or the config asks for another start: variables,
    preloaded libraries and a core set are read only when a process starts. Such a trial is no fork of a process that
    has imported its framework, and imports it itself."""
    try:
        start = ConfigParts.of(request.config).start
    except AutotuneError:
        start = ProcessStart()  # `_measured` says it.
    # PYTHONPATH is left out: this package must come first. Restart only once: Python changes some variables itself.
    missing = {n: v for n, v in request.variables.items() if os.environ.get(n) != v and n != "PYTHONPATH"}
    wanted = {**missing, **start.environment({**os.environ, **missing})}
    cores = start.core_set()
    if (wanted or cores not in (None, usable_cpus())) and os.environ.pop(_RESTARTED, None) is None:
        given = ",".join(map(str, sorted(usable_cpus())))
        if cores is not None:
            os.sched_setaffinity(0, cores)
        command = module_command("trial.worker.main", str(folder.path))
        variables = {**os.environ, **wanted, _RESTARTED: "1", instances.CORES_VARIABLE: given}
        os.execve(sys.executable, command, variables)


def _measured(
    request: TrialRequest, progress: StageReporter, supervision: Supervision, backend: Backend
) -> Measurement:
    """What the trial is. Raises InvalidConfigError where this machine does not start a process as the config asks."""
    lacking = ConfigParts.of(request.config).start.lacking()
    if lacking:
        raise InvalidConfigError(f"this machine started no process with {'; '.join(lacking)}")
    return measure(request, progress, supervision, backend)


def _use_temporary_folder(request: TrialRequest, folder: TrialFolder) -> Path | None:
    """Keep temporary files of this process and of compilers with the trial. None if the user has set TMPDIR."""
    if "TMPDIR" in request.variables:
        return None
    folder.drop_temporary()
    temporary = folder.temporary
    temporary.mkdir(mode=0o700)
    os.environ["TMPDIR"] = str(temporary)
    tempfile.tempdir = None  # The process that this one was forked from may have cached it.
    return temporary


def _use_folders(request: TrialRequest, folder: TrialFolder, backend: Backend) -> None:
    """Use the trial's own working folder and compile caches; empty the caches if the request says so."""
    cache = Path(request.cache)
    own_folders.make_empty(cache) if request.cold else own_folders.make(cache)
    if request.toolchain is not None and "TMPDIR" not in request.variables:
        install_toolchain(Path(request.toolchain), cache, Path(tempfile.gettempdir()))
    os.environ.update(backend.cache_variables(request.cache))
    own_folders.make_empty(folder.scratch)
    os.chdir(folder.scratch)


def failure_of(
    error: BaseException, stage: Stage, request: TrialRequest, backend: Backend | None, evidence: str
) -> Failure:
    """A `Failure` whose reason follows from the exception's type, or else from the stage in which it was raised."""
    return Failure(
        reason=_reason(error, stage, request, backend),
        stage=stage,
        error=_with_hint(error, request, backend),
        evidence=evidence,
        relative_error=_finite(getattr(error, "relative_error", None)),
    )


def _reason(error: BaseException, stage: Stage, request: TrialRequest, backend: Backend | None) -> Reason:
    by_type = next((reason for kind, reason in _REASONS.items() if isinstance(error, kind)), None)
    if by_type is not None:
        return by_type
    if stage in (Stage.START, Stage.BUILD) or lacks_process_resources(error) or lacks_room_on_disk(error):
        return Reason.SETUP
    by_backend = backend.classify(error) if backend is not None else None
    if by_backend is not None:
        return by_backend
    if isinstance(error, MemoryError):
        return Reason.OUT_OF_MEMORY
    return Reason.COMPILE_ERROR if stage is Stage.COMPILE and not request.untuned else Reason.RUN_ERROR


def _with_hint(error: BaseException, request: TrialRequest, backend: Backend | None) -> str:
    """Sentences of this package's own say what to do, and where a config fails, there is nothing to do. Of the user's
    own code it is said where and from what it comes."""
    if isinstance(error, AutotuneError) or not request.untuned:
        return message_of(error)
    hint = None if backend is None else backend.hint(error, request.workload.task)
    return traced(error) + (f" ({hint})" if hint else "")


def traced(error: BaseException) -> str:
    """What is told of an exception of the user's own code: where and from what it comes."""
    return message_of(error) + _origin(error)


def _origin(error: BaseException) -> str:
    """The innermost exception that it came from, if it is another one, and the last line that is the user's own."""
    chain = list(_chain(error))
    inner = chain[-1]
    frames = [frame for each in chain for frame in traceback.extract_tb(each.__traceback__)]
    own = [frame for frame in frames if not _LIBRARIES.search(frame.filename)]
    line = f" [{Path(own[-1].filename).name}, line {own[-1].lineno}]" if own else ""
    return ("" if inner is error else f"; it comes from {quoted(inner)}") + line


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception, and those that a traceback would show above it, the nearest first."""
    shown: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in shown:
        shown.append(following)
        yield following
        following = following.__cause__ or (None if following.__suppress_context__ else following.__context__)


_LIBRARIES = re.compile(rf"[/\\](site|dist)-packages[/\\]|[/\\]lib[/\\]python\d|^<|{re.escape(str(_PACKAGE))}")
"""Paths of frames that are not the user's."""


def message_of(error: BaseException) -> str:
    """What is told of an exception in a line or a few."""
    if isinstance(error, AutotuneError):
        return error.with_tip()
    return quoted(error, max_lines=4, max_chars=600)


def _finite(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None


def leave(code: int) -> NoReturn:
    """Exit without the interpreter's shutdown, in which frameworks hang or abort; the outcome is on disk."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
