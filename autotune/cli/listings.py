"""The commands that list what is available: models, search spaces, frameworks and devices."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from autotune.cli.app import app, print_json, print_line, with_exit_status
from autotune.cli.flags import AsJson, On, StudiesDir
from autotune.question.question import DEFAULT_STUDIES_DIR, Question


@app.command()
@with_exit_status
def models(as_json: AsJson = False) -> None:
    """List the bundled models."""
    from autotune.models import BUNDLED, FRAMEWORKS
    from autotune.models.hub import EXAMPLES, TIMM_EXAMPLES

    if as_json:
        print_line(
            json.dumps({name: {"about": m.description, "frameworks": FRAMEWORKS} for name, m in BUNDLED.items()})
        )
        return
    width = max(map(len, BUNDLED))
    for name, bundled in BUNDLED.items():
        print_line(f"{name:<{width}} {', '.join(FRAMEWORKS):<18} {bundled.description}")
    hub = f"{'hf:TYPE':<{width}} {'torch':<18} any model type of Hugging Face transformers"
    print_line(f"{hub}: {', '.join(EXAMPLES)}, ...")
    print_line(f"{'timm:NAME':<{width}} {'torch':<18} any model of timm: {', '.join(TIMM_EXAMPLES)}, ...")
    print_line("or your own: --model path/to/file.py:function, a function that returns (model, inputs)")


@app.command()
@with_exit_status
def spaces(
    device: Annotated[str, typer.Option("--device", help="cpu, gpu or ascend.")] = "cpu",
    framework: Annotated[str | None, typer.Option("--framework", help="torch or mindspore. [each by itself]")] = None,
    task: Annotated[str, typer.Option("--task", help="infer or train.")] = "infer",
    as_json: AsJson = False,
) -> None:
    """List the search spaces and their knobs for the installed releases and a device."""
    from autotune.planning.spaces import describe_spaces

    described = describe_spaces(device, framework, Question.of({"task": task}).task)
    if as_json:
        print_json(described)
        return
    for each in described:
        print_line(f"{each['file']}: {each['framework']} {each['version']} on {device}, {each['num_configs']} configs")
        for knob in each["knobs"]:
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
    """Report which frameworks, devices and compilers are available, and what to install."""
    from autotune.doctor.machine import examine

    if on is None:
        findings = examine(studies_dir)
    else:
        from autotune.doctor.cluster import examine_cluster

        findings = examine_cluster(on)
    if as_json:
        print_json([each.model_dump() for each in findings])
    else:
        for each in findings:
            print_line(f"{'ok     ' if each.ok else 'missing'} {each.what}: {each.found}")
            if each.cure:
                print_line(f"        -> {each.cure}")
    return 0 if any(each.ok for each in findings if each.is_framework or on is not None) else 1
