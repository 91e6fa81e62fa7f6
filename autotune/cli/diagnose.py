"""The command that examines a model: graph breaks and recompiles, with cost and fix."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from autotune.cli.app import AsJson, app, plainly, print_line, say
from autotune.cli.compare import runners, scratch


@app.command()
@plainly
def diagnose(
    model: Annotated[str, typer.Option("--model", help="Bundled name, FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION.")],
    framework: Annotated[str | None, typer.Option("--framework", help="torch or mindspore. [by device]")] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu, gpu or ascend.")] = "cpu",
    model_arg: Annotated[
        list[str] | None, typer.Option("--model-arg", help="NAME=VALUE for the model's function; repeatable.")
    ] = None,
    knob: Annotated[
        list[str] | None,
        typer.Option("--knob", help="Setting NAME=VALUE that differs from the default config; repeatable."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Seed of weights and inputs.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Find graph breaks and recompiles of a model: location, reason, cost and fix, most expensive first."""
    from autotune.doctor.diagnose import Examiner, make_case
    from autotune.planning.request import TuneRequest
    from autotune.report.findings import diagnosis_document, diagnosis_lines

    wish = TuneRequest(
        models=(model,), model_arguments=tuple(model_arg or ()), framework=framework, device=device, seed=seed
    )
    case = make_case(wish, knob or ())
    with scratch() as folder, runners({}, folder) as trials:
        checkup = Examiner(case, trials, folder, lambda what: say(f"  measuring {what} ...")).run()
    if as_json:
        print_line(json.dumps(diagnosis_document(checkup), indent=2))
        return
    for line in diagnosis_lines(checkup):
        print_line(line)
