"""`build`: the one place that imports user code. It turns a `Workload` into a model and its example inputs.

A workload names a function. The function returns `(model, inputs)`, `(model, inputs, more_inputs)`, or a dict with
these keys and further declarations about the model (see `Built`). `inputs` is a tensor, a tuple of positional or a dict
of keyword arguments, or a tuple of these two; `more_inputs` lists further inputs of the same form on which results are
compared (others are derived if none are given: see `derived_inputs`). Where real calls come from a file, the function
may return the model alone. A dict with `components` and their `call`, or with a `pipeline`, is a model of several
(see `components`); so is an object that can be called and holds models. Its `inputs` are those of the call, none unless
there are some.

For training the dict has `loss` and `optimizer` too, and `targets` if the loss takes any. A training step then is
`loss(model, *inputs, *targets)`, its gradients, and the optimizer's step. Without `loss` the model returns it itself
(`own_loss`), without `optimizer` it is the framework's usual one.

For generation of text the dict has `model` and `generate`, the prompts (see `generation`).
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from autotune.command_line import asked
from autotune.errors import InputError
from autotune.measure.parts import AuthorsWord
from autotune.workload.arguments import Arguments
from autotune.workload.components import Pipeline, as_pipeline, called, held_components
from autotune.workload.generation import KEY, Prompts
from autotune.workload.tiers import TierSpecs, parse_tier_specs
from autotune.workload.workload import Task, Workload, split_reference

MODEL_FILE = "_autotune_model_"
"""Prefix of the module name under which a model's file is imported for a trial; a job has no such module."""

Apply = Callable[[Any], object]
"""Changes a model in place."""
Variants = Mapping[str, Mapping[str, Apply | None]]
"""Variant -> value -> the function that applies it; None: the model as it is."""


@dataclass(frozen=True)
class TrainingRecipe:
    """How a model is trained: `loss(model, *inputs, *targets)` gives one number, `optimizer` changes the weights."""

    loss: Callable[..., Any]
    optimizer: Any | None
    """None: the usual one, see `Training.usual_optimizer`."""


def own_loss(model: Any, *inputs: Any, **named: Any) -> Any:
    """Loss that a model returns itself, given labels among its inputs: `loss` of an object or a dict, or the first of
    several outputs; else all that it returns. Compilers read this function: it keeps to what each of them takes."""
    returned = model(*inputs, **named)
    if isinstance(returned, dict):
        return returned.get("loss", returned)
    if isinstance(returned, (tuple, list)):
        return returned[0]
    return returned.loss if hasattr(returned, "loss") else returned


@dataclass(frozen=True)
class Built:
    """A live model with its example inputs, further inputs, and its author's declarations. For training, the inputs
    include the targets."""

    model: Any
    inputs: Arguments
    more_inputs: tuple[Arguments, ...] = ()
    regions: tuple[str, ...] | None = None
    """Regions to compile instead of the whole model (see `regions`); None: not declared."""
    variants: Variants = field(default_factory=dict)
    """The first value of each is the model as it is (see `variants`)."""
    tiers: TierSpecs = field(default_factory=dict)
    """Quality levels that run faster (see `tiers`)."""
    compare: AuthorsWord | None = None
    """How its outputs are compared; None: within the study's tolerance."""
    recipe: TrainingRecipe | None = None
    """Given if and only if the task is training."""
    padding: Mapping[str, float] = field(default_factory=dict)
    """Dimension of the traffic -> the value for padding along it (see `Shapes`)."""
    gradients: bool = False
    """The model differentiates within its forward pass: gradients are recorded in all of its calls."""
    reset: Apply | None = None
    """Puts the model, which keeps something from call to call, into the state that its calls begin in."""
    prompts: Prompts | None = None
    """What is generated; given if and only if the task is that. There are no inputs then."""

    @property
    def called(self) -> Callable[..., Any]:
        """What takes the inputs: the model, or for training its loss."""
        return self.model if self.recipe is None else partial(self.recipe.loss, self.model)


def build(workload: Workload, calls: Sequence[Arguments] = ()) -> Built:
    """Import the workload's function and call it. Only for child processes: it runs user code and a framework.

    `calls` are those of the workload's file: further inputs, or all inputs of a function that gives none.

    Raises InputError if the file, the function or its result is wrong, or either ends the program; other exceptions of
    the function are not caught.
    """
    with _as_a_program(workload):
        function = _find_function(workload)
        returned = function(**_arguments(function, workload))
    parts = _parts(_as_one_model(returned, workload), workload, calls)
    model = as_pipeline(parts["model"])
    _require_suitable(parts, workload, is_pipeline=isinstance(model, Pipeline))
    if not callable(model):
        raise InputError(f"{workload.model} returned {_kind(model)} as the model, which cannot be called")
    read = {key: read_as(parts[key], workload) for key, read_as in _READ.items() if key in parts}
    for tier in read.get("tiers", {}).values():
        _require_known(tier.arguments, function, workload, f"{workload.model}: the tiers:")
    own = [Arguments.of(parts["inputs"]), *read.pop("more_inputs", ())] if "inputs" in parts else []
    if workload.task == "train":
        targets = Arguments.of(parts.get("targets", ()))
        own = [tier.extended_by(targets) for tier in own]
        loss = parts.get("loss", own_loss)
        if not callable(loss):
            raise InputError(f"{workload.model} returned {_kind(loss)} as the loss, which cannot be called")
        read["recipe"] = TrainingRecipe(loss, parts.get("optimizer"))
    if workload.task == "generate":
        return Built(model, Arguments(), prompts=Prompts.of(parts[KEY], workload.model))
    inputs = [*own, *calls]
    return Built(model, inputs[0], tuple(inputs[1:]), **read)


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
_OF_TRAINING = ("targets", "loss", "optimizer")
_KEYS = (*_POSITIONS, "compare", "gradients", "regions", "variants", "padding", "tiers", "reset", *_OF_TRAINING, KEY)


def _as_one_model(returned: object, workload: Workload) -> object:
    """A dict of components or of a pipeline as one whose model is a `Pipeline`; anything else as it is."""
    if not isinstance(returned, Mapping) or not {"components", "pipeline"} & returned.keys():
        return returned
    rest = {key: value for key, value in returned.items() if key not in ("components", "pipeline", "call")}
    if "components" in returned:
        model = held_components(returned["components"], returned.get("call"), workload.model)
    elif "call" in returned:
        model = Pipeline(returned["pipeline"], called(returned["call"], workload.model))
    else:
        return {"model": returned["pipeline"], **rest}
    return {"model": model, "inputs": (), **rest}


_OF_CALLS = "it is for calls of a model"
_OF_ONE_MODEL = "it is for one model"
_UNSUITABLE: dict[Task | Literal["pipeline"], dict[str, str]] = {
    "infer": {},
    "train": {
        "compare": "losses, gradients and weights are compared, not outputs",
        "regions": "what is compiled of a step is a knob of its own",
        "variants": _OF_CALLS,
        "padding": "a step has one shape",
        "tiers": _OF_CALLS,
        "reset": "the loss can do that: it is called with the model in each step",
    },
    "generate": {
        "more_inputs": "the prompts are its inputs",
        "compare": "tokens are compared, and the logits that they are chosen by",
        "regions": "which of its two phases is compiled is a knob of its own",
        "variants": _OF_CALLS,
        "padding": "how prompts are padded is a knob of its own",
        "gradients": "none are recorded",
        "tiers": _OF_CALLS,
        "reset": "each text begins with an empty cache",
    },
    "pipeline": dict.fromkeys(("variants", "padding", "tiers", "reset"), _OF_ONE_MODEL),
}
"""What a task, or a pipeline, does not take of an author's declarations -> why. What it takes, it honours. The inputs
beside prompts, and what is for training beside those, are for another task of the same function."""


def _require_suitable(parts: Mapping[str, Any], workload: Workload, *, is_pipeline: bool) -> None:
    """Raises InputError for a declaration that would be without effect."""
    if is_pipeline and workload.task != "infer":
        raise InputError(
            f"{asked('task', workload.task)}: {workload.model} returned a pipeline",
            tip="return one of its models with inputs of its own",
        )
    if is_pipeline and workload.shapes is not None:
        raise InputError(
            f"{workload.model} returned a pipeline, and {asked('shapes')} is for one model", tip="leave it out"
        )
    subject = f"{workload.model} returned a pipeline" if is_pipeline else asked("task", workload.task)
    for key, why in _UNSUITABLE["pipeline" if is_pipeline else workload.task].items():
        if _is_declared(parts.get(key)):
            raise InputError(
                f"{subject}: {key!r} that {workload.model} returned cannot be used, since {why}", tip="leave it out"
            )


def _is_declared(value: object) -> bool:
    """An empty declaration says nothing; what the value may be is for its own reader to say."""
    return value is not None and value is not False and not (isinstance(value, Sized) and not len(value))


def _parts(returned: object, workload: Workload, calls: Sequence[Arguments]) -> Mapping[str, Any]:
    """The parts that the function returned, by name. Raises InputError if one that the task needs is missing."""
    if isinstance(returned, tuple) and len(returned) in (2, 3):
        parts: Mapping[str, Any] = dict(zip(_POSITIONS, returned, strict=False))
    elif isinstance(returned, Mapping):
        parts = returned
    elif calls and callable(returned):
        parts = {"model": returned}
    else:
        raise InputError(
            f"{workload.model} returned {_kind(returned)}",
            tip="it must return (model, inputs), (model, inputs, more_inputs) or a dict of these and more",
        )
    needed = KEY if workload.task == "generate" else "inputs"
    missing = [key for key in ("model", *(() if calls else (needed,))) if key not in parts]
    if missing:
        raise InputError(f"{asked('task', workload.task)}: {workload.model} returned no {' and no '.join(missing)}")
    unknown = [str(key) for key in parts if key not in _KEYS]
    if unknown:
        raise InputError(f"{workload.model} returned a mapping with {unknown[0]!r}", tip=f"known: {', '.join(_KEYS)}")
    return parts


def _more_inputs(value: object, workload: Workload) -> tuple[Arguments, ...]:
    if not isinstance(value, (list, tuple)):
        raise InputError(f"{workload.model} returned {_kind(value)} as more_inputs; it must be a list of inputs")
    return tuple(Arguments.of(inputs) for inputs in value)


def _regions(value: object, workload: Workload) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) for name in value):
        raise InputError(
            f"{workload.model} returned {_kind(value)} as regions; it must be a list of texts such as 'blocks.*'"
        )
    return tuple(dict.fromkeys(value))


def _variants(value: object, workload: Workload) -> Variants:
    if not isinstance(value, Mapping):
        raise InputError(f"{workload.model} returned {_kind(value)} as variants; it must be a dict {_VARIANTS}")
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
                    f"{workload.model}: the variant {name}={choice} is {_kind(function)}",
                    tip="it must be a function that takes the model and changes it in place",
                )
        if not all(isinstance(choice, str) for choice in choices):
            raise InputError(f"{workload.model}: the variant {name} has a value whose name is no text")
    return value


def _padding(value: object, workload: Workload) -> Mapping[str, float]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise InputError(
            f"{workload.model} returned {_kind(value)} as padding; it must be a dict such as {{'batch': 0}}"
        )
    for name, number in value.items():
        if not isinstance(number, (int, float)) or isinstance(number, bool):
            raise InputError(f"{workload.model}: the padding of {name} is {_kind(number)} and not a number")
    return value


def _gradients(value: object, workload: Workload) -> bool:
    if not isinstance(value, bool):
        raise InputError(f"{workload.model} returned {_kind(value)} as gradients; it must be True or False")
    return value


def _reset(value: object, workload: Workload) -> Apply:
    if not callable(value):
        raise InputError(
            f"{workload.model} returned {_kind(value)} as reset",
            tip="it must be a function that takes the model and puts it into the state that its calls begin in",
        )
    return value


def _compare(value: object, workload: Workload) -> AuthorsWord:
    try:
        return AuthorsWord.of(value)
    except InputError as error:
        raise InputError(f"{workload.model}: {error}", tip=error.tip) from None


_VARIANTS = "{NAME: {'plain': None, 'other': FUNCTION}}"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_READ: dict[str, Callable[[object, Workload], Any]] = {
    "more_inputs": _more_inputs,
    "regions": _regions,
    "variants": _variants,
    "tiers": lambda value, workload: parse_tier_specs(value, workload.model),
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
        raise InputError(f"{place}:{name} is {_kind(function)}, not a function")
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
    _require_known(workload.dimensions, function, workload, "shapes")
    _require_known(workload.arguments, function, workload, "arguments")
    given: dict[str, Any] = dict(workload.arguments)
    if "seed" in inspect.signature(function).parameters:
        given.setdefault("seed", workload.seed)
    return given


def _require_known(names: Iterable[str], function: Callable[..., Any], workload: Workload, field: str) -> None:
    parameters = inspect.signature(function).parameters
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = [name for name in names if name not in parameters and not takes_any]
    if unknown:
        raise InputError(
            f"{asked(field)} {unknown[0]}: {workload.model} has no such argument",
            tip=f"it takes: {', '.join(parameters) or 'none'}",
        )


def _kind(value: object) -> str:
    kind = type(value).__name__
    return f"a {kind} of {len(value)}" if isinstance(value, (tuple, list)) else f"a {kind}"
