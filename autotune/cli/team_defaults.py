"""Flags that are set once: in the YAML file of `--config`.

They end in click's `default_map`, which counts less than what is typed and less than environment variables. The keys
are fields of the question, which checks the values; a mistake is a sentence with file and key. No file names a server,
which would be sent the user's password: the file was named, the server was not.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import typer

from autotune.command_line import flag
from autotune.question.question import Question, fields_for

_FIELDS = {flag(field).lstrip("-"): field for field in fields_for("a file")}
"""Flag -> the field, of those that a file may set."""
_SERVERS = {flag(field).lstrip("-") for field in fields_for("the user")}
_MOST_SAID = 300
"""Characters of a key that is repeated."""
_SOURCES = "autotune.sources"


def use_file(context: typer.Context, path: Path | None) -> Path | None:
    """Take what the file of `--config` says into the context of its command. Raises InputError."""
    if path is None or context.resilient_parsing:
        return path
    from autotune.files import read_yaml

    path = path.expanduser()
    settings = read_yaml(path)
    context.default_map = {**(context.default_map or {}), **flags_in(path, settings)}
    context.meta.setdefault(_SOURCES, {}).update(dict.fromkeys(map(_flag, settings), str(path)))
    return path


def flags_in(path: Path, settings: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Field -> its value, as it would be typed, of the flags in a file that the user named. `prefix`: what stands
    before these keys in it. Raises InputError."""
    from autotune.errors import InputError, did_you_mean

    values: dict[str, Any] = {}
    for key, value in settings.items():
        name, place = _flag(key), f"{path}: key {prefix}{str(key)[:_MOST_SAID]}"
        if name in _SERVERS:
            raise InputError(f"{place}: no file names a server", tip=f"give --{name} yourself")
        if name not in _FIELDS:
            guess = did_you_mean(name[:_MOST_SAID], _FIELDS)
            raise InputError(
                f"{place}: no such flag", tip=f"{guess}the keys are the flags of tune, without dashes in front"
            )
        if value is not None:
            values[_FIELDS[name]] = _typed(place, _FIELDS[name], value)
    return values


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
