"""The commands that need no study: examine a model or this machine, and list models and search spaces."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from autotune.cli.app import COMMANDS, app, print_json, print_line, stop_on_sigterm, with_exit_status
from autotune.cli.flags import AsJson, On, ReportFlag, StudiesDir, option, require_report
from autotune.command_line import command
from autotune.errors import InputError
from autotune.question.question import DEFAULT_STUDIES_DIR, Question

Knobs = Annotated[
    list[str] | None,
    typer.Option("--knob", help="Setting NAME=VALUE that differs from the default config; repeatable."),
]


@app.command()
@with_exit_status
def diagnose(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="The model, as `tune` takes it.")] = None,
    build: Annotated[str | None, option("build", "The same.")] = None,
    framework: Annotated[str | None, option("framework", "torch or mindspore. [by device]")] = None,
    device: Annotated[str, option("device")] = "auto",
    arguments: Annotated[list[str] | None, option("arguments")] = None,
    knob: Knobs = None,
    seed: Annotated[int, option("seed", "Seed of weights and inputs.")] = 0,
    report: ReportFlag = None,
    as_json: AsJson = False,
) -> None:
    """Find graph breaks and recompiles of a model.

    Each with location, reason, cost and fix, the most expensive first.
    """
    if (build is None) is (model is None):
        raise InputError("one model is needed", tip=f"try: {command('diagnose', 'resnet18')}")
    given = {"build": build or model, "framework": framework, "device": device, "arguments": arguments, "seed": seed}
    require_report(report)
    stop_on_sigterm()
    COMMANDS.require("diagnose")(Question.of({**given, "report": report, "as_json": as_json}), knob)


@app.command()
@with_exit_status
def models(as_json: AsJson = False) -> None:
    """List the bundled models."""
    from autotune.models import BUNDLED, FRAMEWORKS
    from autotune.workload.hubs import HUBS

    if as_json:
        print_line(
            json.dumps({name: {"about": m.description, "frameworks": FRAMEWORKS} for name, m in BUNDLED.items()})
        )
        return
    hubs = {name: f"{name}:NAME" for name in HUBS.names()}
    width = max(map(len, (*BUNDLED, *hubs.values())))
    for name, bundled in BUNDLED.items():
        print_line(f"{name:<{width}} {', '.join(FRAMEWORKS):<18} {bundled.description}")
    for name, of_hub in hubs.items():
        try:
            hub = HUBS.require(name)
        except InputError as error:  # Somebody else's, which must not hide the others.
            print_line(f"{of_hub:<{width}} {error}")
        else:
            print_line(f"{of_hub:<{width}} {hub.framework:<18} {hub.about}")
    print_line("or your own: --model path/to/file.py:function, a function that returns (model, inputs)")


@app.command()
@with_exit_status
def spaces(
    device: Annotated[str, typer.Option("--device", help="cpu, gpu or ascend.")] = "cpu",
    framework: Annotated[str | None, typer.Option("--framework", help="torch or mindspore. [each by itself]")] = None,
    task: Annotated[str, typer.Option("--task", help="infer or train.")] = "infer",
    as_json: AsJson = False,
) -> None:
    """List the knobs of the search spaces.

    What the installed releases take on a device.
    """
    from autotune.planning.spaces import describe_spaces

    described = describe_spaces(device, framework, Question.of({"task": task}).task)
    if as_json:
        print_json(described)
        return
    for space in described:
        print_line(
            f"{space['file']}: {space['framework']} {space['version']} on {device}, {space['num_configs']} configs"
        )
        for knob in space["knobs"]:
            values = ", ".join(json.dumps(value) if not isinstance(value, str) else value for value in knob["values"])
            print_line(f"  {knob['name']:<24} {values}")
            print_line(f"  {'':<24} {knob['doc']}")


@app.command()
@with_exit_status
def doctor(
    on: On = None,
    studies_dir: StudiesDir = DEFAULT_STUDIES_DIR,
    as_json: AsJson = False,
) -> int:
    """Check what this machine has, and what to install.

    Frameworks, devices and compilers.
    """
    from autotune.doctor import examine

    findings = examine(studies_dir, on)
    if as_json:
        print_json([finding.model_dump() for finding in findings])
    else:
        for finding in findings:
            print_line(f"{'ok     ' if finding.ok else 'missing'} {finding.what}: {finding.found}")
            if finding.cure:
                print_line(f"        -> {finding.cure}")
    return 0 if any(finding.ok for finding in findings if finding.is_framework or on is not None) else 1
