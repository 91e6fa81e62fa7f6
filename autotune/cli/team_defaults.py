"""Flags that a team sets once: `tune --config FILE`, and `[tool.autotune]` in the current folder's pyproject.toml.

Both end in click's `default_map`, which counts less than what is typed and less than environment variables. A value
goes through the flag's own type; a mistake is a sentence with file and key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

PROJECT_FILE = Path("pyproject.toml")
_TABLE = b"[tool.autotune"
_FOR_ALL = ("studies-dir", "storage")
"""What all commands take from the project: they have to find the studies that `tune` makes."""
_NOT_FOR_FILES = ("config", "dry-run", "json", "help")
_SOURCES = "autotune.sources"


def use_project(context: typer.Context) -> None:
    """Take what the project's file says into the context of all commands. Raises InputError."""
    settings = _project_settings(PROJECT_FILE)
    if not settings:
        return
    commands: Mapping[str, Any] = getattr(context.command, "commands", {})
    context.default_map = {}
    for name, command in commands.items():
        taken = {_flag_of(each) for each in command.params}.intersection(_FOR_ALL)
        wanted = settings if name == "tune" else {key: v for key, v in settings.items() if _flag(key) in taken}
        context.default_map[name] = _values(context, PROJECT_FILE, "tool.autotune.", wanted, command.params)
    context.meta[_SOURCES] = dict.fromkeys(map(_flag, settings), str(PROJECT_FILE))


def _use_file(context: typer.Context, path: Path | None) -> Path | None:
    if path is None or context.resilient_parsing:
        return path
    from autotune.errors import InputError
    from autotune.files import read_yaml

    settings = read_yaml(path)
    if not isinstance(settings, dict):
        raise InputError(f"{path}: is not a mapping of flags to values", tip="write e.g. trials: 40")
    values = _values(context, path, "", settings, context.command.params)
    context.default_map = {**(context.default_map or {}), **values}
    context.meta.setdefault(_SOURCES, {}).update(dict.fromkeys(map(_flag, settings), str(path)))
    return path


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        is_eager=True,
        callback=_use_file,
        help="YAML file with flags of this command, e.g. trials: 40. Options on the command line and environment "
        "variables take precedence.",
    ),
]


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


def _project_settings(path: Path) -> dict[str, Any]:
    """The table of the project's file; empty where there is none. A file without it is not even parsed."""
    if not path.is_file():
        return {}
    from autotune.errors import InputError
    from autotune.files import read_file

    content = read_file(path)
    if _TABLE not in content:
        return {}
    import tomllib

    try:
        table = tomllib.loads(content.decode()).get("tool", {}).get("autotune", {})
    except ValueError as error:  # Also what is no UTF-8.
        raise InputError(f"{path}: is not valid TOML: {error}") from None
    if not isinstance(table, dict):
        raise InputError(f"{path}: key tool.autotune: is not a table")
    return table


def _values(
    context: typer.Context, path: Path, prefix: str, settings: Mapping[Any, Any], parameters: Iterable[Any]
) -> dict[str, Any]:
    """Parameter -> its value, checked by its own type. Raises InputError."""
    from autotune.errors import InputError, did_you_mean

    known = dict(_named(parameters))
    values = {}
    for key, value in settings.items():
        parameter = known.get(_flag(key))
        if parameter is None:
            guess = did_you_mean(_flag(key), known)
            raise InputError(
                f"{path}: key {prefix}{key}: no such flag",
                tip=f"{guess}the keys are the flags of tune, without dashes in front",
            )
        if value is not None:
            values[parameter.name] = _value(context, f"{path}: key {prefix}{key}", parameter, value)
    return values


def _value(context: typer.Context, place: str, parameter: Any, value: Any) -> Any:
    from autotune.errors import InputError

    is_flag = bool(getattr(parameter, "is_flag", False))
    several = value if isinstance(value, list) else [value]
    if isinstance(value, list) and not parameter.multiple:
        raise InputError(f"{place}: takes one value, not a list")
    if any(isinstance(each, (list, dict)) or isinstance(each, bool) is not is_flag for each in several):
        raise InputError(f"{place}: takes {'true or false' if is_flag else 'text or a number'}")
    texts = several if is_flag else [str(each) for each in several]
    given = texts if parameter.multiple else texts[0]
    try:
        parameter.process_value(context, given)
    except typer.BadParameter as mistake:
        raise InputError(f"{place}: {mistake.message}") from None
    return given


def _named(parameters: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    for parameter in parameters:
        flag = _flag_of(parameter)
        if parameter.opts[0].startswith("-") and flag not in _NOT_FOR_FILES:
            yield flag, parameter


def _flag_of(parameter: Any) -> str:
    return str(max(parameter.opts, key=len)).lstrip("-")


def _flag(key: object) -> str:
    return str(key).replace("_", "-")
