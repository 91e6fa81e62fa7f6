"""The question on the command line: a flag for each of its fields."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from autotune.command_line import flag
from autotune.question.question import Question

_SPELLED = {
    "quiet": ("--quiet", "-q"),
    "early_stop": ("--early-stop/--no-early-stop",),
    "thorough": ("--thorough/--no-thorough",),
    "portfolio": ("--portfolio/--no-portfolio",),
}
"""Field -> its flags, where it has more than one."""
Command = Callable[..., int | None]


def option(field: str, about: str | None = None, callback: Callable[..., Any] | None = None) -> Any:
    """The flag of a field: its help, limits and environment variable.

    `about`: another help of this command; `callback`: called with the value before those of other flags are known.
    """
    asked_for = Question.model_fields[field]
    extra: Any = asked_for.json_schema_extra
    first, *others = _SPELLED.get(field, (flag(field),))
    return typer.Option(
        first,
        *others,
        min=_limit(asked_for, "ge"),
        max=_limit(asked_for, "le"),
        envvar=extra["variable"],
        help=about or asked_for.description,
        is_eager=callback is not None,
        callback=callback,
    )


def _limit(asked_for: FieldInfo, name: str) -> float | None:
    return next((getattr(bound, name) for bound in asked_for.metadata if hasattr(bound, name)), None)


def asks(
    *fields: str, early: dict[str, Callable[..., Any]] | None = None, **about: str
) -> Callable[[Command], Command]:
    """Give a command, in place of its parameter `question`, a flag for each of these fields; without any, for all.

    `early`: field -> what is called with its value first; `about`: another help of this command.
    """
    fields = fields or tuple(name for name, field in Question.model_fields.items() if field.description)

    def decorated(command: Command) -> Command:
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            if parameter.name != "question":
                parameters.append(parameter)
                continue
            parameters += [_parameter(name, about.get(name), (early or {}).get(name)) for name in fields]

        @functools.wraps(command)
        def run(**given: Any) -> int | None:
            question = Question.of({name: given.pop(name) for name in fields})
            return command(**given, question=question)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorated


def _parameter(field: str, about: str | None, callback: Callable[..., Any] | None) -> inspect.Parameter:
    asked_for = Question.model_fields[field]
    kind, default = _typed(asked_for.annotation), asked_for.default
    if get_origin(kind) is list or (get_args(kind)[:1] and get_origin(get_args(kind)[0]) is list):
        default = None
    if field == "build":
        kind, default = list[str], inspect.Parameter.empty
    annotation = Annotated[kind, option(field, about, callback)]  # type: ignore[valid-type]
    return inspect.Parameter(field, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _typed(kind: Any) -> Any:
    """What is typed for a field: several values by repeating the flag, pairs and choices as text."""
    if get_origin(kind) is tuple:
        return list[get_args(kind)[0]] | None  # type: ignore[misc]
    if get_origin(kind) is dict:
        return list[str] | None
    if get_origin(kind) is Literal:
        return str
    return str | None if kind is Any else kind


StudiesDir = Annotated[Path, option("studies_dir")]
Storage = Annotated[str | None, option("storage")]
AsJson = Annotated[bool, option("as_json")]
BudgetFlag = Annotated[str | None, option("budget")]
ReportFlag = Annotated[Path | None, option("report")]
On = Annotated[str | None, option("on")]
