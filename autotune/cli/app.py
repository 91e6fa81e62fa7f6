"""What all commands share: the application, exit status and error messages, common options."""

from __future__ import annotations

import errno
import functools
import inspect
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, ParamSpec

import typer
from typer.core import TyperGroup

from autotune.command_line import as_flag, command, flag, without_tuning
from autotune.doors import Door
from autotune.errors import OUTPUT, AutotuneError, InputError, answering, did_you_mean, naming, printable_lines, worded
from autotune.question.question import Question

if TYPE_CHECKING:
    from autotune.answer.result import StudyResult

COMMANDS: Door[Callable[..., Any]] = Door("autotune.commands", "command", Callable)  # type: ignore[arg-type]
"""Functions with the annotations of typer, or of one `question` that stands for all flags of `tune`, whose value is the
exit status: `autotune NAME`; or a `typer.Typer` with a group of such commands. The help does not list them: looking for
them takes as long as there are packages."""
_UsageError: Any = typer.BadParameter.__bases__[0]
"""Click's, or that of the copy of click in newer releases of typer, which has no public name."""


_EFFORT = f"{flag('effort')}: {Question.model_fields['effort'].description}"
_ALL = f"`show STUDY {flag('as_json')}` has every setting of every trial"
_GONE = {
    **dict.fromkeys(("--preset", "--early-stop", "--no-early-stop", "--thorough", "--no-thorough"), _EFFORT),
    **dict.fromkeys(("--portfolio", "--no-portfolio"), f"write `portfolio` into a file of {flag('budget')}"),
    **dict.fromkeys(("--csv", "--markdown", "--full"), _ALL),
    "--own-loop": f"it is what `train` means; {flag('whole_step')} is the exception",
    "--ranks": "a study measures one rank",
    "--profile": "profile `autotune.load(FILE).apply(model)` in your program",
    "--deadline": f"tune each size of the model with {flag('objective')} p99",
    "--sampler": f"there is one; {flag('effort')} and {flag('trials')} say how much is tried",
    "--retune": f"tune there with {flag('prior')} FILE, then `compare`",
    "--report": f"`report STUDY` and `fleet verify FILE... {flag('report')} PAGE` write pages",
    "prune": "`studies rm NAME...` removes what `studies` lists",
    "tune-watched": "`tune FOLDER` asks what was seen",
}
"""Option or command that there was, here or at all -> what is to be done now."""


def _worded(mistake: Any) -> InputError:
    """A mistake in options or arguments, as a sentence with what to do."""
    said, wrong = str(mistake.message), str(getattr(mistake, "option_name", ""))
    if not getattr(mistake, "possibilities", None):
        said = mistake.format_message().removesuffix(".")
    guess = did_you_mean(wrong, getattr(mistake, "possibilities", None) or ())
    called = mistake.ctx.command_path if mistake.ctx else command()
    gone = next((_GONE[word] for word in (wrong, *said.split("'")) if word in _GONE), None)
    return InputError(said[:1].lower() + said[1:], tip=gone or f"{guess}`{called} -h` lists what there is")


class Commands(TyperGroup):
    """All commands. With `--json` a mistake in options or arguments is a document too."""

    _as_json = False
    groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "Find": ("tune", "resume", "diagnose"),
        "Look": ("show", "report", "explain", "compare", "run"),
        "Ship": ("export", "launch", "verify"),
        "What is here": ("studies", "models", "spaces", "doctor"),
    }
    """Heading of the help -> the commands below it."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - click's signature
        for title, names in self.groups.items():
            with formatter.section(title):
                shown = {name: self.commands[name].get_short_help_str(formatter.width) for name in names}
                formatter.write_dl([(f"{name:<8}", about) for name, about in shown.items()])

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        known = super().get_command(ctx, cmd_name)
        if known is not None or not COMMANDS.has(cmd_name):
            return known
        from autotune.cli.flags import asks

        function = COMMANDS.require(cmd_name)
        if isinstance(function, typer.Typer):
            return typer.main.get_command(function)
        if "question" in inspect.signature(function).parameters:
            function = asks()(function)
        alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        alone.command(cmd_name)(with_exit_status(function))
        return typer.main.get_command(alone)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        self._as_json = "--json" in args
        with self._mistakes_as_documents():
            return super().make_context(info_name, args, parent, **extra)

    def invoke(self, ctx: Any) -> Any:
        with self._mistakes_as_documents():
            return super().invoke(ctx)

    @contextmanager
    def _mistakes_as_documents(self) -> Iterator[None]:
        try:
            yield
        except _UsageError as mistake:
            if type(mistake).__name__ == "NoArgsIsHelpError":
                raise
            raise typer.Exit(say_error(_worded(mistake), as_json=self._as_json)) from None
        except AutotuneError as mistake:  # In a file of flags, which is read before a command begins.
            raise typer.Exit(say_error(mistake, as_json=self._as_json)) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    # A shell completes the name of a command, which `python cli.py` is not.
    add_completion=" " not in command(),
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

at_begin: list[Callable[[], None]] = []
"""Called when a command begins."""
program_begun: list[float] = []
"""When the program that runs the command began, on the monotonic clock; empty where there is none but the command."""
P = ParamSpec("P")


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    from autotune.environment import package_version
    from autotune.version import __version__

    print_line(f"autotune {__version__}")
    for name in ("torch", "mindspore", "optuna"):
        release = package_version(name)
        if release is not None:
            print_line(f"{name} {release}")
    raise typer.Exit


@app.callback()
def _all_commands(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the release, and those of the frameworks."
        ),
    ] = False,
) -> None:
    """Find, prove and ship the fastest compile settings of a deep-learning model.

    Begin with `tune`, or, without a function, with `watch -- JOB`; `try` tells what a job gains, `fleet` is for many
    models. `COMMAND -h` has the options of a command.
    """


def with_exit_status(command: Callable[P, int | None]) -> Callable[P, None]:
    """Turn the errors of a command into an exit status and a message; a bug keeps its traceback."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with answering(as_flag):
            try:
                for begin in at_begin:
                    begin()
                code = command(*args, **kwargs)
                with naming(OUTPUT):
                    sys.stdout.flush()
            except AutotuneError as error:
                code = say_error(error, as_json=bool(kwargs.get("as_json")))
            except KeyboardInterrupt:
                say("interrupted")
                code = 130
            except BrokenPipeError:
                # The reader of our output went away (`| head`): nothing is wrong, and nothing more can be said.
                _drop_output()
                code = 0
            except OSError as error:
                code = say_error(explained(error), as_json=bool(kwargs.get("as_json")))
            except ModuleNotFoundError as error:
                if (missing := without_tuning(error)) is None:
                    raise
                code = say_error(missing, as_json=bool(kwargs.get("as_json")))
        raise typer.Exit(code or 0)

    return run


def begun() -> float:
    """When the command began, on the monotonic clock."""
    return next(iter(program_begun), time.monotonic())


_OF_THE_DISK = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some of your quota",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f)",
    errno.EROFS: "choose a writable folder with --studies-dir",
    errno.EIO: "check the disk",
    errno.ENAMETOOLONG: "give a shorter name",
    errno.EACCES: "check its permissions, and those of the folders above it",
    errno.EPERM: "check its permissions, and those of the folders above it",
}
"""Errors of the system that no bug of ours explains -> what to do."""
_NOT_OF_WRITING = frozenset({errno.ENAMETOOLONG, errno.EACCES, errno.EPERM})


def explained(error: OSError) -> AutotuneError:
    """The error of the system as a sentence. Raises the error itself where it may be a bug."""
    if error.errno not in _OF_THE_DISK:
        raise error
    verb = "use" if error.errno in _NOT_OF_WRITING else "write"
    if error.filename == OUTPUT:
        _drop_output()
    kept = "recorded trials are kept, and the same command resumes"
    what = f"cannot {verb} {error.filename or 'a file'}: {error.strerror}"
    return AutotuneError(what, tip=f"{_OF_THE_DISK[error.errno]}; {kept}")


def _drop_output() -> None:
    """What standard output still holds goes nowhere: Python would try to write it once more at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say_error(error: AutotuneError, *, as_json: bool = False) -> int:
    """The sentence and the tip on stderr, and `as_json` also as a document on stdout. Returns the exit status."""
    say(f"error: {error}")
    if error.tip:
        say(f"tip: {error.tip}")
    if as_json:
        print_error(str(error), error.tip, error.exit_code)
    return error.exit_code


def print_error(message: str, tip: str | None, exit_status: int) -> None:
    """What stands on stdout in place of the document that was asked for."""
    print_json({"error": {"message": message, "tip": tip, "exit_status": exit_status}})


def print_json(document: object) -> None:
    """The one document of a command with `--json`, on stdout."""
    print_line(json.dumps(_in_words(document), indent=2))


def _in_words(content: object) -> object:
    """The document with the words of the command line for all fields in its texts."""
    if isinstance(content, dict):
        return {name: _in_words(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_in_words(value) for value in content]
    return worded(content) if isinstance(content, str) else content


def print_result(document: object, lines: Iterable[str], *, as_json: bool) -> None:
    """What a command found, on stdout: its document with `--json`, else its lines."""
    if as_json:
        print_json(document)
    else:
        for line in lines:
            print_line(line)


def print_document(answer: StudyResult) -> None:
    """All of a study as one JSON document on stdout."""
    from autotune.render.json import document

    print_json(document(answer))


def stop_on_sigterm() -> None:
    """SIGTERM and SIGHUP stop a run as Ctrl-C does."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` means it.
            signal.signal(number, _interrupt)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def print_line(text: str) -> None:
    """A result, to stdout. Text from models and files has no effect on the terminal, here and in `say`."""
    with naming(OUTPUT):
        typer.echo(printable_lines(text))


def say(text: str) -> None:
    """To stderr: stdout is for results. A sentence that nobody can read is no error."""
    with suppress(OSError):
        typer.echo(printable_lines(text), err=True)
