"""From a `Question` to a `Manifest`: the model, frameworks, device, space, and defaults for the rest."""

from __future__ import annotations

import os
import re
import uuid
from datetime import UTC, datetime
from pathlib import Path

import optuna

from autotune import models
from autotune.backends.registry import entry_of, framework_version
from autotune.bench.probe import read_declaration
from autotune.environment import num_usable_cores, usable_cpus
from autotune.errors import InputError, SetupError, marked
from autotune.files import is_utf8
from autotune.measure.constraint import Constraint
from autotune.planning.models import digest_of_inputs, make_workload, require_model, resolve_model
from autotune.planning.shapes import (
    objective_asked,
    shapes_asked,
    with_shapes,
)
from autotune.planning.spaces import space_file_of, space_of
from autotune.planning.targets import choose_target, require_device
from autotune.question.allows import Facts, Target, asks_for_many_shapes, require_allowed
from autotune.question.question import Question
from autotune.space.declared import Declaration
from autotune.study.manifest import Manifest
from autotune.study.study import check_name
from autotune.trial.deadline import LimitsNow
from autotune.trial.request import Limits
from autotune.version import __version__
from autotune.workload.kinds import kind_asked
from autotune.workload.process_start import available
from autotune.workload.workload import Device, Workload


def make_manifest(question: Question, limits: LimitsNow = Limits) -> Manifest:
    """The manifest of the study that is asked for, as it holds on this machine. Raises an AutotuneError.

    `limits` are those of the processes that are asked for devices, and for what the model declares.
    """
    check_text(question)
    require_model(question.model, question.search_path or Path.cwd())
    shapes = shapes_asked(question)
    objective = objective_asked(question, shapes)
    constraints = tuple(Constraint.parse(text) for text in question.constraints)
    framework, device = choose_target(question.framework, question.device, limits, looks=False)
    quantities: dict[str, str] = {objective.quantity: marked("objective", objective.name)}
    quantities |= {bound.quantity: marked("constraints", bound.text) for bound in constraints}
    dimensions = () if shapes is None else shapes.dimensions
    require_allowed(Facts(question, _target(framework, device), quantities, dimensions))
    workload = with_shapes(_make_workload(question, framework, device), shapes, objective)
    space_file = space_file_of(question.space, framework)
    declared = _read_declaration(workload, question, limits)
    workload = workload.model_copy(update={"imported": declared.imported, "built_once": declared.built_once})
    return Manifest(
        schema=4,
        id=uuid.uuid4().hex,
        name=study_name(question, framework, device),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        autotune_version=__version__,
        optuna_version=optuna.__version__,
        workload=workload,
        framework_version=framework_version(framework),
        space_file=str(space_file),
        space=space_of(workload, space_file, question, declared, limits, quantities=quantities),
        objectives=(objective,),
        constraints=constraints,
        tolerance=question.tolerance or declared.tolerance,
        reference_precision=question.reference,
        variables=variables_of(question, framework, device),
        variants=declared.variants,
        components=declared.components,
        search=question.scope,
    )


def _target(framework: str, device: Device) -> Target:
    generates, sets_cores = entry_of(framework).generates, "cores" in available()
    return Target(framework, device, generates=generates, sets_cores=sets_cores)


def check_text(question: Question) -> None:
    """Check, before anything takes time, that the study's name can be a folder and that all texts are UTF-8."""
    if question.study is not None:
        check_name(question.study)
    given = (
        ("build", [question.build or ""]),
        ("arguments", [*question.arguments, *map(str, question.arguments.values())]),
        ("env", [*question.env, *question.env.values()]),
    )
    for field, texts in given:
        for text in texts:
            if not is_utf8(text):
                raise InputError(f"{marked(field)} {text!r}: is not text (UTF-8), or holds null characters")


def variables_of(question: Question, framework: str, device: Device) -> dict[str, str]:
    """Environment variables of the study's processes. On a CPU there are no more threads than its part of the machine
    allows: frameworks count the processors that they see, and know of no quota, some of no core set either. What the
    user says comes first."""
    entry, num_cores = entry_of(framework), num_usable_cores()
    num_seen = len(usable_cpus()) if entry.sees_core_sets else os.cpu_count() or 1
    is_own = question.on is None and device == "cpu" and _THREADS not in os.environ
    if not is_own or num_cores >= num_seen:
        return question.env
    return {_THREADS: str(entry.threads_of(num_cores)), **question.env}


_THREADS = "OMP_NUM_THREADS"


def study_name(question: Question, framework: str, device: Device, model: str | None = None) -> str:
    """The name the user gave, or one made of the model, task, framework and device.

    `model`: what the model is called where it has no name yet.
    """
    if question.study is not None:
        return question.study
    model = model or question.model
    kind = kind_asked(question.task, many_shapes=asks_for_many_shapes(question))
    return "-".join([_short_name(model), *kind.named, framework, device])


def _short_name(model: str) -> str:
    """A folder's name from a model's: `path/to/file.py:function` gives `file-function`."""
    place, _, function = model.rpartition(":")
    name = f"{Path(place).stem}-{function}" if place else model
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") or "model"


def _make_workload(question: Question, framework: str, device: Device) -> Workload:
    return make_workload(
        question.model,
        question.arguments,
        framework,
        device,
        question.seed,
        task=question.task,
        search_path=question.search_path,
        inputs=question.inputs,
    )


def _read_declaration(workload: Workload, question: Question, limits: LimitsNow) -> Declaration:
    """What the model declares. Raises like `read_declaration`, and MissingDeviceError.

    A bundled model is known without building it, unless it has arguments, which padding depends on and sizes of traffic
    are.
    A device that was named is found by the process that builds the model. It is looked for where there is no such
    process, and where that fails: then the answer says what there is.
    """
    named = "cpu" if question.device == "auto" else workload.device
    if workload.model in models.names() and not workload.arguments:
        require_device(workload.framework, named, limits)
        on_device = workload.device != "cpu"
        return Declaration.model_validate(models.declared(workload.model, workload.task, on_device=on_device))
    try:
        return read_declaration(workload, question.env, limits)
    except (InputError, SetupError):
        require_device(workload.framework, named, limits)
        raise


def require_same_question(manifest: Manifest) -> None:
    """Raises StoreError if a framework's release or a model's file is not what the study was made with."""
    workload = manifest.workload
    _, digest = resolve_model(workload.model, workload.framework, workload.task, Path(workload.search_path))
    inputs = None if workload.inputs is None else digest_of_inputs(Path(workload.inputs))
    now = {
        "framework_version": framework_version(workload.framework),
        "workload": workload.model_copy(update={"source_sha256": digest, "inputs_sha256": inputs}),
    }
    manifest.require_same(manifest.model_copy(update=now))
