"""The commands that read a study: its table, one of its trials again, its export; and the list of studies."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.application import DEFAULT_STUDIES_DIR, AsJson, StudiesDir, app, plainly, print_document, say
from autotune.errors import AutotuneError

if TYPE_CHECKING:
    from autotune.study import Study
    from autotune.tuned import TunedConfig


@app.command()
@plainly
def show(
    study: Annotated[str, typer.Argument(help="Name of the study.")],
    studies_dir: StudiesDir = DEFAULT_STUDIES_DIR,
    as_json: AsJson = False,
) -> None:
    """Table of trials, best, failures by reason, verdict."""
    from rich.console import Console

    from autotune.answer import answer_of
    from autotune.report.goals import ratio_footnote
    from autotune.report.hot_spots import hot_spots_table
    from autotune.report.pareto import front_table
    from autotune.report.terminal import summary, trials_table
    from autotune.report.traffic import traffic_table
    from autotune.study import open_study, studies_dir_flag

    opened = open_study(studies_dir, study)
    answer = answer_of(opened)
    if as_json:
        print_document(opened, answer)
        return
    # A pipe has no width; wide enough for a whole row there.
    console = Console(width=None if sys.stdout.isatty() else 240, soft_wrap=not sys.stdout.isatty())
    console.print(trials_table(answer))
    console.print(
        f"{ratio_footnote(answer.objective)}, one process each; the verdict rests on fresh processes side by side",
        style="dim",
    )
    front = front_table(answer)
    if front is not None:
        console.print(front)
    shapes = traffic_table(answer)
    if shapes is not None:
        console.print(shapes)
    if answer.hot_spots is not None:
        console.print(hot_spots_table(answer.hot_spots))
    console.print(summary(answer, studies_dir_flag(studies_dir)))


@app.command()
@plainly
def explain(
    study: Annotated[str, typer.Argument(help="Name of the study.")],
    studies_dir: StudiesDir = DEFAULT_STUDIES_DIR,
    as_json: AsJson = False,
) -> int:
    """Say which knobs mattered, why the winner wins, and why everything else lost."""
    from rich.console import Console

    from autotune import explain as explaining
    from autotune.report.explanation import explanation, explanation_document
    from autotune.study import open_study

    opened = open_study(studies_dir, study)
    told = explaining.explain(opened)
    if told is None:
        say(f"study {study!r} has no trial that keeps every constraint: there is nothing to explain yet")
        return 1
    if as_json:
        typer.echo(json.dumps(explanation_document(told), indent=2))
        return 0
    console = Console(width=None if sys.stdout.isatty() else 200, soft_wrap=not sys.stdout.isatty())
    console.print(explanation(told))
    return 0


@app.command()
@plainly
def run(
    study: Annotated[str, typer.Argument(help="Name of the study.")],
    trial: Annotated[int, typer.Argument(help="Number of the trial.")],
    profile: Annotated[
        bool, typer.Option("--profile", help="Then call it under the framework's profiler: the time of each operator.")
    ] = False,
    studies_dir: StudiesDir = DEFAULT_STUDIES_DIR,
) -> int:
    """Run one trial again, alone, its output shown; the study's record stays as it is."""
    from autotune.again import run_again
    from autotune.measurement import Measurement
    from autotune.report.hot_spots import profile_lines
    from autotune.report.traffic import pass_line
    from autotune.report.units import seconds
    from autotune.study import open_study

    opened = open_study(studies_dir, study)
    outcome, command = run_again(opened, trial, profiled=profile)
    if isinstance(outcome, Measurement):
        latency = outcome.latency
        typer.echo(
            f"median {seconds(latency.p50)}, p99 {seconds(latency.p99)}, first call {seconds(outcome.first_call_s)}"
        )
        if outcome.replay is not None:
            typer.echo(pass_line(outcome))
        folder = opened.trial_folder(trial)
        profiled = folder.read_profile() if profile else None
        for line in () if profiled is None else profile_lines(profiled):
            typer.echo(line)
        if profiled is not None and folder.trace_file.exists():
            typer.echo(f"the trace, for chrome://tracing or Perfetto: {folder.trace_file}")
    else:
        typer.echo(f"{outcome.reason} at {outcome.stage}: {outcome.error}")
    typer.echo(f"the plain command: {command}")
    return 0 if isinstance(outcome, Measurement) else 1


@app.command()
@plainly
def export(
    study: Annotated[str, typer.Argument(help="Name of the study.")],
    output: Annotated[Path, typer.Option("-o", "--output", help="YAML file to write.")] = Path("best.yaml"),
    trial: Annotated[
        int | None, typer.Option("--trial", min=0, help="Another trial that was compared with the untuned model.")
    ] = None,
    with_cache: Annotated[
        bool, typer.Option("--with-cache", help="Also write the compile cache beside it: the first call is quick.")
    ] = False,
    studies_dir: StudiesDir = DEFAULT_STUDIES_DIR,
) -> int:
    """Write the answer as the YAML file that a job loads in two lines."""
    from autotune import answer
    from autotune.study import open_study

    opened = open_study(studies_dir, study)
    tuned = answer.export(opened, output, trial)
    typer.echo(f"{output}: {tuned.verdict.value}; {tuned.framework}: {tuned.config}")
    if tuned.is_untuned:
        typer.echo("apply() will return the model untouched")
    return _add_cache(opened, tuned, output) if with_cache else 0


def _add_cache(study: Study, tuned: TunedConfig, output: Path) -> int:
    """1 where no artifact is worth having; the YAML then stands without one."""
    from autotune.answer import export_artifact
    from autotune.errors import InputError
    from autotune.report.units import seconds
    from autotune.runner import Runner

    say("compiling in three fresh processes: cold, from the first one's caches, from the artifact")
    with Runner(
        tuned.framework, study.manifest.variables, preload=False, log=study.folder / "supervisor.log"
    ) as runner:
        try:
            artifact = export_artifact(study, tuned, output, runner)
        except InputError as problem:
            say(f"{problem}" + (f" ({problem.tip})" if problem.tip else ""))
            return 1
    typer.echo(
        f"{output.with_name(artifact.file)}: {artifact.num_bytes / 2**20:.1f} MiB; the first call compiles for "
        f"{seconds(artifact.compile_s)} in place of {seconds(artifact.compile_cold_s)}"
    )
    return 0


@app.command()
@plainly
def studies(studies_dir: StudiesDir = DEFAULT_STUDIES_DIR, as_json: AsJson = False) -> None:
    """List the studies there are."""
    from autotune.study import list_studies, open_study

    rows = []
    for name in list_studies(studies_dir):
        try:
            opened = open_study(studies_dir, name)
            # Not the whole answer: that would read every sample of every study.
            confirmation = opened.confirmation
            workload = opened.manifest.workload
            rows.append(
                {
                    "study": name,
                    "model": workload.model,
                    "framework": opened.manifest.framework,
                    "device": workload.device,
                    "trials": opened.num_recorded(),
                    "verdict": confirmation.verdict.value if confirmation else None,
                }
            )
        except AutotuneError as error:
            # One broken study must not hide the others.
            rows.append({"study": name, "error": str(error)})
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    for row in rows:
        typer.echo("  ".join(str(value) if value is not None else "no verdict" for value in row.values()))
    if not rows:
        typer.echo(f"no studies in {studies_dir}/; start with: python cli.py tune --model vit")
