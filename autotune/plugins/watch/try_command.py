"""`try`: a job that runs once, with its models tuned and untuned in turns, and what its own calls say of both.

The job is a child, since its figures are told after its end. It has this process's terminal and standard streams and
is sent the signals that are sent to it, and this process ends as the job did.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from autotune import own_folders
from autotune.cli.app import print_line, say, say_error, with_exit_status
from autotune.cli.flags import AsJson, GroupedCommand, examples
from autotune.errors import InputError
from autotune.job.launch import CannotStartError, Launch
from autotune.plugins.watch.command import for_a_job, require_job, start_of, variables_of
from autotune.plugins.watch.document import is_unwritten
from autotune.plugins.watch.injected import TRY_VARIABLE
from autotune.plugins.watch.tried import document, lines, read_tried
from autotune.tuned.tuned_config import TunedConfig

_PASSED_ON = frozenset(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGTTIN", "SIGTTOU")
)
"""Signals of a job that this process is sent in the job's place."""
TRY = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


class _Try(GroupedCommand):
    """What stands behind two dashes is the job's."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        ctx.meta[__name__] = args[end + 1 :]
        return super().parse_args(ctx, args[:end])


@TRY.command("try", cls=_Try, epilog=examples("try best.yaml -- python serve.py", "try unet.yaml vae.yaml -- ./job"))
@with_exit_status
def try_job(
    context: typer.Context,
    files: Annotated[list[Path], typer.Argument(help="Exported YAML files.", metavar="FILE... -- COMMAND")],
    as_json: AsJson = False,
) -> int:
    """Run a job once with its models tuned and untuned in turns, and tell what its own calls took: what is delivered.

    The job's output and exit status are its own. The figures come after its end on standard error, or with --json as
    the last line of standard output.
    """
    job = require_job(context.meta[__name__])
    read = {file: _worth_it(file) for file in files}
    start, tuned = start_of(read), {str(own_folders.absolute(file)): each for file, each in read.items()}
    say(f"trying: calls of models that {', '.join(map(str, files))} fits are tuned and untuned in turns")
    with tempfile.TemporaryDirectory(prefix="autotune-try-") as folder:
        wanted = {"files": list(tuned), "folder": folder}
        has_begun, status = _status_of(start, job, {**os.environ, **variables_of(TRY_VARIABLE, wanted)})
        found, is_whole = read_tried(Path(folder)), not is_unwritten(Path(folder))
    if not has_begun:
        return status
    if not is_whole:
        say(
            f"what calls took could not be written to {tempfile.gettempdir()}: is the disk full? (TMPDIR names another)"
        )
    if as_json:
        print_line(json.dumps(document(tuned, found, status)))
    elif found or is_whole:
        for line in lines(tuned, found):
            say(line)
    if status < 0:
        _die_of(-status)
    return status


def _worth_it(file: Path) -> TunedConfig:
    """Raises InputError for a file that says to leave the model as it is, and for one that needs lines in the job."""
    tuned = for_a_job(file)
    if tuned.is_untuned:
        raise InputError(f"{file} says {tuned.verdict.value}: the model stays as it is, and there is nothing to try")
    return tuned


def _status_of(start: Launch, job: Sequence[str], variables: Mapping[str, str]) -> tuple[bool, int]:
    """Whether the job's command could be started, and its exit status; below 0 is the signal that ended it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
    try:
        failed, says_so = os.pipe()  # A command that is executed has it no more.
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            _be(start, job, variables, says_so)
        os.close(says_so)
        with os.fdopen(failed, "rb") as told:
            has_begun = not told.read()
        return has_begun, _waited_for(child)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _be(start: Launch, job: Sequence[str], variables: Mapping[str, str], says_so: int) -> None:
    """Be the job; or end, having told the parent."""
    status = 1
    try:
        start.execute(job, variables)
    except CannotStartError as problem:
        status = say_error(problem)
    finally:
        os.write(says_so, b"!")
        os._exit(status)


def _waited_for(child: int) -> int:
    """The exit status of the job, which is sent what this process is sent meanwhile. What comes from the terminal it
    has already."""
    while True:
        came = signal.sigwaitinfo({*_PASSED_ON, signal.SIGCHLD})
        if came.si_signo != signal.SIGCHLD:
            if came.si_code <= 0:  # Not of the kernel: see sigaction(2).
                os.kill(child, came.si_signo)
            continue
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)


def _die_of(number: int) -> None:
    """End by the signal that ended the job."""
    sys.stdout.flush()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
