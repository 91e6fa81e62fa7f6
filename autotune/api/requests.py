"""The arguments of a call from Python as a `TuneRequest`, which is what the command line makes of its flags."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autotune.config import Scalar
from autotune.errors import InputError
from autotune.planning.request import TuneRequest

Texts = str | Sequence[str]
"""One text or several."""
Paths = str | PathLike[str] | Sequence[str | PathLike[str]]


def make_request(
    *,
    study: str | None = None,
    device: str = "auto",
    framework: str | None = None,
    task: str = "infer",
    arguments: Mapping[str, Scalar] | None = None,
    shapes: Texts = (),
    traffic: str | PathLike[str] | None = None,
    inputs: str | PathLike[str] | None = None,
    objective: Texts | None = None,
    constraints: Texts = (),
    tolerance: float | None = None,
    reference: str = "model",
    space: Paths = (),
    preset: str = "standard",
    fixed_precision: bool = False,
    process_settings: bool = False,
    sampler: str | None = None,
    seed: int = 0,
    env: Mapping[str, str] | None = None,
) -> TuneRequest:
    """A request without a model, which `named_model` adds. Raises InputError for a value that cannot be one."""
    if tolerance is not None and not 0 < tolerance <= 1e3:
        raise InputError(f"tolerance={tolerance}: is no relative error", tip="give a number above 0, e.g. 1e-3")
    if not 0 <= seed < 2**32:
        raise InputError(f"seed={seed}: is not a number from 0 to 2**32 - 1")
    given: dict[str, Any] = {
        "models": (),
        "study": study,
        "device": device,
        "framework": framework,
        "task": task,
        "arguments": dict(arguments or {}),
        "shapes": _listed("shapes", shapes),
        "traffic": traffic if traffic is None else Path(traffic),
        "inputs": inputs if inputs is None else Path(inputs),
        "objectives": _listed("objective", objective or ()),
        "constraints": _listed("constraints", constraints),
        "tolerance": tolerance,
        "reference_precision": reference,
        "spaces": tuple(Path(each) for each in _listed("space", space)),
        "preset": preset,
        "fixed_precision": fixed_precision,
        "process_settings": process_settings,
        "sampler": sampler,
        "seed": seed,
        "variables": tuple(f"{name}={value}" for name, value in (env or {}).items()),
    }
    try:
        return TuneRequest(**given)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        raise InputError(f"{_KEYWORDS.get(name, name)}={given.get(name)!r}: {first['msg']}") from None


_KEYWORDS = {
    "objectives": "objective",
    "spaces": "space",
    "reference_precision": "reference",
    "variables": "env",
}
"""Field -> the argument that it comes from, where the two differ."""


def split_inputs(inputs: Any, more_inputs: Sequence[Any] = ()) -> tuple[str | PathLike[str] | None, list[Any] | None]:
    """The file that the inputs are in, and those of a live model. Raises InputError."""
    if isinstance(inputs, (str, PathLike)) or inputs is None:
        if more_inputs:
            raise InputError(
                "more_inputs are given with a live model and its inputs; a function brings its own",
                tip="let it return (model, inputs, more_inputs)",
            )
        return inputs, None
    return None, [inputs, *more_inputs]


def _listed(name: str, given: Any) -> tuple[Any, ...]:
    if isinstance(given, (str, PathLike)):
        return (given,)
    if not isinstance(given, Iterable):
        raise InputError(f"{name}={given!r} is neither a text nor a list of texts", tip=f'give e.g. {name}=["..."]')
    return tuple(given)
