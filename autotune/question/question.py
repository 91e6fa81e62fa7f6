"""`Question`: all that can be asked of `tune`, each field with its default, its limits and its description.

The faces are made of these fields: the flags of the command line with their help (`autotune.cli.flags`), the arguments
of `autotune.tune` (`Asked`), environment variables, and files of flags (`autotune.cli.team_defaults`). A field that is
added here and used where it has its effect is added everywhere.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, Literal, ParamSpec, Self, TypedDict, TypeVar, get_args, get_origin

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from autotune.config import Scalar
from autotune.errors import InputError, did_you_mean, marked
from autotune.question.allows import Facts, require_allowed
from autotune.schema import Record

Preset = Literal["quick", "standard", "exhaustive"]
Effort = Literal["quick", "normal", "exhaustive"]
P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_STUDIES_DIR = Path("studies")
SetBy = Literal["a file", "the user", "nobody"]
"""Who may set a field beside a program: a file of flags, too; whoever types it or sets its variable; whoever types."""


def ask(default: Any, about: str, *, by: SetBy = "a file", variable: str | None = None, **limits: float) -> Any:
    """A field that is asked for with a flag. `variable`: the environment variable that gives its default."""
    return Field(
        default,
        description=about,
        json_schema_extra={"by": by, "variable": variable},
        ge=limits.get("ge"),
        le=limits.get("le"),
    )


def _listed(given: Any) -> Any:
    """One text, or several."""
    if isinstance(given, (str, PathLike)):
        return (given,)
    if not isinstance(given, Iterable):
        raise ValueError("is neither a text nor a list of texts")
    return tuple(given)


def _from_home(given: Any) -> Any:
    """`~` is the user's home, also where no shell has said so."""
    return os.path.expanduser(given) if isinstance(given, (str, PathLike)) else given


def parse_pairs(what: str, texts: Iterable[str]) -> dict[str, str]:
    """Values by name, from texts NAME=VALUE. Raises InputError, which says `what` they are."""
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


def as_typed(value: Scalar) -> str:
    """The text that is read as this value."""
    return str(value) if _parse_scalar(str(value)) == value else repr(value)


def _arguments(given: Any) -> Any:
    if not isinstance(given, Mapping):
        return parse_arguments(marked("arguments"), _listed(given))
    for name, value in given.items():
        if not (value is None or isinstance(value, (bool, int, float, str))):
            raise ValueError(f"{name} is no number, text, True, False or None")
    return given


def _device(given: Any) -> Any:
    """PyTorch's own names mean the same."""
    return {"cuda": "gpu", "npu": "ascend"}.get(given, given) if isinstance(given, str) else given


def _variables(given: Any) -> Any:
    if isinstance(given, Mapping):
        return {name: str(value) for name, value in given.items()}
    return parse_pairs(marked("env"), _listed(given))


def _as_text(given: Any) -> Any:
    return str(given) if isinstance(given, int) else given


Texts = Annotated[tuple[str, ...], BeforeValidator(_listed)]


class Scope(Record):
    """What of a question decides which configs there are. A study keeps it, and so does what is exported from it: the
    same can be asked again."""

    space: str | None = None
    """Space file in place of the bundled one, where it lay."""
    preset: Preset = "standard"
    fixed_precision: bool = False
    process_settings: bool = False
    own_loop: bool = False
    instances: str | None = None

    def asked_of(self, task: str) -> dict[str, Any]:
        """Fields of the question that ask for the same."""
        efforts: dict[str, Effort | None] = {"quick": "quick", "standard": None, "exhaustive": "exhaustive"}
        own = self.model_dump(exclude={"preset", "own_loop"})
        return {**own, "effort": efforts[self.preset], "whole_step": task == "train" and not self.own_loop}


class Question(Record):
    """What is asked, in the order in which the command line shows it."""

    build: str | None = ask(
        None,
        "Bundled name, FILE.py:FUNCTION, PACKAGE.MODULE:FUNCTION, hf:TYPE, timm:NAME, mindcv:NAME, mindone:NAME or "
        "mindyolo:FILE.",
    )
    task: Literal["infer", "train", "generate"] = ask(
        "infer",
        "infer: tune calls of the model; train: tune training steps; generate: tune text generation, model.generate.",
    )
    shapes: Texts = ask(
        (),
        'Input shapes of the job, e.g. "batch=1:60%,4:30%,8:10%" or "seq=16..128"; separate dimensions by ; or repeat '
        "the option. The default objective is total:1000 then.",
    )
    traffic: Annotated[Path | None, BeforeValidator(_from_home)] = ask(
        None, 'Input shapes as a log: JSON lines like {"batch": 4, "count": 120}.'
    )
    inputs: Annotated[Path | None, BeforeValidator(_from_home)] = ask(
        None,
        "File of real calls (torch.save of a list, or what `watch` kept): results are compared on them, and the first "
        "is timed where the model's function gives no inputs.",
    )
    device: Annotated[str, BeforeValidator(_device)] = ask(
        "auto", "auto, cpu, gpu (or cuda) or ascend (or npu).", variable="AUTOTUNE_DEVICE"
    )
    framework: str | None = ask(None, "torch or mindspore. [by device]")
    study: str | None = ask(None, "Study name; an existing study is resumed. [MODEL-FRAMEWORK-DEVICE]")
    trials: int | None = ask(None, "Most trials of the study, earlier ones included. [24; no limit with a time]", ge=1)
    effort: Effort | None = ask(
        None,
        "quick: a few dozen configs; normal: some hundred, until more are unlikely to pay; exhaustive: all, until "
        "trials or time are used up. [normal]",
    )
    jobs: int | None = ask(
        None,
        "Trials that are compiled at the same time; each is timed alone. "
        "[as many as there are cores and memory for; of `resume`: as before]",
        variable="AUTOTUNE_JOBS",
        ge=1,
    )
    on: str | None = ask(None, "ray, or ray://HOST:PORT: all devices of a Ray cluster. [this machine]", by="the user")
    quiet: bool = ask(False, "Print nothing on stderr while the study runs.", variable="AUTOTUNE_QUIET")
    arguments: Annotated[dict[str, Scalar], BeforeValidator(_arguments)] = ask(
        {}, "NAME=VALUE for the model's function; repeatable."
    )
    space: Annotated[Path | None, BeforeValidator(_from_home)] = ask(
        None, "Search-space file in place of the bundled one."
    )
    fixed_precision: bool = ask(False, "Do not try settings that change numerics.")
    process_settings: bool = ask(
        False,
        "Also try settings of the whole process (threads, allocator, matmul precision, ...); the job has to allow them "
        "with apply(model, process_settings=True), or to be started with `launch`.",
    )
    whole_step: bool = ask(
        False,
        "With task train: also try what compiles loss or optimizer along, for a job that hands its whole step over "
        "(training_step). No Trainer, Lightning or loop of your own can use that.",
    )
    instances: Annotated[str | None, BeforeValidator(_as_text)] = ask(
        None,
        "On a CPU: so many processes call at a time, each on its share of the cores, as workers of a service do. With "
        "objective throughput beside one process with all cores; auto: each number that divides them.",
    )
    objective: str | None = ask(
        None,
        "latency (the median), p90, p99, throughput, memory, compile or total:CALLS, of generated text ttft and tpot "
        "(the first token, each further one). [latency; with shapes total:1000]",
    )
    constraints: Texts = ask((), 'E.g. "peak_memory <= 2GiB" or "throughput >= 100"; repeatable.')
    tolerance: float | None = ask(None, "Largest relative error allowed in an output. [by precision]", ge=1e-12, le=1e3)
    reference: Literal["model", "float32", "float64"] = ask(
        "model", "Precision of the reference outputs: model (its own), float32, float64."
    )
    seed: int = ask(0, "Seed of weights, inputs and the order of trials.", ge=0, le=2**32 - 1)
    prior: Texts = ask((), "STUDY or exported YAML whose best configs are tried first; repeatable.")
    env: Annotated[dict[str, str], BeforeValidator(_variables)] = ask(
        {}, "Environment variable NAME=VALUE for every measured process; repeatable."
    )
    compile_timeout: float | None = ask(
        None, "Longest compile, in seconds. [300, or ten times the others' median]", ge=1, le=1e6
    )
    trial_timeout: float | None = ask(None, "Longest trial, in seconds. [900]", ge=1, le=1e6)
    report: Annotated[Path | None, BeforeValidator(_from_home)] = ask(
        None, "At the end, write the report as this HTML file."
    )
    dry_run: bool = ask(False, "Print what the run takes at most, then exit.", by="nobody")
    budget: Any = ask(
        None,
        "Time for the whole command, e.g. 90s, 10m, 1h; or a YAML file that says how much to measure.",
    )
    config: Path | None = ask(
        None,
        "YAML file with flags of this command, e.g. trials: 40. Options on the command line and environment variables "
        "take precedence.",
        by="nobody",
    )
    studies_dir: Annotated[Path, BeforeValidator(_from_home)] = ask(
        DEFAULT_STUDIES_DIR, "Folder that holds the studies.", variable="AUTOTUNE_STUDIES_DIR"
    )
    storage: str | None = ask(
        None,
        "postgresql://USER@HOST/DATABASE in which several machines share studies; trials stay in --studies-dir.",
        by="the user",
        variable="AUTOTUNE_STORAGE",
    )
    as_json: bool = ask(False, "Print one JSON document instead.", by="nobody")

    search_path: Path | None = None
    """Folder from which the model's module is importable; None: the current one. It is found, not asked for."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        require_allowed(Facts(self))
        return self

    @property
    def model(self) -> str:
        """What is tuned: each command that takes a question asks for it."""
        assert self.build is not None
        return self.build

    @property
    def scope(self) -> Scope:
        """The part that decides which configs there are."""
        return Scope(
            space=None if self.space is None else str(self.space.resolve()),
            preset="standard" if self.effort in (None, "normal") else self.effort,
            fixed_precision=self.fixed_precision,
            process_settings=self.process_settings,
            own_loop=self.task == "train" and not self.whole_step,
            instances=self.instances,
        )

    @classmethod
    def of(cls, given: Mapping[str, Any], place: str | None = None) -> Self:
        """The question of those fields that are given, None being as good as nothing. Raises InputError, which names
        the first that cannot be used, or the `place` where it stands."""
        given = {name: value for name, value in given.items() if value is not None}
        try:
            return cls(**given)
        except ValidationError as error:
            first: Mapping[str, Any] = error.errors()[0]
            field = str(first["loc"][0])
            said = place or marked(field, given[field])
            if first["type"] != "literal_error":
                message = first["msg"].removeprefix("Value error, ").removeprefix("Input ")
                raise InputError(f"{said}: {message}") from None
            kind = cls.model_fields[field].annotation
            choices = [
                choice for part in (kind, *get_args(kind)) if get_origin(part) is Literal for choice in get_args(part)
            ]
            those = f"choose {', '.join(choices[:-1])} or {choices[-1]}"
            raise InputError(f"{said}: unknown", tip=did_you_mean(str(given[field]), choices) + those) from None


class AskedAgain(TypedDict, total=False):
    """The fields that a call from Python takes which goes on with a study, as keyword arguments."""

    budget: Any
    trials: int | None
    effort: str | None
    jobs: int | None
    on: str | None
    studies_dir: str | PathLike[str]
    storage: str | None
    env: Mapping[str, str] | None


def fields_for(by: SetBy) -> tuple[str, ...]:
    """The fields that are set so."""
    extras = {name: field.json_schema_extra for name, field in Question.model_fields.items()}
    return tuple(name for name, extra in extras.items() if isinstance(extra, dict) and extra["by"] == by)


class Asked(AskedAgain, total=False):
    """The fields that a call from Python takes beside the model and its inputs."""

    device: str
    framework: str | None
    arguments: Mapping[str, Scalar] | None
    objective: str | None
    constraints: str | Sequence[str]
    study: str | None
    task: str
    shapes: str | Sequence[str]
    traffic: str | PathLike[str] | None
    tolerance: float | None
    reference: str
    space: str | PathLike[str] | None
    fixed_precision: bool
    process_settings: bool
    whole_step: bool
    instances: str | int | None
    prior: str | Sequence[str]
    seed: int
    env: Mapping[str, str] | None
    compile_timeout: float | None
    trial_timeout: float | None


def taking(fields: type) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Give a function that takes `**question` the signature that says so: each field with its type and default."""

    def decorated(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)
        own = list(signature.parameters.values())[:-1]  # The last one is `**question`.
        taken = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=Question.model_fields[name].default,
                annotation=kind.__forward_arg__,
            )
            for name, kind in fields.__annotations__.items()
        ]
        signature = signature.replace(parameters=sorted([*own, *taken], key=lambda one: one.kind))

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                wrong = next((name for name in kwargs if name not in signature.parameters), "")
                guess = did_you_mean(wrong, signature.parameters)
                raise TypeError(f"{function.__name__}() {error}" + (guess and f"; {guess.strip()}")) from None
            return function(*args, **kwargs)

        call.__signature__ = signature  # type: ignore[attr-defined]
        return call

    return decorated
