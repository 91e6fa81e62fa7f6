"""Reading and writing the files that people see: plain files of bounded size and strict YAML in, whole files out.

YAML 1.1 has two traps that this reader turns into a sentence with file, line and key: a key given twice (the first
silently lost) and a bare `on`, `off`, `yes` or `no` (silently a boolean). A third trap is refused by counting: a few
aliases of aliases stand for more than any memory holds.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from autotune.errors import AutotuneError, InputError, is_printable

Model = TypeVar("Model", bound=BaseModel)

MAX_YAML_BYTES = 4 * 2**20
"""The largest export, one with a traffic of 10,000 shapes, has about 1 MiB."""
MAX_YAML_NODES = 200_000
"""Keys and values, each alias counted as often as it is used."""
MAX_BYTES = 64 * 2**20
"""Of any file that is read whole: a model's source, a log of traffic, a manifest."""
MAX_NAME, MAX_TEXT = 300, 20_000
"""Characters of a key, and of a value, in an export."""

_AMBIGUOUS = frozenset({"on", "off", "yes", "no", "y", "n"})


def read_file(path: Path, max_bytes: int = MAX_BYTES) -> bytes:
    """A plain file's content. Raises InputError for a pipe, a device, a folder or too large a file, unread."""
    try:
        # NONBLOCK: opening a pipe that nobody writes to would wait for ever.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise InputError(f"{path} is a pipe or a device and not a plain file", tip="give a file")
            # Not by its size alone: files of the system say that they have none.
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}", tip="check the path") from None
    if len(content) > max_bytes:
        raise InputError(f"{path} is larger than {max_bytes // 2**20} MiB, the most that is read", tip="check the path")
    return content


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader that refuses what YAML 1.1 would misread in silence, and more than `MAX_YAML_NODES`."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._sizes: dict[int, int] = {}
        """Nodes that each node stands for, by its identity; the loader keeps them all alive."""
        self._num_composed = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._num_composed += 1
        if self._num_composed > MAX_YAML_NODES:
            raise yaml.YAMLError(_TOO_MANY)
        is_alias = self.check_event(yaml.AliasEvent)
        node: yaml.Node | None = super().compose_node(parent, index)
        if node is None:
            return None
        if not is_alias:
            self._sizes[id(node)] = 1 + sum(self._sizes[id(each)] for each in _children(node))
        elif id(node) not in self._sizes:
            raise _problem(node, "it holds itself")
        if self._sizes[id(node)] > MAX_YAML_NODES:
            raise yaml.YAMLError(_TOO_MANY)
        return node

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


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    elif isinstance(node, yaml.MappingNode):
        for pair in node.value:
            yield from pair


_TOO_MANY = f"more than {MAX_YAML_NODES:,} keys and values, aliases counted as often as they are used"


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
    content = read_file(path, MAX_YAML_BYTES)
    try:
        loaded = yaml.load(content.decode(), Loader=_StrictLoader)
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
    for key, text in _texts(loaded):
        if not is_utf8(text):
            raise InputError(f"{path}: key {key}: {text!r} is not text (UTF-8), or holds null characters")
    return loaded


def is_utf8(text: str) -> bool:
    """Whether files, databases and processes can hold it: YAML and JSON can write what they cannot."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def _texts(content: object, place: str = "") -> Iterator[tuple[str, str]]:
    """Key -> text, of keys and values."""
    if isinstance(content, dict):
        for name, value in content.items():
            key = f"{place}.{name}" if place else str(name)
            yield repr(key), str(name)
            yield from _texts(value, key)
    elif isinstance(content, list):
        for number, value in enumerate(content):
            yield from _texts(value, f"{place}.{number}")
    elif isinstance(content, str):
        yield place, content


def read_versioned(path: Path, newest: int) -> dict[str, Any]:
    """`read_yaml` of an export, whose `schema` is `newest` at most and whose names are printable text. Raises
    InputError with file and key."""
    content = read_yaml(path)
    schema = content.get("schema")
    if isinstance(schema, int) and schema > newest:
        raise InputError(
            f"{path}: key schema: {schema} is newer than {newest}, the newest that this autotune reads",
            tip="upgrade autotune, or export the study again with this one",
        )
    for key, wrong in _unfit(content):
        raise InputError(f"{path}: key {key}: {wrong}")
    return content


def _unfit(content: object, place: str = "") -> Iterator[tuple[str, str]]:
    """Key -> what is wrong with it, for what no export holds and a job's log should not: control characters, texts
    without end, numbers that nothing can be set to."""
    if isinstance(content, dict):
        for name, value in content.items():
            key = f"{place}.{name}" if place else name
            if not is_printable(name) or len(name) > MAX_NAME:
                yield key[:MAX_NAME], f"a name is printable text of at most {MAX_NAME} characters"
            yield from _unfit(value, key)
    elif isinstance(content, list):
        for number, value in enumerate(content):
            yield from _unfit(value, f"{place}.{number}")
    elif isinstance(content, str) and (not is_printable(content) or len(content) > MAX_TEXT):
        yield place, f"a text is printable and has at most {MAX_TEXT:,} characters"
    elif isinstance(content, int) and not -(2**63) <= content < 2**64:
        yield place, "the number is too large"


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
    """Write through a temporary name and rename: a reader sees the old file or the new one, never half.

    Raises OSError, also for what is no plain file: a device would be replaced by a file of its name.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "it is a pipe or a device and not a plain file", str(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
