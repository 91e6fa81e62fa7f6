"""Reading and writing the files that people see: strict YAML in, whole files out.

YAML 1.1 has two traps that this reader turns into a sentence with file, line and key: a key given twice (the first
silently lost) and a bare `on`, `off`, `yes` or `no` (silently a boolean).
"""

from __future__ import annotations

import os
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from autotune.errors import AutotuneError, InputError

Model = TypeVar("Model", bound=BaseModel)

_AMBIGUOUS = frozenset({"on", "off", "yes", "no", "y", "n"})


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses what YAML 1.1 would misread in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str):
                raise _problem(key_node, f"the key {key_node.value!r} is read as {key!r}, not as text; quote it")
            if key in seen:
                raise _problem(key_node, f"the key {key!r} is given twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


def _construct_bool(loader: _StrictLoader, node: yaml.ScalarNode) -> bool:
    text = str(node.value)
    if text.lower() in _AMBIGUOUS:
        raise _problem(node, f"{text!r} without quotes means true or false in YAML; write true, false or '{text}'")
    return text.lower() == "true"


_StrictLoader.add_constructor("tag:yaml.org,2002:bool", _construct_bool)


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes text which our reader would take for a number."""


# YAML 1.1 takes 1e-3, which lacks a point, for text.
for _each in (_StrictLoader, _Dumper):
    _each.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
    )


def _problem(node: yaml.Node, what: str) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, what, node.start_mark)


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds one mapping. Raises InputError with file, line and key."""
    try:
        loaded = yaml.load(path.read_text(encoding="utf-8"), Loader=_StrictLoader)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", tip="check the path") from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text (UTF-8)") from None
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(f"{path}{line}: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not YAML: {error}") from None
    if not isinstance(loaded, dict):
        found = "is empty" if loaded is None else f"holds a {type(loaded).__name__}"
        raise InputError(f"{path}: {found}, expected keys and values")
    return loaded


def read_versioned(path: Path, newest: int) -> dict[str, Any]:
    """`read_yaml` of an export, whose `schema` is `newest` at most. Raises InputError with file and key."""
    content = read_yaml(path)
    schema = content.get("schema")
    if isinstance(schema, int) and schema > newest:
        raise InputError(
            f"{path}: key schema: {schema} is newer than {newest}, the newest that this autotune reads",
            tip="upgrade autotune, or export the study again with this one",
        )
    return content


def parse_as(model: type[Model], content: object, path: Path, error_class: type[AutotuneError] = InputError) -> Model:
    """`content` of the file at `path` checked against `model`. Raises with file and key in the sentence."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "(top level)"
        raise error_class(f"{path}: key {key}: {_plainly(first['type'], first['msg'])}") from None


def _plainly(kind: str, message: str) -> str:
    return {"extra_forbidden": "unknown key", "missing": "is missing"}.get(kind, message)


def write_yaml(path: Path, content: dict[str, Any], comment: str = "", *, compact: bool = False) -> None:
    """Write readable YAML, keys in the given order, `comment` lines on top. Raises InputError if not writable.

    `compact`: what holds plain values only stands on one line, `{a: 1, b: 2}`.
    """
    heading = "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())
    flow = None if compact else False
    body = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110, default_flow_style=flow)
    try:
        write_whole(path, heading + body)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}", tip="choose another place with -o") from None


def write_whole(path: Path, content: str | bytes) -> None:
    """Write through a temporary name and rename: a reader sees the old file or the new one, never half."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
