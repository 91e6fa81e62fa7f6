"""The commands on a recorded study: show, report, explain, run, export; and launch, which starts a job under its
export."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.cli.app import COMMANDS, app, print_document, print_line, say, stop_on_sigterm, with_exit_status
from autotune.cli.flags import (
    AsJson,
    EnvAgain,
    GroupedCommand,
    Storage,
    StudiesDir,
    StudyName,
    examples,
    require_report,
    variables_of,
)
from autotune.question.question import DEFAULT_STUDIES_DIR

if TYPE_CHECKING:
    from autotune.answer.result import StudyResult
    from autotune.study.study import Study
    from autotune.tuned.tuned_config import TunedConfig


@app.command()
@with_exit_status
def show(
    study: StudyName,
    studies_dir: StudiesDir = DEFAULT_STUDIES_DIR,
    storage: Storage = None,
    why: Annotated[
        bool, typer.Option("--why", help="Also print what the verdict rests on, and what stands in the way.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the verdict, the trials and what failed."""
    from autotune.answer.result import StudyResult
    from autotune.api.studies import studies_at

    opened = studies_at(studies_dir, storage).open(study)
    result = StudyResult(opened)
    if as_json:
        print_document(result)
    else:
        _print_tables(result, opened, why=why)


def _print_tables(result: StudyResult, opened: Study, *, why: bool) -> None:
    from autotune.render.console import console
    from autotune.render.terminal import summary, tables

    # A pipe has no width; wide enough for a whole row there.
    screen = console(240)
    for shown in (*tables(result, width=screen.width), summary(result, why=why)):
        screen.print(shown)
    if result.home is not None:
        where = f"files of the trials on {result.home.host}, in {result.home.folder}"
        screen.print(f"records in {opened.database}; {where}", style="dim")


@app.command()
@with_exit_status
def report(
    study: StudyName,
    output: Annotated[Path, typer.Option("-o", "--output", help="HTML file to write.")] = Path("report.html"),
    studies_dir: StudiesDir = DEFAULT_STUDIES_DIR,
    storage: Storage = None,
) -> None:
    """Write a study with figures as one HTML file.

    It can be read in a browser, printed or sent.
    """
    from autotune.api.studies import studies_at
    from autotune.render.html.page import write_report

    require_report(output)
    opened = studies_at(studies_dir, storage).open(study)
    write_report(opened, output)
    opened.close()
    print_line(f"{output}: {output.stat().st_size / 1000:.0f} kB")


@app.command()
@with_exit_status
def explain(
    study: StudyName,
    studies_dir: StudiesDir = DEFAULT_STUDIES_DIR,
    storage: Storage = None,
    as_json: AsJson = False,
) -> int:
    """Explain which knobs mattered, and why other configs lost."""
    status: int = COMMANDS.require("explain")(study, studies_dir, storage, as_json=as_json)
    return status


@app.command()
@with_exit_status
def run(
    study: StudyName,
    trial: Annotated[int, typer.Argument(metavar="TRIAL", help="Number of the trial.")],
    studies_dir: StudiesDir = DEFAULT_STUDIES_DIR,
    storage: Storage = None,
    env: EnvAgain = None,
) -> int:
    """Run one trial again and show its output. The study is not changed."""
    from autotune.answer.format import seconds
    from autotune.answer.sections.traffic import pass_lines
    from autotune.api.studies import studies_at
    from autotune.measure.measurement import Measurement
    from autotune.tuning.rerun import rerun_trial

    opened = studies_at(studies_dir, storage).open(study)
    opened.accept(variables_of(env))
    stop_on_sigterm()
    with opened.exclusive():
        outcome, command = rerun_trial(opened, trial)
    if isinstance(outcome, Measurement):
        latency = outcome.latency
        print_line(
            f"median {seconds(latency.p50)}, p99 {seconds(latency.p99)}, first call {seconds(outcome.first_call_s)}"
        )
        for line in pass_lines(outcome):
            print_line(line)
    else:
        print_line(f"{outcome.reason} at {outcome.stage}: {outcome.error}")
    print_line(f"the same trial by hand: {command}")
    return 0 if isinstance(outcome, Measurement) else 1


@app.command()
@with_exit_status
def export(
    study: StudyName,
    output: Annotated[Path, typer.Option("-o", "--output", help="YAML file to write.")] = Path("best.yaml"),
    trial: Annotated[
        int | None,
        typer.Option(
            "--trial", min=0, help="Export this trial: one that was compared, or before the verdict any. [the winner]"
        ),
    ] = None,
    with_cache: Annotated[
        bool,
        typer.Option("--with-cache", help="Also write the compile cache beside the YAML file, for a quick first call."),
    ] = False,
    studies_dir: StudiesDir = DEFAULT_STUDIES_DIR,
    storage: Storage = None,
    env: EnvAgain = None,
) -> int:
    """Write the YAML file that a job loads."""
    from autotune.answer import export as exports
    from autotune.answer.configs import config_text
    from autotune.api.studies import studies_at
    from autotune.apply.config_parts import ConfigParts
    from autotune.job.launch import launch_lines, tip_of

    opened = studies_at(studies_dir, storage).open(study)
    opened.accept(variables_of(env))
    tuned = exports.export(opened, output, trial, with_cache=with_cache)
    config = config_text(opened.record(tuned.evidence.best.trial).config, opened.manifest.space)
    print_line(f"{output}: {tuned.verdict.value}; {tuned.framework}: {config}")
    for line in exports.plain_lines(opened, tuned):
        print_line(line)
    if tuned.is_untuned:
        print_line("apply() will return the model untouched")
    elif ConfigParts.of(tuned.config).start:
        print_line(tip_of(str(output), tuned.config))
        if ConfigParts.of(tuned.config).start.instances > 1:
            print_line("\n".join(launch_lines(str(output), tuned.config)))
    return _add_cache(opened, tuned, output) if with_cache else 0


def _add_cache(study: Study, tuned: TunedConfig, output: Path) -> int:
    """1 where no artifact is worth having; the YAML then stands without one."""
    from autotune.answer.export import export_cache, slower_calls
    from autotune.answer.format import seconds
    from autotune.errors import InputError

    stop_on_sigterm()
    if not tuned.is_untuned:
        say("compiling in three fresh processes: cold, from the first one's caches, from the artifact")
    try:
        artifact = export_cache(study, tuned, output)
    except InputError as problem:
        say(problem.with_tip())
        return 1
    print_line(
        f"{output.with_name(artifact.file)}: {artifact.num_bytes / 2**20:.1f} MiB; the first call compiles for "
        f"{seconds(artifact.compile_s)} instead of {seconds(artifact.compile_cold_s)}"
    )
    if (slower := slower_calls(artifact)) is not None:
        print_line(slower)
    return 0


class _Launch(GroupedCommand):
    """What stands behind the file is the job's, whatever it looks like, but for a flag right behind the file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" not in args and args[1:2] == ["--apply"]:
            args = [*args[:2], "--", *args[2:]]
        files = args[: args.index("--")] if "--" in args else []
        if "--apply" in files:
            also = [word for word in files[1:] if word != "--apply"]
            given = [flag for file in also for flag in ("--also", file)]
            return super().parse_args(ctx, ["--apply", *given, *files[:1], *args[len(files) :]])
        num = 2 if args[1:2] == ["--instance"] else int(args[1:2] != [] and args[1].startswith("--instance="))
        return super().parse_args(ctx, [*args[1 : 1 + num], *args[:1], *args[1 + num :]])


@app.command(
    cls=_Launch,
    context_settings={"allow_interspersed_args": False},
    epilog=examples(
        "launch best.yaml -- python serve.py --port 8000",
        "launch best.yaml --instance 0 -- python serve.py --port 8000",
        "launch best.yaml --apply -- python serve.py",
        "launch best.yaml",
    ),
)
@with_exit_status
def launch(
    file: Annotated[Path, typer.Argument(help="An exported YAML file.", metavar="FILE")],
    job: Annotated[
        list[str] | None,
        typer.Argument(help="The job's command, behind two dashes; without it the line for a shell is printed."),
    ] = None,
    instance: Annotated[
        int | None,
        typer.Option("--instance", metavar="I", help="Which of the processes that the file is for: 0 is the first."),
    ] = None,
    applied: Annotated[
        bool, typer.Option("--apply", help="Apply the files, of which there may be several, to models of the job.")
    ] = False,
    also: Annotated[list[Path] | None, typer.Option("--also", hidden=True)] = None,
) -> None:
    """Start a job as its study's processes were started.

    Variables, preloaded libraries and cores are those of the file. The job takes the place of this process, and what it
    starts inherits all that. A file that is for several processes has cores for each.
    """
    from autotune.errors import InputError
    from autotune.job.launch import Launch, tip_of
    from autotune.tuned.tuned_config import load_tuned

    if applied:
        COMMANDS.require("launch-applied")(files=[file, *(also or [])], job=(job or [])[1:], instance=instance)
    tuned = load_tuned(file)
    starts = Launch.all_of(tuned, os.environ) if instance is None else [Launch.of(tuned, os.environ, instance)]
    start = starts[0]
    for remark in start.remarks:
        say(f"{file}: {remark}")
    command = (job or [])[1:] if (job or [])[:1] == ["--"] else job
    if not command:
        if all(one.line() == "COMMAND" for one in starts):
            say(f"{file}: needs no launch: start the job as always")
        for one in starts:
            print_line(one.line())
        return
    if len(starts) > 1:
        raise InputError(f"{file} is for {len(starts)} processes side by side", tip=tip_of(str(file), tuned.config))
    if start.started_with:
        say(f"{file}: started with {', '.join(start.started_with)}, and so is all that it starts")
    else:
        say(f"{file}: the config asks for nothing at the start of a process")
    start.execute(command, os.environ)
