"""`Workload`: what is tuned, as data, and the one place that turns it into a model and its example inputs.

A workload names a function; the function returns `(model, inputs)` or `(model, inputs, more_inputs)`. `inputs` is a
tensor, a tuple of positional or a dict of keyword arguments; `more_inputs` lists further inputs of the same form on
which results are compared (two are derived where none are given: see `numerics`).

For training it returns a mapping: the same under their names, and `loss`, `optimizer`, and `targets` if the loss takes
any. A training step then is `loss(model, *inputs, *targets)`, its gradients, and the optimizer's step.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from autotune.config import Scalar
from autotune.errors import InputError
from autotune.measurement import Record

Device = Literal["cpu", "gpu", "ascend"]
Task = Literal["infer", "train"]
"""What is done with a model: it is called, or it takes a training step."""


class Workload(Record):
    """A model function with its arguments, a framework and a device: all that is needed to build it again."""

    model: str
    """As the user named it: `vit`, `path/to/file.py:function` or `package.module:function`."""
    reference: str
    """What is imported: `package.module:function` or `/absolute/path/file.py:function`."""
    arguments: dict[str, Scalar] = {}
    framework: str
    device: Device
    task: Task = "infer"
    seed: int = 0
    search_path: str
    """Folder from which `package.module` is importable: where the user started the tool."""
    source_sha256: str | None = None
    """Of the file that holds the function, where it is known without importing it."""


@dataclass(frozen=True)
class Arguments:
    """One set of inputs, ready to be splatted into a call."""

    positional: tuple[Any, ...] = ()
    keyword: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, inputs: object) -> Arguments:
        if isinstance(inputs, Mapping):
            return cls(keyword=dict(inputs))
        if isinstance(inputs, (tuple, list)):
            return cls(positional=tuple(inputs))
        return cls(positional=(inputs,))

    def call(self, function: Callable[..., Any]) -> Any:
        return function(*self.positional, **(self.keyword or {}))

    def and_then(self, more: Arguments) -> Arguments:
        """A call with the arguments of both, positional ones in this order."""
        keyword = {**(self.keyword or {}), **(more.keyword or {})}
        return Arguments((*self.positional, *more.positional), keyword or None)

    def leaves(self) -> list[Any]:
        """The argument values, positional first, keywords in their order."""
        return [*self.positional, *(self.keyword or {}).values()]

    def with_leaves(self, leaves: list[Any]) -> Arguments:
        """The same call with other values, in the order of `leaves()`."""
        num_positional = len(self.positional)
        keyword = self.keyword and dict(zip(self.keyword, leaves[num_positional:], strict=True))
        return Arguments(tuple(leaves[:num_positional]), keyword)


@dataclass(frozen=True)
class Recipe:
    """How a model is trained: `loss(model, *inputs, *targets)` gives one number, `optimizer` changes the weights."""

    loss: Callable[..., Any]
    optimizer: Any


@dataclass(frozen=True)
class Built:
    """A live model with its example inputs and the further inputs that its author gave; to train, with the targets."""

    model: Any
    inputs: Arguments
    more_inputs: tuple[Arguments, ...] = ()
    recipe: Recipe | None = None
    """Given if and only if the task is to train."""


def split_reference(model: str) -> tuple[str, str]:
    """`file.py:function` or `package.module:function` into its two parts. Raises InputError."""
    place, _, function = model.rpartition(":")
    if not place or not function.isidentifier():
        raise InputError(
            f"--model {model}: not a bundled model, nor FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION",
            tip="run `python cli.py models` for the bundled ones",
        )
    return place, function


def file_reference(place: str | Path, function: str, search_path: Path = Path()) -> tuple[str, str]:
    """Absolute reference of a function in a file, and the file's SHA-256. Raises InputError if unreadable.

    A relative `place` is seen from `search_path`.
    """
    path = (search_path / Path(place).expanduser()).resolve()
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"--model {path}:{function}: cannot be read: {error.strerror}", tip="check the path") from None
    return f"{path}:{function}", hashlib.sha256(content).hexdigest()


def build(workload: Workload) -> Built:
    """Import the workload's function and call it. For the child: this runs the user's code and a framework.

    Raises InputError where the file, the function or what it returns is wrong; what the function itself raises
    comes through as it is.
    """
    function = _find_function(workload)
    returned = function(**_arguments(function, workload))
    parts = _parts(returned, workload)
    model, more_inputs = parts["model"], parts.get("more_inputs", ())
    if not callable(model):
        raise InputError(f"{workload.model} returned {_kind(model)} as the model, which cannot be called")
    if not isinstance(more_inputs, (list, tuple)):
        raise InputError(f"{workload.model} returned {_kind(more_inputs)} as more_inputs; it must be a list of inputs")
    inputs = [Arguments.of(each) for each in (parts["inputs"], *more_inputs)]
    if workload.task == "infer":
        return Built(model, inputs[0], tuple(inputs[1:]))
    targets = Arguments.of(parts.get("targets", ()))
    batches = [each.and_then(targets) for each in inputs]
    return Built(model, batches[0], tuple(batches[1:]), _recipe(parts, workload))


_KEYS = ("model", "inputs", "more_inputs", "targets", "loss", "optimizer")
_FOR_TRAINING = (
    'return {"model": ..., "inputs": ..., "targets": ..., "loss": ..., "optimizer": ...} (see docs/training.md)'
)


def _parts(returned: object, workload: Workload) -> Mapping[str, Any]:
    """What the function returned, by name, with all that the task needs. Raises InputError."""
    if isinstance(returned, tuple) and len(returned) in (2, 3):
        parts: Mapping[str, Any] = dict(zip(_KEYS, returned, strict=False))
    elif isinstance(returned, Mapping):
        parts = returned
    else:
        raise InputError(
            f"{workload.model} returned {_kind(returned)}",
            tip="it must return (model, inputs) or (model, inputs, more_inputs)",
        )
    needed = ("model", "inputs", *(("loss", "optimizer") if workload.task == "train" else ()))
    missing = [key for key in needed if key not in parts]
    if missing:
        tip = _FOR_TRAINING if workload.task == "train" else None
        raise InputError(f"--task {workload.task}: {workload.model} returned no {' and no '.join(missing)}", tip=tip)
    unknown = [str(key) for key in parts if key not in _KEYS]
    if unknown:
        raise InputError(f"{workload.model} returned a mapping with {unknown[0]!r}", tip=f"known: {', '.join(_KEYS)}")
    return parts


def _recipe(parts: Mapping[str, Any], workload: Workload) -> Recipe:
    if not callable(parts["loss"]):
        raise InputError(f"{workload.model} returned {_kind(parts['loss'])} as the loss, which cannot be called")
    return Recipe(parts["loss"], parts["optimizer"])


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
        raise InputError(f"{place}:{name} is {_kind(function)}, not a function")
    return function  # type: ignore[no-any-return]


def _import_file(path: Path) -> ModuleType:
    if not path.exists():
        raise InputError(f"{path} is not there any more")
    sys.path.insert(0, str(path.parent))
    # Under a name of its own: a user's `types.py` must not take the place of Python's.
    name = f"_autotune_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _arguments(function: Callable[..., Any], workload: Workload) -> dict[str, Any]:
    """The workload's arguments, checked against the function; its seed too where the function takes one."""
    parameters = inspect.signature(function).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = [name for name in workload.arguments if name not in parameters and not takes_any]
    if unknown:
        raise InputError(
            f"--model-arg {unknown[0]}: {workload.model} has no such argument",
            tip=f"it takes: {', '.join(parameters) or 'none'}",
        )
    given: dict[str, Any] = dict(workload.arguments)
    if "seed" in parameters:
        given.setdefault("seed", workload.seed)
    return given


def _kind(value: object) -> str:
    kind = type(value).__name__
    return f"a {kind} of {len(value)}" if isinstance(value, (tuple, list)) else f"a {kind}"
