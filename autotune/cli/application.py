"""What all commands share: the application, how a command ends, and the options that several of them take."""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ParamSpec

import typer

from autotune.errors import AutotuneError

if TYPE_CHECKING:
    from autotune.answer import Answer
    from autotune.budget import Budget
    from autotune.study import Study

app = typer.Typer(
    help="Find, prove and ship the best compile configuration of a deep-learning model.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

P = ParamSpec("P")
StudiesDir = Annotated[Path, typer.Option("--studies-dir", help="Folder that holds the studies.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead.")]
BudgetFile = Annotated[
    Path | None, typer.Option("--budget", help="YAML file that says how much to measure (docs/measurement.md).")
]

DEFAULT_STUDIES_DIR = Path("studies")


def plainly(command: Callable[P, int | None]) -> Callable[P, None]:
    """Turn the ends of a command into an exit status and a sentence; a bug keeps its traceback."""

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
        raise typer.Exit(code or 0)

    return run


def budget_of(file: Path | None) -> Budget:
    """What the file asks for, the usual for the rest."""
    from autotune.budget import Budget
    from autotune.files import parse_as, read_yaml

    return Budget() if file is None else parse_as(Budget, read_yaml(file), file)


def print_document(study: Study, answer: Answer) -> None:
    """All of a study as one JSON document on stdout."""
    from autotune.report.document import document

    typer.echo(json.dumps(document(study.manifest, answer), indent=2))


def end_politely() -> None:
    """A polite kill, or a terminal that is closed, ends a run as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` means it.
            signal.signal(number, _interrupt)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def say(text: str) -> None:
    """To stderr: stdout is for results."""
    typer.echo(text, err=True)
