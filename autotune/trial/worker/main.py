"""The child of a trial as a program: it prepares the process, measures, and leaves one outcome in the trial's folder.

A folder is the whole interface, by hand too (`cli.py run` prints the command). The process belongs to one trial and
ends with it, so it may set what it likes: environment, working folder, a framework's global switches.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NoReturn

from autotune.backends.protocol import Backend
from autotune.backends.registry import load_backend
from autotune.measure.measurement import Failure, Measurement, Outcome, Stage
from autotune.trial.command import module_command
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.trial.toolchain import install_toolchain
from autotune.trial.worker import reference
from autotune.trial.worker.failures import failure_of
from autotune.trial.worker.measure import measure
from autotune.trial.worker.stages import TURN_FD_VARIABLE, Progress, Turns, take_pipe

_STARTED_ANEW = "AUTOTUNE_STARTED_ANEW"


def main(arguments: list[str]) -> int:
    """Run the trial in the folder `arguments[0]`; 0 if it left an outcome of any kind.

    With `reference.ONLY` as a second argument: write the wide reference and measure nothing.
    """
    if not arguments or arguments[1:] not in ([], [reference.ONLY]):
        print("usage: trial/worker/main.py FOLDER   (a folder that holds request.json)", file=sys.stderr)
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
    pipe = take_pipe(TURN_FD_VARIABLE)
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
        install_toolchain(Path(request.toolchain), Path(request.cache), Path(tempfile.gettempdir()))
    os.environ.update(backend.cache_variables(request.cache))
    folder.scratch.mkdir(exist_ok=True)
    os.chdir(folder.scratch)


def leave(code: int) -> NoReturn:
    """End without the interpreter's shutdown: frameworks hang or abort in theirs, and the outcome is on disk."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main(sys.argv[1:]))
