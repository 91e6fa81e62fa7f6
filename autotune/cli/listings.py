"""The commands that say what there is: models, search spaces, frameworks and devices."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from autotune.cli.application import DEFAULT_STUDIES_DIR, AsJson, StudiesDir, app, plainly


@app.command()
@plainly
def models(as_json: AsJson = False) -> None:
    """List the bundled models."""
    from autotune.models import BUNDLED

    if as_json:
        typer.echo(
            json.dumps({name: {"about": m.description, "frameworks": m.frameworks} for name, m in BUNDLED.items()})
        )
        return
    for name, bundled in BUNDLED.items():
        typer.echo(f"{name:<12} {', '.join(bundled.frameworks):<18} {bundled.description}")
    typer.echo("or your own: --model path/to/file.py:function, a function that returns (model, inputs)")


@app.command()
@plainly
def spaces(
    device: Annotated[str, typer.Option("--device", help="cpu, gpu or ascend.")] = "cpu",
    framework: Annotated[
        str | None, typer.Option("--framework", help="torch, mindspore, or both as one space; by default each.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the search spaces with their knobs, as they hold for the installed releases and a device."""
    from autotune.plan import describe_spaces

    described = describe_spaces(device, framework)
    if as_json:
        typer.echo(json.dumps(described, indent=2))
        return
    for each in described:
        typer.echo(f"{each['file']}: {each['framework']} {each['version']} on {device}, {each['num_configs']} configs")
        for knob in each["knobs"]:
            values = ", ".join(json.dumps(value) if not isinstance(value, str) else value for value in knob["values"])
            typer.echo(f"  {knob['name']:<24} {values}")
            typer.echo(f"  {'':<24} {knob['doc']}")


@app.command()
@plainly
def doctor(studies_dir: StudiesDir = DEFAULT_STUDIES_DIR, as_json: AsJson = False) -> int:
    """Say which frameworks, devices and compilers there are, and what to install."""
    from autotune.doctor import examine

    findings = examine(studies_dir)
    if as_json:
        typer.echo(json.dumps([each.model_dump() for each in findings], indent=2))
    else:
        for each in findings:
            typer.echo(f"{'ok     ' if each.ok else 'missing'} {each.what}: {each.found}")
            if each.cure:
                typer.echo(f"        -> {each.cure}")
    return 0 if any(each.ok for each in findings if each.is_framework) else 1
