"""`build`: the one place that imports user code. It turns a `Workload` into a model and its example inputs.

A workload names a function. The function returns `(model, inputs)`, `(model, inputs, more_inputs)`, or a dict with
these keys and further declarations about the model (see `Built`). `inputs` is a tensor, a tuple of positional or a dict
of keyword arguments, or a tuple of these two; `more_inputs` lists further inputs of the same form on which results are
compared (others are derived if none are given: see `derived_inputs`). Where real calls come from a file, the function
may return the model alone. A dict with `components` and their `call`, or with a `pipeline`, is a model of several
(see `components`); so is an object that can be called and holds models. Its `inputs` are those of the call, none unless
there are some.

What a kind of work takes beside these, such as the loss of a training step or the prompts of generated text, says its
module in `kinds`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from autotune.errors import InputError, marked
from autotune.measure.parts import AuthorsWord
from autotune.workload.arguments import Arguments
from autotune.workload.kinds import KINDS, OF_ANY, keys_of_all, kind_of
from autotune.workload.kinds.work import Work, noun_of
from autotune.workload.workload import Workload, split_reference

MODEL_FILE = "_autotune_model_"
"""Prefix of the module name under which a model's file is imported for a trial; a job has no such module."""

Apply = Callable[[Any], object]
"""Changes a model in place."""
Variants = Mapping[str, Mapping[str, Apply | None]]
"""Variant -> value -> the function that applies it; None: the model as it is."""


@dataclass(frozen=True)
class Built:
    """A live model with its example inputs, further inputs, and its author's declarations. For training, the inputs
    include the targets."""

    model: Any
    inputs: Arguments
    work: Work
    more_inputs: tuple[Arguments, ...] = ()
    regions: tuple[str, ...] | None = None
    """Regions to compile instead of the whole model (see `regions`); None: not declared."""
    variants: Variants = field(default_factory=dict)
    """The first value of each is the model as it is (see `variants`)."""
    compare: AuthorsWord | None = None
    """How its outputs are compared; None: within the study's tolerance."""
    padding: Mapping[str, float] = field(default_factory=dict)
    """Dimension of the traffic -> the value for padding along it (see `Shapes`)."""
    gradients: bool = False
    """The model differentiates within its forward pass: gradients are recorded in all of its calls."""
    reset: Apply | None = None
    """Puts the model, which keeps something from call to call, into the state that its calls begin in."""

    @property
    def called(self) -> Callable[..., Any]:
        """What takes the inputs: the model, or for training its loss."""
        return self.work.called(self.model)


def build(workload: Workload, calls: Sequence[Arguments] = ()) -> Built:
    """Import the workload's function and call it. Only for child processes: it runs user code and a framework.

    `calls` are those of the workload's file: further inputs, or all inputs of a function that gives none.

    Raises InputError if the file, the function or its result is wrong, or either ends the program; other exceptions of
    the function are not caught.
    """
    with _as_a_program(workload):
        function = _find_function(workload)
        returned = function(**_arguments(function, workload))
    parts = _parts(returned, workload, calls)
    for each in KINDS:
        parts = each.adapted(parts, workload)
    model, kind = parts.get("model"), kind_of(workload, parts)
    _require_known_parts(parts, kind, workload, calls)
    kind.require_suitable(parts, workload)
    if not callable(model):
        raise InputError(f"{workload.model} returned {noun_of(model)} as the model, which cannot be called")
    read = {key: read_as(parts[key], workload) for key, read_as in _READ.items() if key in parts}
    own = [Arguments.of(parts["inputs"]), *read.pop("more_inputs", ())] if "inputs" in parts else []
    first, *more = kind.inputs_of(parts, own, calls)
    return Built(model, first, kind.of(parts, workload), tuple(more), **read)


@contextmanager
def _as_a_program(workload: Workload) -> Iterator[None]:
    """What a file reads of the command line is what it would find without any argument. One that ends the program, such
    as an argument parser that wants arguments, is an InputError."""
    before = sys.argv
    sys.argv = [split_reference(workload.reference)[0]]
    try:
        yield
    except SystemExit as error:
        raise InputError(
            f"{workload.model} ended the program (SystemExit: {error.code}) instead of returning a model",
            tip='put what a script does, such as reading its command line, under `if __name__ == "__main__":`',
        ) from None
    finally:
        sys.argv = before


_POSITIONS = ("model", "inputs", "more_inputs")
"""The parts of a tuple, in order."""


def _parts(returned: object, workload: Workload, calls: Sequence[Arguments]) -> Mapping[str, Any]:
    """The parts that the function returned, by name. Raises InputError where it is not known what they are."""
    if isinstance(returned, tuple) and len(returned) in (2, 3):
        return dict(zip(_POSITIONS, returned, strict=False))
    if isinstance(returned, Mapping):
        return returned
    if calls and callable(returned):
        return {"model": returned}
    raise InputError(
        f"{workload.model} returned {noun_of(returned)}",
        tip="it must return (model, inputs), (model, inputs, more_inputs) or a dict of these and more",
    )


def _require_known_parts(
    parts: Mapping[str, Any], kind: type[Work], workload: Workload, calls: Sequence[Arguments]
) -> None:
    """Raises InputError if a part that the work needs is missing, or one is there that none has."""
    known = dict.fromkeys((*OF_ANY, *sorted(keys_of_all()), *kind.keys))
    unknown = [str(key) for key in parts if key not in known]
    if unknown:
        raise InputError(f"{workload.model} returned a mapping with {unknown[0]!r}", tip=f"known: {', '.join(known)}")
    missing = [key for key in ("model", *(() if calls else (kind.needs,))) if key not in parts]
    if missing:
        raise InputError(
            f"{marked('task', workload.task)}: {workload.model} returned no {' and no '.join(missing)}",
            tip=f"let it return a dict with 'model' and {kind.needs!r}",
        )


def _more_inputs(value: object, workload: Workload) -> tuple[Arguments, ...]:
    if not isinstance(value, (list, tuple)):
        raise InputError(f"{workload.model} returned {noun_of(value)} as more_inputs; it must be a list of inputs")
    return tuple(Arguments.of(inputs) for inputs in value)


def _regions(value: object, workload: Workload) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        raise InputError(
            f"{workload.model} returned {noun_of(value)} as regions; it must be a list of texts such as 'blocks.*'"
        )
    return tuple(dict.fromkeys(value))


def _variants(value: object, workload: Workload) -> Variants:
    if not isinstance(value, Mapping):
        raise InputError(f"{workload.model} returned {noun_of(value)} as variants; it must be a dict {_VARIANTS}")
    for name, choices in value.items():
        if not _NAME.fullmatch(str(name)):
            raise InputError(f"{workload.model}: the variant {name!r} needs a name of letters, digits and underscores")
        if not isinstance(choices, Mapping) or len(choices) < 2 or next(iter(choices.values())) is not None:
            raise InputError(
                f"{workload.model}: the variant {name} must have the model as it is first, and then others",
                tip=f"write it as {_VARIANTS}",
            )
        for choice, function in list(choices.items())[1:]:
            if not callable(function):
                raise InputError(
                    f"{workload.model}: the variant {name}={choice} is {noun_of(function)}",
                    tip="it must be a function that takes the model and changes it in place",
                )
        if not all(isinstance(choice, str) for choice in choices):
            raise InputError(f"{workload.model}: the variant {name} has a value whose name is no text")
    return value


def _padding(value: object, workload: Workload) -> Mapping[str, float]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InputError(
            f"{workload.model} returned {noun_of(value)} as padding; it must be a dict such as {{'batch': 0}}"
        )
    for name, number in value.items():
        if not isinstance(number, (int, float)) or isinstance(number, bool):
            raise InputError(f"{workload.model}: the padding of {name} is {noun_of(number)} and not a number")
    return value


def _gradients(value: object, workload: Workload) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{workload.model} returned {noun_of(value)} as gradients; it must be True or False")
    return value


def _reset(value: object, workload: Workload) -> Apply:
    if not callable(value):
        raise InputError(
            f"{workload.model} returned {noun_of(value)} as reset",
            tip="it must be a function that takes the model and puts it into the state that its calls begin in",
        )
    return value


def _compare(value: object, workload: Workload) -> AuthorsWord:
    try:
        return AuthorsWord.of(value)
    except InputError as error:
        raise error.about(workload.model) from None


_VARIANTS = "{NAME: {'plain': None, 'other': FUNCTION}}"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_READ: dict[str, Callable[[object, Workload], Any]] = {
    "more_inputs": _more_inputs,
    "regions": _regions,
    "variants": _variants,
    "padding": _padding,
    "compare": _compare,
    "gradients": _gradients,
    "reset": _reset,
}
"""Key -> the function that reads its value for `Built`, or raises InputError."""


def _find_function(workload: Workload) -> Callable[..., Any]:
    place, name = split_reference(workload.reference)
    if workload.search_path not in sys.path:
        sys.path.insert(0, workload.search_path)
    module = _import_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    function = getattr(module, name, None)
    if function is None:
        public = sorted(n for n, value in vars(module).items() if inspect.isfunction(value) and n[0] != "_")
        raise InputError(f"{place} has no function {name}", tip=f"it has: {', '.join(public) or 'none'}")
    if not callable(function):
        raise InputError(f"{place}:{name} is {noun_of(function)}, not a function")
    return function  # type: ignore[no-any-return]


def _import_file(path: Path) -> ModuleType:
    if not path.exists():
        raise InputError(f"{path} no longer exists")
    sys.path.insert(0, str(path.parent))
    # Under a name of its own: a user's `types.py` must not replace Python's.
    name = f"{MODEL_FILE}{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _arguments(function: Callable[..., Any], workload: Workload) -> dict[str, Any]:
    """The workload's arguments, checked against the function's parameters; with the seed if the function takes one."""
    _require_known(workload.dimensions, function, workload, marked("shapes"))
    _require_known(workload.arguments, function, workload, marked("arguments"))
    given: dict[str, Any] = dict(workload.arguments)
    if "seed" in inspect.signature(function).parameters:
        given.setdefault("seed", workload.seed)
    return given


def _require_known(names: Iterable[str], function: Callable[..., Any], workload: Workload, place: str) -> None:
    parameters = inspect.signature(function).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = [name for name in names if name not in parameters and not takes_any]
    if unknown:
        raise InputError(
            f"{place} {unknown[0]}: {workload.model} has no such argument",
            tip=f"it takes: {', '.join(parameters) or 'none'}",
        )
