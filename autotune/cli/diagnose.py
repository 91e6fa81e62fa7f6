"""The command that examines a model: graph breaks and recompiles, with cost and fix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.app import app, print_json, print_line, say, stop_on_sigterm, with_exit_status
from autotune.cli.flags import AsJson, ReportFlag, option
from autotune.cli.report import require_report, write_result
from autotune.question.question import Question

if TYPE_CHECKING:
    from autotune.api.events import Event


@app.command()
@with_exit_status
def diagnose(
    build: Annotated[
        str, option("build", "Bundled name, FILE.py:FUNCTION, PACKAGE.MODULE:FUNCTION, hf:TYPE or timm:NAME.")
    ],
    framework: Annotated[str | None, option("framework", "torch or mindspore. [by device]")] = None,
    device: Annotated[str, option("device")] = "auto",
    arguments: Annotated[list[str] | None, option("arguments")] = None,
    knob: Annotated[
        list[str] | None,
        typer.Option("--knob", help="Setting NAME=VALUE that differs from the default config; repeatable."),
    ] = None,
    seed: Annotated[int, option("seed", "Seed of weights and inputs.")] = 0,
    report: ReportFlag = None,
    as_json: AsJson = False,
) -> None:
    """Find graph breaks and recompiles of a model: location, reason, cost and fix, most expensive first."""
    from autotune.api.diagnosing import examine
    from autotune.render.diagnosis import diagnosis_document, diagnosis_lines

    question = Question.of(
        {"build": build, "framework": framework, "device": device, "arguments": arguments, "seed": seed}
    )
    require_report(report)
    stop_on_sigterm()
    diagnosis = examine(question, knob or (), _say_step)
    if as_json:
        print_json(diagnosis_document(diagnosis))
    else:
        for line in diagnosis_lines(diagnosis):
            print_line(line)
    write_result(diagnosis, report)


def _say_step(event: Event) -> None:
    from autotune.api.events import DiagnosisStep

    if isinstance(event, DiagnosisStep):
        say(f"  measuring {event.what} ...")
