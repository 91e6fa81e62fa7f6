"""Flags that are set once: in the file of `--config`, in the current folder's pyproject.toml, in the user's own file.

All end in click's `default_map`, which counts less than what is typed and less than environment variables. A value
goes through the flag's own type; a mistake is a sentence with file and key. What a file may not decide (see `trust`) is
ignored with a sentence.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from autotune.cli.trust import (
    TRUSTED,
    FlagFile,
    of_the_command_line,
    of_the_project,
    of_the_user,
    trusted_folders,
    user_file,
)

PROJECT_FILE = Path("pyproject.toml")
_TABLE = b"[tool.autotune"
_FOR_ALL = ("studies-dir", "storage")
"""What all commands take from the files: they have to find the studies that `tune` makes."""
_NOT_FOR_FILES = ("config", "dry-run", "json", "help")
_MOST_SAID = 300
"""Characters of what a flag's type says about a value, which it repeats."""
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
    said = []
    for name, command in commands.items():
        taken = {_flag_of(each) for each in command.params}.intersection(_FOR_ALL)
        wanted = settings if name == "tune" else {key: v for key, v in settings.items() if _flag(key) in taken}
        values, ignored = _values(context, file, wanted, command.params)
        context.default_map = {**(context.default_map or {})}
        context.default_map[name] = {**context.default_map.get(name, {}), **values}
        if ignored and name == context.invoked_subcommand:
            said = [file.sentence(ignored)]
    context.meta.setdefault(_SOURCES, {}).update(dict.fromkeys(map(_flag, settings), str(file.path)))
    return said


def use_file(context: typer.Context, path: Path | None) -> Path | None:
    """Take what the file of `--config` says into the context of its command. Raises InputError."""
    if path is None or context.resilient_parsing:
        return path
    from autotune.files import read_yaml

    settings = read_yaml(path)
    file = of_the_command_line(path, context.meta.get(_TRUSTED, []))
    values, ignored = _values(context, file, settings, context.command.params)
    context.default_map = {**(context.default_map or {}), **values}
    context.meta.setdefault(_SOURCES, {}).update(dict.fromkeys(map(_flag, settings), str(path)))
    context.meta[_IGNORED] = [file.sentence(ignored)] if ignored else []
    return path


def sources_line(context: typer.Context) -> str | None:
    """Which flags were not typed, and where each came from; None: all were."""
    files: dict[str, str] = context.meta.get(_SOURCES, {})
    said = []
    for parameter in context.command.params:
        source = getattr(context.get_parameter_source(parameter.name or ""), "name", "")
        flag = _flag_of(parameter)
        if source == "DEFAULT_MAP" and flag in files:
            said.append(f"--{flag} from {files[flag]}")
        elif source == "ENVIRONMENT":
            said.append(f"--{flag} from {parameter.envvar}")
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


def _values(
    context: typer.Context, file: FlagFile, settings: Mapping[Any, Any], parameters: Iterable[Any]
) -> tuple[dict[str, Any], list[str]]:
    """Parameter -> its value, checked by its own type; and the flags that the file may not set. Raises InputError."""
    from autotune.errors import InputError, did_you_mean

    known = dict(_named(parameters))
    values: dict[str, Any] = {}
    ignored = []
    for key, value in settings.items():
        parameter = known.get(_flag(key))
        if parameter is None:
            guess = did_you_mean(_flag(key)[:_MOST_SAID], known)
            raise InputError(
                f"{file.path}: key {file.prefix}{key[:_MOST_SAID]}: no such flag",
                tip=f"{guess}the keys are the flags of tune, without dashes in front",
            )
        if value is None:
            continue
        given = _value(context, f"{file.path}: key {file.prefix}{key}", parameter, value)
        if file.ignores(_flag(key), given):
            ignored.append(_flag(key))
        else:
            values[parameter.name] = given
    return values, ignored


def _value(context: typer.Context, place: str, parameter: Any, value: Any) -> Any:
    from autotune.errors import InputError

    is_flag = bool(getattr(parameter, "is_flag", False))
    several = value if isinstance(value, list) else [value]
    if isinstance(value, list) and not parameter.multiple:
        raise InputError(f"{place}: takes one value, not a list")
    if any(isinstance(each, (list, dict)) or isinstance(each, bool) is not is_flag for each in several):
        raise InputError(f"{place}: takes {'true or false' if is_flag else 'text or a number'}")
    texts = several if is_flag else [_text(place, each) for each in several]
    given = texts if parameter.multiple else texts[0]
    try:
        parameter.process_value(context, given)
    except typer.BadParameter as mistake:
        raise InputError(f"{place}: {mistake.message[:_MOST_SAID]}") from None
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


def _named(parameters: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for parameter in parameters:
        flag = _flag_of(parameter)
        if parameter.opts[0].startswith("-") and flag not in _NOT_FOR_FILES:
            yield flag, parameter


def _flag_of(parameter: Any) -> str:
    return str(max(parameter.opts, key=len)).lstrip("-")


def _flag(key: object) -> str:
    return str(key).replace("_", "-")
