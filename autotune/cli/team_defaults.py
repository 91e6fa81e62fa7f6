"""Flags that are set once: in the file of `--config`, in the current folder's pyproject.toml, in the user's own file.

All end in click's `default_map`, which counts less than what is typed and less than environment variables. The keys are
fields of the question, which checks the values; a mistake is a sentence with file and key. What a file may not decide
(see `trust`) is ignored with a sentence.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, get_origin

import typer

from autotune.cli.trust import FlagFile, of_the_command_line, of_the_project, of_the_user
from autotune.command_line import flag
from autotune.question.question import Question, fields_for
from autotune.user_folders import TRUSTED, trusted_folders, user_file

PROJECT_FILE = Path("pyproject.toml")
_TABLE = b"[tool.autotune"
_FOR_ALL = ("studies_dir", "storage")
"""What all commands take from the files: they have to find the studies that `tune` makes."""
_FIELDS = {
    flag(field).lstrip("-"): field for field in fields_for("anybody", "anybody, inside", "a named file", "the user")
}
"""Flag -> the field, of those that a file may set."""
_MOST_SAID = 300
"""Characters of a key that is repeated."""
_SOURCES, _IGNORED, _TRUSTED = "autotune.sources", "autotune.ignored", "autotune.trusted"


def use_files(context: typer.Context) -> list[str]:
    """Take what the user's file and the project's say into the context of all commands. Returns a sentence for each
    that says more than it may. Raises InputError."""
    context.default_map = {}
    own, settings = _own_settings()
    trusted = context.meta[_TRUSTED] = [] if own is None else trusted_folders(own, settings.pop(TRUSTED, []))
    if own is not None:
        _take(context, of_the_user(own), settings)
    return _take(context, of_the_project(PROJECT_FILE, trusted), _project_settings(PROJECT_FILE))


def _take(context: typer.Context, file: FlagFile, settings: Mapping[str, Any]) -> list[str]:
    """The file's flags as defaults of each command that takes them. A sentence if the command that is called has some
    that the file may not set."""
    commands: Mapping[str, Any] = getattr(context.command, "commands", {}) if settings else {}
    values, ignored = _values(file, settings)
    said = []
    for name, command in commands.items():
        taken = {one.name for one in command.params}.intersection(_FIELDS.values() if name == "tune" else _FOR_ALL)
        context.default_map = {**(context.default_map or {})}
        context.default_map[name] = {
            **context.default_map.get(name, {}),
            **{field: value for field, value in values.items() if field in taken},
        }
        if name == context.invoked_subcommand and (keys := [key for key in ignored if _FIELDS[key] in taken]):
            said = [file.sentence(keys)]
    context.meta.setdefault(_SOURCES, {}).update(dict.fromkeys(map(_flag, settings), str(file.path)))
    return said


def use_file(context: typer.Context, path: Path | None) -> Path | None:
    """Take what the file of `--config` says into the context of its command. Raises InputError."""
    if path is None or context.resilient_parsing:
        return path
    from autotune.files import read_yaml

    path = path.expanduser()
    settings = read_yaml(path)
    values, context.meta[_IGNORED] = flags_in(context, path, settings)
    context.default_map = {**(context.default_map or {}), **values}
    context.meta.setdefault(_SOURCES, {}).update(dict.fromkeys(map(_flag, settings), str(path)))
    return path


def flags_in(
    context: typer.Context, path: Path, settings: Mapping[Any, Any], prefix: str = ""
) -> tuple[dict[str, Any], list[str]]:
    """Field -> its value, as it would be typed, of the flags in a file that the user named; and a sentence where the
    file says more than it may. `prefix`: what stands before these keys in it. Raises InputError."""
    file = replace(of_the_command_line(path, context.meta.get(_TRUSTED, [])), prefix=prefix)
    values, ignored = _values(file, settings)
    return values, [file.sentence(ignored)] if ignored else []


def sources_line(context: typer.Context) -> str | None:
    """Which flags were not typed, and where each came from; None: all were."""
    files: dict[str, str] = context.meta.get(_SOURCES, {})
    said = []
    for parameter in context.command.params:
        source = getattr(context.get_parameter_source(parameter.name or ""), "name", "")
        typed = flag(str(parameter.name))
        if source == "DEFAULT_MAP" and typed.lstrip("-") in files:
            said.append(f"{typed} from {files[typed.lstrip('-')]}")
        elif source == "ENVIRONMENT":
            said.append(f"{typed} from {parameter.envvar}")
    return f"settings    {', '.join(said)}" if said else None


def ignored_lines(context: typer.Context) -> list[str]:
    """What the file that `--config` names says and may not decide."""
    lines: list[str] = context.meta.get(_IGNORED, [])
    return lines


def _own_settings() -> tuple[Path | None, dict[str, Any]]:
    """The user's file, if there is one, and what it says."""
    path = user_file()
    if path is None or not os.path.isfile(path):
        return None, {}
    from autotune.files import parse_toml, read_file

    return path, parse_toml(path, read_file(path))


def _project_settings(path: Path) -> dict[str, Any]:
    """The table of the project's file; empty where there is none. A file without it is not even parsed."""
    if not os.path.isfile(path):
        return {}
    from autotune.errors import InputError
    from autotune.files import parse_toml, read_file

    content = read_file(path)
    if _TABLE not in content:
        return {}
    tools = parse_toml(path, content).get("tool")
    table = tools.get("autotune", {}) if isinstance(tools, dict) else {}
    if not isinstance(table, dict):
        raise InputError(f"{path}: key tool.autotune: is not a table")
    return table


def _values(file: FlagFile, settings: Mapping[Any, Any]) -> tuple[dict[str, Any], list[str]]:
    """Field -> its value as it would be typed; and the flags that the file may not set. Raises InputError."""
    from autotune.errors import InputError, did_you_mean

    values: dict[str, Any] = {}
    ignored = []
    for key, value in settings.items():
        name = _flag(key)
        if name not in _FIELDS:
            guess = did_you_mean(name[:_MOST_SAID], _FIELDS)
            raise InputError(
                f"{file.path}: key {file.prefix}{key[:_MOST_SAID]}: no such flag",
                tip=f"{guess}the keys are the flags of tune, without dashes in front",
            )
        if value is None:
            continue
        given = _typed(f"{file.path}: key {file.prefix}{key}", _FIELDS[name], value)
        if file.ignores(name, given) or (name == "budget" and file.ignores("jobs", given) and _says_jobs(given)):
            ignored.append(name)
        else:
            values[_FIELDS[name]] = given
    return values, ignored


def _says_jobs(budget: str) -> bool:
    """Whether a budget is a file that says how many trials are compiled at the same time."""
    from autotune.errors import InputError
    from autotune.files import read_yaml

    try:
        return os.path.isfile(budget) and "num_jobs" in read_yaml(Path(budget))
    except InputError:
        return False  # It is told of where the budget is read.


def _typed(place: str, field: str, value: Any) -> Any:
    """The value as it would be typed. Raises InputError where the question does not take it."""
    from autotune.errors import InputError

    kind = Question.model_fields[field].annotation
    takes_several, is_flag = get_origin(kind) in (tuple, dict), bool in (kind, *get_args(kind))
    several = value if isinstance(value, list) else [value]
    if isinstance(value, list) and not takes_several:
        raise InputError(f"{place}: takes one value, not a list")
    if any(isinstance(one, (list, dict)) or isinstance(one, bool) is not is_flag for one in several):
        raise InputError(f"{place}: takes {'true or false' if is_flag else 'text or a number'}")
    texts = several if is_flag else [_text(place, one) for one in several]
    given = texts if takes_several else texts[0]
    Question.of({field: given}, place)
    return given


def _text(place: str, value: object) -> str:
    """As it would be typed. Raises InputError."""
    from autotune.errors import InputError
    from autotune.files import is_utf8

    if isinstance(value, int) and value.bit_length() > 64:
        raise InputError(f"{place}: the number is too large")
    if not is_utf8(str(value)):
        raise InputError(f"{place}: is not text (UTF-8), or holds null characters")
    return str(value)


def _flag(key: object) -> str:
    return str(key).replace("_", "-")
