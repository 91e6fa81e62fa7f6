"""`watch`, which starts a job that is watched, and the question that a watched job makes: `tune FOLDER` asks it."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from autotune import own_folders
from autotune.cli.app import say, say_error
from autotune.cli.flags import TYPED
from autotune.command_line import command, flag, options
from autotune.errors import AutotuneError, InputError
from autotune.job.launch import Launch
from autotune.plugins.watch.document import PROCESSES, made
from autotune.plugins.watch.folder import Watched, read
from autotune.plugins.watch.injected import APPLY_VARIABLE, FRAMEWORKS, VARIABLE
from autotune.plugins.watch.question import lines_of, question_of
from autotune.plugins.watch.recorder import Wanted
from autotune.study.budget import duration_s
from autotune.tuned.tuned_config import TunedConfig, load_tuned

INJECT = Path(__file__).parent / "inject"
_LEAST_SHARE = 0.1
"""Share of the time from which one of several models is tuned."""


def watch(
    job: Annotated[list[str], typer.Argument(help="The job's command, behind two dashes.", metavar="-- COMMAND")],
    output: Annotated[Path, typer.Option("-o", "--output", help="Folder to write; it may hold an earlier run.")] = Path(
        "watched"
    ),
    seconds: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="Watch so long after the first call. [to the end]")
    ] = None,
    calls: Annotated[int | None, typer.Option(min=2, help="Watch so many calls of a model. [to the end]")] = None,
    most_gib: Annotated[int, typer.Option(min=1, help="GiB of disk that the folder may take.")] = 4,
) -> int:
    """Run a job as ever, and write what its models are called with into a folder for `tune FOLDER`."""
    limit_s = None if seconds is None else duration_s(seconds)
    if seconds is not None and limit_s is None:
        raise InputError(f"{seconds!r} is no time", tip="write it as 60s, 5m or 1h")
    wanted = Wanted(str(made(output)), limit_s, calls, most_gib << 30)
    then = command("tune", str(output))
    say(f"watching: {output} will hold models and some of their calls, {most_gib} GiB at most; then: {then}")
    as_it_is = Launch({}, None, (), ())
    as_it_is.execute(job, {**os.environ, **variables_of(VARIABLE, vars(wanted))})


def variables_of(variable: str, wanted: Mapping[str, Any]) -> dict[str, str]:
    """What the environment of a job has to hold for it to be watched, or tuned."""
    before = os.environ.get("PYTHONPATH")
    places = [str(INJECT), *([before] if before else [])]
    return {variable: json.dumps(wanted), "PYTHONPATH": os.pathsep.join(places)}


def launch_applied(
    files: Annotated[list[Path], typer.Argument(help="Exported YAML files.", metavar="FILE...")],
    job: Annotated[list[str] | None, typer.Option("--word", help="A word of the job's command; repeatable.")] = None,
    instance: Annotated[int | None, typer.Option(help="Which of the processes that the files are for.")] = None,
) -> int:
    """Run a job with its models tuned: `launch FILE... --apply -- COMMAND`."""
    words = require_job(job)
    start = start_of({file: for_a_job(file) for file in files}, instance)
    say(f"applied to models of their structure: {', '.join(map(str, files))}")
    wanted = {"files": [str(own_folders.absolute(file)) for file in files]}
    start.execute(words, {**os.environ, **variables_of(APPLY_VARIABLE, wanted)})


def require_job(job: Sequence[str] | None) -> Sequence[str]:
    """The words of the job's command. Raises InputError where there are none."""
    if not job:
        raise InputError("no command of a job is given", tip="write it behind two dashes")
    return job


def start_of(files: Mapping[Path, TunedConfig], instance: int | None = None) -> Launch:
    """How a job under these files is started, of which the remarks are said. Raises InputError where they do not go
    together. A job that is none of several processes starts them itself, and they share its cores."""
    starts = {file: _start_under(file, tuned, instance) for file, tuned in files.items()}
    one, first = next(iter(starts.items()))
    for file, start in starts.items():
        if (start.variables, start.cores) != (first.variables, first.cores):
            raise InputError(f"{one} and {file} ask for processes that are started in two ways: {start.line()}")
        for remark in start.remarks:
            say(f"{file}: {remark}")
    return first


def for_a_job(file: Path) -> TunedConfig:
    """Raises InputError for a file that needs lines in the job."""
    tuned = load_tuned(file)
    if tuned.framework not in FRAMEWORKS:
        raise InputError(
            f"{file} is for {tuned.framework}: only models of {' and '.join(FRAMEWORKS)} are tuned without a line of "
            "code",
            tip="write the two lines: autotune.load(FILE).apply(MODEL)",
        )
    return tuned


def _start_under(file: Path, tuned: TunedConfig, instance: int | None) -> Launch:
    if instance is not None:
        return Launch.of(tuned, os.environ, instance)
    first, *others = Launch.all_of(tuned, os.environ)
    if not others:
        return first
    num = 1 + len(others)
    say(f"{file} is for {num} processes side by side: the job is taken to start them, as a server its workers")
    return replace(first, cores=None)


def tune_watched(context: typer.Context, folder: str) -> None:
    """Make the question of a watched job that of `tune FOLDER`, or FOLDER/NAME for one of its models. Several models
    are tuned one after the other, and the command ends."""
    watched = chosen(folder)
    if len(watched) > 1:
        raise typer.Exit(_each_alone(context, folder, watched))
    asked = question_of(watched[0], is_elsewhere=_is_given(context, "on"))
    gone = {"build"}.union(*(seen for field, seen in _IN_PLACE_OF.items() if _is_given(context, field)))
    values = {
        field: value for field, value in asked.values.items() if field not in gone and not _is_given(context, field)
    }
    words = [word for word in context.meta[TYPED] if word != folder]
    typed = command("tune", asked.values["build"]) + options(**values)
    context.default_map = {**(context.default_map or {}), **values, "build": asked.values["build"]}
    for line in lines_of(asked, " ".join([typed, *map(shlex.quote, words)])):
        say(line)


_IN_PLACE_OF = {"shapes": {"traffic"}, "arguments": {"traffic"}, "device": {"instances"}}
"""Field -> those that were seen and go where it is typed, since they cannot be asked together."""


def _is_given(context: typer.Context, name: str) -> bool:
    """Whether a field is asked for with its flag, or in a file, before the words are read in order."""
    typed: list[str] = context.meta[TYPED]
    return name in (context.default_map or {}) or flag(name) in (word.partition("=")[0] for word in typed)


def chosen(folder: str) -> list[Watched]:
    """The models of a folder that are worth a study, or the one that is named behind it. Raises InputError."""
    place, name = (folder, "") if os.path.isdir(os.path.join(folder, PROCESSES)) else os.path.split(folder)
    found = read(Path(place))
    if not name:
        return [each for each in found if each.share >= _LEAST_SHARE] or found[:1]
    named = [each for each in found if name in (each.name, each.one)]
    if not named:
        names = ", ".join(dict.fromkeys(each.name for each in found))
        raise InputError(f"{place}: there is no model {name}", tip=f"it has: {names}")
    return named[:1]


def _each_alone(context: typer.Context, folder: str, watched: list[Watched]) -> int:
    """Tune one model after the other, each for its share of the time that was given. Returns the worst exit status."""
    typed: list[str] = context.meta[TYPED]
    everything, statuses = sum(each.share for each in watched), []
    for number, each in enumerate(watched, start=1):
        say(f"model {number} of {len(watched)}: {each.name}, {each.share:.0%} of the time of all models")
        own = [str(Path(folder) / each.one) if word == folder else word for word in typed]
        statuses.append(_status_of(context, _shared(own, each.share / everything, each.name)))
    return max(statuses)


def _shared(words: list[str], share: float, model: str) -> list[str]:
    """A command line with a part of the time that it gives, and a study for this model."""
    made: list[str] = []
    for word in words:
        name, equals, text = word.rpartition("=")
        asked = name if equals else (made[-1:] or [""])[0]
        limit_s = duration_s(text) if asked == flag("budget") else None
        if limit_s is not None:
            text = f"{max(1, round(limit_s * share))}s"
        elif asked == flag("study"):
            text = f"{text}-{model}"
        made.append(f"{name}{equals}{text}")
    return made


def _status_of(context: typer.Context, words: list[str]) -> int:
    try:
        given: Any = context.command.main(words, prog_name=context.command_path, standalone_mode=False)
    except AutotuneError as problem:
        return say_error(problem)
    return int(given or 0)
