"""The question on the command line: a flag for each of its fields."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from typer.core import TyperCommand

from autotune.command_line import command as autotune
from autotune.command_line import flag
from autotune.errors import InputError
from autotune.question.question import Question

_SPELLED = {"quiet": ("--quiet", "-q")}
"""Field -> its flags, where it has more than one."""
_GROUPS: dict[str, tuple[str, ...]] = {
    "Model": (
        *("named", "build", "arguments", "task", "whole_step", "device", "framework"),
        *("shapes", "traffic", "inputs", "seed", "env"),
    ),
    "Time": ("budget", "effort", "trials", "jobs", "compile_timeout", "trial_timeout", "dry_run"),
    "What counts": ("objective", "constraints", "tolerance", "reference", "fixed_precision"),
    "Search": ("process_settings", "instances", "space", "prior"),
    "Output": ("study", "studies_dir", "report", "quiet", "as_json", "config"),
    "Many machines": ("on", "storage"),
}
"""Heading of a help -> the fields below it, in the order of the help."""
_OTHERS = "Other options"
_FIRST = frozenset(
    {
        *("named", "arguments", "task", "device", "shapes", "budget", "effort", "dry_run", "objective", "constraints"),
        *("tolerance", "process_settings", "study", "report", "as_json"),
    }
)
"""What `tune -h` shows. The other fields are for `tune --help-all`."""
_VALUES = {
    "build": "MODEL",
    "arguments": "NAME=VALUE",
    "env": "NAME=VALUE",
    "task": "TASK",
    "device": "DEVICE",
    "framework": "FRAMEWORK",
    "shapes": "SHAPES",
    "budget": "TIME",
    "compile_timeout": "SECONDS",
    "trial_timeout": "SECONDS",
    "constraints": "CONSTRAINT",
    "instances": "N",
    "objective": "OBJECTIVE",
    "reference": "PRECISION",
    "effort": "EFFORT",
    "prior": "STUDY",
    "study": "NAME",
    "studies_dir": "FOLDER",
    "on": "CLUSTER",
    "storage": "URL",
}
"""Field -> what stands for its value in a help, where its type does not say it."""
Command = Callable[..., int | None]


TYPED = "autotune.typed"
"""Key of what a context holds: all words behind the command."""


class GroupedCommand(TyperCommand):
    """A command whose help has its options in groups, and its examples as they are typed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[TYPED] = [*args]
        if sum(word.partition("=")[0] == flag("objective") for word in args) > 1:
            tip = f"bound what else counts, e.g. {flag('constraints')} 'peak_memory <= 2GiB'"
            raise InputError(f"{flag('objective')} is given twice, and a study has one objective", tip=tip)
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        found: dict[str, dict[str, tuple[str, str]]] = {}
        shown = self.get_params(ctx)
        if any(one.name == ALL for one in shown) and not ctx.meta.get(ALL):
            shown = [one for one in shown if one.name in _FIRST or _group_of(one.name) == _OTHERS]
        for parameter in shown:
            record = parameter.get_help_record(ctx)
            name = parameter.name or ""
            if record is not None:
                is_named = parameter.param_type_name == "argument"
                said = (str(parameter.metavar or name).strip("[]"), record[1]) if is_named else record
                found.setdefault(_group_of(name), {})[name] = said
        for group, fields in {**_GROUPS, _OTHERS: ()}.items():
            if group in found:
                records = found[group]
                with formatter.section(group):
                    formatter.write_dl([records.pop(name) for name in fields if name in records] + [*records.values()])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - click's signature
        if self.epilog:
            with formatter.section("Examples"):
                for line in self.epilog.splitlines():
                    formatter.write(f"  {line}\n")


def _group_of(field: str | None) -> str:
    return next((group for group, fields in _GROUPS.items() if field in fields), _OTHERS)


def examples(*each: str) -> str:
    """The end of a help: commands without their beginning, as this process is called."""
    return "\n".join(f"{autotune()} {one}" for one in each)


def _models(incomplete: str) -> list[str]:
    """Bundled models, to complete what is typed."""
    from autotune.models import names

    return [name for name in names() if name.startswith(incomplete)]


def _studies(incomplete: str) -> list[str]:
    """Studies of the folder that is used unless another is named, to complete what is typed."""
    from autotune.errors import AutotuneError
    from autotune.own_folders import named, names_in
    from autotune.question.question import DEFAULT_STUDIES_DIR

    folder = named(os.environ.get("AUTOTUNE_STUDIES_DIR") or DEFAULT_STUDIES_DIR)
    try:
        return sorted(name for name in names_in(folder) if name.startswith(incomplete) and (folder / name).is_dir())
    except (OSError, AutotuneError):
        return []


_COMPLETED = {"build": _models, "study": _studies, "prior": _studies}
"""Field -> what a shell is told that could be typed."""


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
        metavar=_metavar(field, asked_for),
        autocompletion=_COMPLETED.get(field),
        is_eager=callback is not None,
        callback=callback,
    )


def _metavar(field: str, asked_for: FieldInfo) -> str | None:
    """What stands for the value; None for a switch."""
    kinds = {asked_for.annotation, *get_args(asked_for.annotation)}
    if bool in kinds:
        return None
    named = {Path: "FILE", int: "N", float: "X"}
    return _VALUES.get(field) or next((word for kind, word in named.items() if kind in kinds), "TEXT")


def _limit(asked_for: FieldInfo, name: str) -> float | None:
    return next((getattr(bound, name) for bound in asked_for.metadata if hasattr(bound, name)), None)


def asks(
    *fields: str, early: dict[str, Callable[..., Any]] | None = None, **about: str
) -> Callable[[Command], Command]:
    """Give a command, in place of its parameter `question`, a flag for each of these fields; without any, for all.

    `early`: field, or `named` -> what is called with its value first; `about`: another help of this command.
    """
    fields = fields or tuple(name for name, field in Question.model_fields.items() if field.description)

    def decorated(command: Command) -> Command:
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            if parameter.name != "question":
                parameters.append(parameter)
                continue
            if "build" in fields:
                parameters.append(_named_models((early or {}).get(_NAMED)))
            parameters += [_parameter(name, about.get(name), (early or {}).get(name)) for name in fields]

        @functools.wraps(command)
        def run(**given: Any) -> int | None:
            named = given.pop(_NAMED, None)
            if named and _is_typed(given["context"], "build"):
                raise InputError(f"the model {named[0]} is named without a flag, and {flag('build')} names another")
            if named and len(named) > 1:
                raise InputError(
                    f"{len(named)} models are named, {' and '.join(named)}",
                    tip="name one; a value is written without spaces: 5m, width=64",
                )
            question = Question.of({name: given.pop(name) for name in fields} | ({"build": named[0]} if named else {}))
            if "build" in fields and not question.build:
                raise InputError(
                    f"no model is named ({flag('build')})",
                    tip=f"try: {autotune('tune', 'resnet18')}; `models` lists others",
                )
            return command(**given, question=question)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorated


_NAMED = "named"
ALL = "help_all"


def _print_all(context: typer.Context, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from autotune.cli.app import print_line

        context.meta[ALL] = True
        print_line(context.get_help())
        raise typer.Exit


HelpAll = Annotated[
    bool, typer.Option("--help-all", help="Show all options and exit.", callback=_print_all, is_eager=True)
]


def _is_typed(context: typer.Context, name: str) -> bool:
    """Whether the command line gives the parameter. What a file of defaults gives yields to a model without a flag."""
    return getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"


def _named_models(callback: Callable[..., Any] | None) -> inspect.Parameter:
    """The models without a flag in front."""
    argument = typer.Argument(
        metavar="MODEL",
        help=Question.model_fields["build"].description,
        autocompletion=_models,
        is_eager=callback is not None,
        callback=callback,
    )
    annotation = Annotated[list[str] | None, argument]
    return inspect.Parameter(_NAMED, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _parameter(field: str, about: str | None, callback: Callable[..., Any] | None) -> inspect.Parameter:
    asked_for = Question.model_fields[field]
    kind, default = _typed(asked_for.annotation), asked_for.default
    if get_origin(kind) is list or (get_args(kind)[:1] and get_origin(get_args(kind)[0]) is list):
        default = None
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
    of_choice = any(get_origin(one) is Literal for one in get_args(kind))
    return str | None if kind is Any or of_choice else kind


StudyName = Annotated[str, typer.Argument(help="Name of the study.", metavar="STUDY", autocompletion=_studies)]
StudiesDir = Annotated[Path, option("studies_dir")]
Storage = Annotated[str | None, option("storage")]
AsJson = Annotated[bool, option("as_json")]
BudgetFlag = Annotated[str | None, option("budget")]
ReportFlag = Annotated[Path | None, option("report")]
On = Annotated[str | None, option("on")]
ENV_AGAIN = "Environment variable NAME=VALUE that the file or study has and may not set by itself; repeatable."
EnvAgain = Annotated[list[str] | None, option("env", ENV_AGAIN)]


def variables_of(given: list[str] | None) -> dict[str, str]:
    """What was typed with `EnvAgain`. Raises InputError."""
    return Question.of({"env": given}).env


def require_report(path: Path | None) -> None:
    """Raises InputError, before anything is measured, where no report could be written at the end."""
    if path is None:
        return
    from autotune.render.html.page import require_possible

    require_possible(path)
