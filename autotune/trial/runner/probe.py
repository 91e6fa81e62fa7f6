"""Devices that a framework finds, and declarations of a model, read in a child process.

A framework that looks for devices may print warnings, initialise a driver or crash, and a model's function runs the
user's code; the tool itself imports neither. Run as a program, this file prints one JSON document.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from autotune.apply.compile_model import place_of
from autotune.backends.protocol import DeviceReport
from autotune.backends.registry import entry_of, framework_version, load_backend
from autotune.command_line import command
from autotune.config import Scalar
from autotune.errors import HarnessError, InputError, InvalidConfigError
from autotune.space.declared import Declaration
from autotune.trial.command import module_command, package_path
from autotune.trial.given_inputs import built_for
from autotune.trial.process_start import start_when_possible
from autotune.workload.regions import repeated_blocks
from autotune.workload.workload import Workload

TIMEOUT_S = 180.0


def find_devices(framework: str) -> DeviceReport:
    """The devices that `framework` finds. Raises MissingFrameworkError, or HarnessError if it cannot be imported."""
    framework_version(framework)
    try:
        child = _ask(framework, {}, "devices", framework)
        content = _last_line(child)
        return DeviceReport(**{**content, "notes": tuple(content["notes"])})
    except subprocess.TimeoutExpired:
        raise HarnessError(
            f"{framework} did not answer within {TIMEOUT_S:.0f} s when asked for devices",
            tip=f"try: python -c 'import {framework}'",
        ) from None
    except (ValueError, KeyError, TypeError, IndexError):
        last = next((line for line in reversed(child.stderr.splitlines()) if line.strip()), "no message")
        raise HarnessError(
            f"{framework} is installed but does not work: {last.strip()}", tip=f"try: python -c 'import {framework}'"
        ) from None


def read_declaration(workload: Workload, variables: Mapping[str, str]) -> Declaration:
    """Build the model in a child and read its author's declarations. `variables` are set in the child's environment.

    Raises InputError where the function or its arguments are wrong, what it returns is no model with inputs, or a
    region does not fit the model. A model that cannot be built for another reason declares nothing; the study's first
    trial reports why, with the whole log.
    """
    try:
        child = _ask(workload.framework, variables, "declaration", workload.model_dump_json())
        content = _last_line(child)
        problem = content.pop("problem", None)
        declaration = Declaration.model_validate(content)
    except (subprocess.TimeoutExpired, ValueError, TypeError, IndexError, AttributeError):
        return Declaration()
    if problem is not None:
        raise InputError(problem[0], tip=problem[1])
    return declaration


def require_options(framework: str, values: Mapping[str, Sequence[Scalar]], variables: Mapping[str, str]) -> None:
    """Check knobs that are options of the compiler, and all their values, against the installed release. Raises
    InputError for the first that no config may set so, and HarnessError where that cannot be told."""
    try:
        child = _ask(framework, variables, "options", json.dumps([framework, values]))
        problem = _last_line(child)
    except (subprocess.TimeoutExpired, ValueError, IndexError):
        raise HarnessError(f"{framework} did not say which options it has", tip=f"try: {command('doctor')}") from None
    if problem is not None:
        raise InputError(problem[0], tip=problem[1])


def _ask(framework: str, variables: Mapping[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this file in a temporary folder, since frameworks and models write into the current one."""
    declared = {**os.environ, **variables}
    environment = {
        **declared,
        **entry_of(framework).process_variables,
        "PYTHONPATH": package_path(declared.get("PYTHONPATH")),
    }
    with tempfile.TemporaryDirectory(prefix="autotune-probe-") as folder:
        return start_when_possible(
            lambda: subprocess.run(
                module_command("trial.runner.probe", *arguments),
                env=environment if "TMPDIR" in variables else {**environment, "TMPDIR": folder},
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        )


def _last_line(child: subprocess.CompletedProcess[str]) -> Any:
    """The document is the last line; a framework or a model may have printed before it."""
    return json.loads(child.stdout.strip().splitlines()[-1])


def main(what: str, argument: str) -> None:
    """Print one line of JSON: what a framework finds, what is wrong with options of its compiler, or what the model of
    a workload declares."""
    if what == "devices":
        print(json.dumps(asdict(load_backend(argument).find())))
    elif what == "options":
        print(json.dumps(_problem_of_options(*json.loads(argument))), flush=True)
    else:
        print(json.dumps(_declared(Workload.model_validate_json(argument))), flush=True)


def _problem_of_options(framework: str, values: Mapping[str, Sequence[Scalar]]) -> tuple[str, str | None] | None:
    """A sentence and a tip; None: all can be set."""
    backend = load_backend(framework)
    try:
        for knob, offered in values.items():
            for value in offered:
                backend.check_option(knob, value)
    except InvalidConfigError as error:
        return str(error), error.tip
    return None


def _declared(workload: Workload) -> dict[str, Any]:
    """A `Declaration` as plain data, or a `problem`: a sentence and a tip."""
    backend = load_backend(workload.framework)
    backend.prepare(workload.device, workload.seed)
    try:
        built = built_for(workload, backend)
    except InputError as error:
        return {"problem": (str(error), error.tip)}
    model = backend.as_model(built.model)
    if workload.task == "train" or backend.check_model(model) is not None:
        return {}
    regions = backend.regions
    if regions is None:  # Nothing to choose: such a backend compiles a model as a whole.
        return Declaration(padding=tuple(built.padding), tiers=dict(built.tiers)).model_dump(mode="json")
    for region in built.regions or ():
        try:
            regions.check_region(model, region)
        except InvalidConfigError as error:
            return {"problem": (f"{workload.model}: {error}", error.tip)}
    declaration = Declaration(
        regions=built.regions,
        repeated=repeated_blocks(regions.modules(model), backend.parameters),
        variants={
            name: {value: place_of(function) for value, function in choices.items()}
            for name, choices in built.variants.items()
        },
        padding=tuple(built.padding),
        tiers=dict(built.tiers),
    )
    return declaration.model_dump(mode="json")


if __name__ == "__main__":
    main(*sys.argv[1:])
    sys.stdout.flush()
    # Skip the interpreter's shutdown: a framework that has built a model may hang in it.
    os._exit(0)
