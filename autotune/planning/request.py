"""`TuneRequest`: what the user asked for, as typed, and how its texts are read."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterable
from pathlib import Path

from autotune.command_line import asked
from autotune.config import Scalar
from autotune.errors import InputError
from autotune.files import is_utf8
from autotune.measure.accuracy import ReferencePrecision
from autotune.planning.models import models_of
from autotune.schema import Record
from autotune.space.schema import Preset
from autotune.study.study import check_name
from autotune.workload.workload import Device, Task


class TuneRequest(Record):
    """What the user asked for, as typed; None where left out."""

    models: tuple[str, ...]
    """One for all frameworks, or FRAMEWORK=MODEL for each."""
    model_arguments: tuple[str, ...] = ()
    framework: str | None = None
    device: str = "auto"
    task: Task = "infer"
    shapes: tuple[str, ...] = ()
    traffic: Path | None = None
    inputs: Path | None = None
    """A file with real calls."""
    study: str | None = None
    spaces: tuple[Path, ...] = ()
    objectives: tuple[str, ...] = ()
    constraints: tuple[str, ...] = ()
    tolerance: float | None = None
    reference_precision: ReferencePrecision = "model"
    seed: int = 0
    variables: tuple[str, ...] = ()
    preset: Preset = "standard"
    fixed_precision: bool = False
    process_settings: bool = False
    """The job will allow what holds for its whole process."""
    arguments: dict[str, Scalar] = {}
    """Of a tier, or of a caller in Python: they count more than `model_arguments`."""
    search_path: Path | None = None
    """Folder from which the model's module is importable; None: the current one."""
    sampler: str | None = None
    """Of Optuna, by name; None: the tool's own."""


def check_text(request: TuneRequest) -> None:
    """Check, before anything takes time, that the study's name can be a folder and that all texts are UTF-8."""
    if request.study is not None:
        check_name(request.study)
    given = (("build", request.models), ("arguments", request.model_arguments), ("env", request.variables))
    for field, texts in given:
        for text in texts:
            if not is_utf8(text):
                raise InputError(f"{asked(field)} {text!r}: is not text (UTF-8), or holds null characters")


def study_name(request: TuneRequest, framework: str, device: Device, model: str | None = None) -> str:
    """The name the user gave, or one made of the model, task, framework and device.

    `model`: what the model is called where it has no name yet.
    """
    if request.study is not None:
        return request.study
    model = model or models_of(request.models, (framework,))[framework]
    return "-".join([_short_name(model), *_kind_suffixes(request), framework, device])


def _kind_suffixes(request: TuneRequest) -> list[str]:
    """Parts of a study's name for the task and the traffic; none for inference and for one shape."""
    task: list[str] = [] if request.task == "infer" else [request.task]
    return [*task, "traffic"] if request.shapes or request.traffic else task


def _short_name(model: str) -> str:
    """A folder's name from a model's: `path/to/file.py:function` gives `file-function`."""
    place, _, function = model.rpartition(":")
    name = f"{Path(place).stem}-{function}" if place else model
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._") or "model"


def parse_pairs(what: str, texts: Iterable[str]) -> dict[str, str]:
    """Values by name, from texts NAME=VALUE. Raises InputError."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise InputError(f"{what} {text}: expected NAME=VALUE")
        pairs[name.strip()] = value
    return pairs


def parse_arguments(what: str, texts: Iterable[str]) -> dict[str, Scalar]:
    """Values by name. Raises InputError for an infinity, which neither JSON nor a YAML file holds."""
    values = {name: _parse_scalar(text) for name, text in parse_pairs(what, texts).items()}
    for name, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise InputError(f"{what} {name}: {value} is no number that can be given")
    return values


def _parse_scalar(text: str) -> Scalar:
    """A number, True, False or None as such; everything else as text."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return {"true": True, "false": False, "null": None}.get(text, text)
    return value if value is None or isinstance(value, (bool, int, float, str)) else text
