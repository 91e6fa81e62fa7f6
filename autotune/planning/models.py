"""Which model a framework gets, and what has to be imported for it."""

from __future__ import annotations

import ast
import hashlib
import importlib.machinery
import importlib.util
import sys
from pathlib import Path

from autotune import models
from autotune.config import Scalar
from autotune.errors import InputError, did_you_mean, marked
from autotune.workload.function_digest import digest_of
from autotune.workload.hubs import HUBS, hub_of, hub_reference
from autotune.workload.kinds import kind_asked
from autotune.workload.workload import Device, Task, Workload, file_reference, split_reference


def require_model(model: str, search_path: Path) -> None:
    """Before devices are looked for: raises InputError for a model that is there for no framework."""
    if model not in models.names() and hub_of(model) is None:
        resolve_model(model, "", "infer", search_path)


def make_workload(
    model: str,
    arguments: dict[str, Scalar],
    framework: str,
    device: Device,
    seed: int,
    *,
    task: Task = "infer",
    search_path: Path | None = None,
    inputs: Path | None = None,
) -> Workload:
    """The workload of one shape as it is seen from a folder, the current one unless another is given. `inputs`: a file
    with real calls. Raises InputError for a model or a file that is not there."""
    search_path = search_path or Path.cwd()
    reference, digest = resolve_model(model, framework, task, search_path)
    inputs = None if inputs is None else inputs.resolve()
    hub = hub_of(model)
    if hub is not None:
        arguments = {**arguments, "name": hub.name_of(model.partition(":")[2], search_path)}
    return Workload(
        model=model,
        reference=reference,
        arguments=arguments,
        framework=framework,
        device=device,
        task=task,
        inputs=None if inputs is None else str(inputs),
        inputs_sha256=None if inputs is None else digest_of_inputs(inputs),
        seed=seed,
        search_path=str(search_path),
        source_sha256=digest,
    )


def digest_of_inputs(path: Path) -> str:
    """SHA-256 of a file with real calls. Raises InputError where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{marked('inputs', path)}: {error.strerror}", tip="check the path") from None


def resolve_model(model: str, framework: str, task: Task, search_path: Path) -> tuple[str, str | None]:
    """What to import for a model, and the SHA-256 of its file where that is known without importing it."""
    if model in models.names():
        if model not in models.names(framework):
            others = ", ".join(models.names(framework)) or "none"
            raise InputError(
                f"{marked('build', model)}: not there for {framework}", tip=f"bundled for {framework}: {others}"
            )
        suitable = models.names(framework, task)
        if model not in suitable:
            lacks, what = kind_asked(task, many_shapes=False).lacking
            raise InputError(
                f"{marked('task', task)} {marked('build', model)}: it has no {lacks}",
                tip=f"bundled to {what}: {', '.join(suitable) or 'none'}",
            )
        return models.reference(model, framework, task), models.source_sha256(model, framework, task)
    hub = hub_of(model)
    if hub is not None:
        return hub_reference(hub, model, framework, task)
    if ":" not in model:
        if (functions := _functions_of(model, search_path)) is not None:
            raise InputError(f"{marked('build', model)}: names no function", tip=functions)
        raise InputError(
            f"{marked('build', model)}: unknown",
            tip=f"{did_you_mean(model, models.names())}bundled: {', '.join(models.names())}; or give "
            f"{''.join(f'{name}:NAME, ' for name in HUBS.names())}FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION",
        )
    place, function = split_reference(model)
    if place.endswith(".py"):
        return file_reference(place, function, search_path)
    if place.isidentifier() and not _is_importable(place, search_path):
        raise InputError(
            f"{marked('build', model)}: there is no module {place}, and no package adds a hub of this name",
            tip=f"{did_you_mean(place, HUBS.names())}{HUBS.tip()}",
        )
    return model, _digest(place, function, search_path)


def _is_importable(name: str, search_path: Path) -> bool:
    """A module or package of this name is there, without importing it."""
    here = importlib.machinery.PathFinder.find_spec(name, [str(search_path)])
    return name in sys.modules or here is not None or importlib.util.find_spec(name) is not None


def _functions_of(model: str, search_path: Path) -> str | None:
    """How a file of Python is named with a function of it; None where it is no such file."""
    path = search_path / Path(model).expanduser()
    if path.suffix != ".py" or not path.is_file():
        return None
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return f"write {marked('build', f'{model}:FUNCTION')}"
    names = [each.name for each in tree.body if isinstance(each, ast.FunctionDef) and not each.name.startswith("_")]
    if not names:
        return (
            f"it has none; write one that returns the model and its inputs, and {marked('build', f'{model}:FUNCTION')}"
        )
    first = "build" if "build" in names else names[0]
    return f"write {marked('build', f'{model}:{first}')}; its functions: {', '.join(names)}"


def _digest(module: str, function: str, search_path: Path) -> str | None:
    """Digest of a function of a dotted module, found without importing it or its packages; None if that is no file."""
    places: list[str] = [str(search_path), *sys.path]
    spec = None
    for end in range(1, module.count(".") + 2):
        spec = importlib.machinery.PathFinder.find_spec(".".join(module.split(".")[:end]), places)
        if spec is None:
            return None
        places = list(spec.submodule_search_locations or ())
    origin = spec.origin if spec is not None else None
    return digest_of(Path(origin).read_bytes(), function) if origin and Path(origin).is_file() else None
