"""The command that starts a job's process as the processes of its study were started."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.app import app, print_line, say, with_exit_status
from autotune.cli.flags import GroupedCommand, examples


# What stands behind the file is the job's, whatever it looks like.
@app.command(
    cls=GroupedCommand,
    context_settings={"allow_interspersed_args": False},
    epilog=examples("launch best.yaml -- python serve.py --port 8000", "launch best.yaml"),
)
@with_exit_status
def launch(
    file: Annotated[Path, typer.Argument(help="An exported YAML file.", metavar="FILE")],
    job: Annotated[
        list[str] | None,
        typer.Argument(help="The job's command, behind two dashes; without it the line for a shell is printed."),
    ] = None,
) -> None:
    """Start a job as the processes of its study were started: variables, preloaded libraries, cores.

    The job takes the place of this process, and what it starts inherits all that.
    """
    from autotune.job.launch import Launch
    from autotune.tuned.tuned_config import load_tuned

    start = Launch.of(load_tuned(file), os.environ)
    for remark in start.remarks:
        say(f"{file}: {remark}")
    command = (job or [])[1:] if (job or [])[:1] == ["--"] else job
    if not command:
        print_line(start.line())
        return
    say(f"{file}: started with {', '.join(start.started_with) or 'nothing of its own'}, and so is all that it starts")
    start.execute(command, os.environ)
