"""What all commands share: the application, exit status and error messages, common options."""

from __future__ import annotations

import errno
import functools
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ParamSpec

import typer

from autotune.errors import AutotuneError, printable_lines

if TYPE_CHECKING:
    from autotune.results.result import StudyResult
    from autotune.study.study import Study

app = typer.Typer(
    help="Find, confirm and ship the best compile configuration of a deep-learning model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

P = ParamSpec("P")
StudiesDir = Annotated[Path, typer.Option("--studies-dir", help="Folder that holds the studies.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
BudgetFlag = Annotated[
    str | None,
    typer.Option(
        "--budget", help="Time for the whole command, e.g. 90s, 10m, 1h; or a YAML file that says how much to measure."
    ),
]

On = Annotated[
    str | None,
    typer.Option("--on", help="ray, or ray://HOST:PORT: all devices of a Ray cluster. [this machine]"),
]

DEFAULT_STUDIES_DIR = Path("studies")


def plainly(command: Callable[P, int | None]) -> Callable[P, None]:
    """Turn the errors of a command into an exit status and a message; a bug keeps its traceback."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = command(*args, **kwargs)
            sys.stdout.flush()
        except AutotuneError as error:
            say(f"error: {error}")
            if error.tip:
                say(f"tip: {error.tip}")
            code = error.exit_code
        except KeyboardInterrupt:
            say("interrupted")
            code = 130
        except BrokenPipeError:
            # The reader of our output went away (`| head`): nothing is wrong, and nothing more can be said.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
        except OSError as error:
            if error.errno not in _OF_THE_DISK:
                raise
            say(f"error: cannot write {error.filename or 'a file'}: {error.strerror}")
            say(f"tip: {_OF_THE_DISK[error.errno]}; what is recorded stays, and the same command goes on")
            code = 2
        raise typer.Exit(code or 0)

    return run


_OF_THE_DISK = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of your quota",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
    errno.EROFS: "use a place that can be written: --studies-dir",
    errno.EIO: "check the disk",
}
"""Errors of the system that no bug of ours explains -> what to do."""


def print_document(study: Study, answer: StudyResult) -> None:
    """All of a study as one JSON document on stdout."""
    from autotune.report.json import document

    print_line(json.dumps(document(study.manifest, answer), indent=2))


def end_politely() -> None:
    """SIGTERM and SIGHUP stop a run as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` means it.
            signal.signal(number, _interrupt)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def print_line(text: str) -> None:
    """A result, to stdout. Text from models and files has no effect on the terminal, here and in `say`."""
    typer.echo(printable_lines(text))


def say(text: str) -> None:
    """To stderr: stdout is for results."""
    typer.echo(printable_lines(text), err=True)


def one_of(flag: str, text: str, *choices: str) -> Any:
    """The text, if it is a choice. Raises InputError."""
    from autotune.errors import InputError

    if text not in choices:
        raise InputError(f"{flag} {text}: unknown", tip=f"choose {', '.join(choices[:-1])} or {choices[-1]}")
    return text


def require_on(on: str, deadline: str | None = None, *, profiled: bool = False) -> None:
    """Raises InputError, before anything is measured, for a cluster that cannot be used or is not used for all."""
    from autotune.errors import InputError
    from autotune.trial.ray.cluster import require_known

    if deadline is not None or profiled:
        flag = "--profile" if deadline is None else "--deadline"
        raise InputError(f"{flag} and --on: that part runs on this machine alone", tip="leave one of the two out")
    require_known(on)
