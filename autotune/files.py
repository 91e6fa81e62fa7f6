"""Reading and writing the files that people see: plain files of bounded size and strict YAML in, whole files out.

YAML is read by the core schema of its version 1.2: plain scalars are null, true, false, numbers or text, and no tag but
these. A key given twice, and a bare `on`, `off`, `yes`, `no` or `<<`, to which version 1.1 gives another meaning, are
sentences with file, line and key. A file from somebody else costs little before it is refused: sizes are counted while
it is read, since a few aliases of aliases stand for more than any memory holds.
"""

from __future__ import annotations

import errno
import math
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from autotune.errors import AutotuneError, InputError, is_printable
from autotune.schema import MAX_NAME, MOST_SAID, Format, problem, read

Model = TypeVar("Model", bound=BaseModel)

MAX_YAML_BYTES = 4 * 2**20
"""The largest export, one with a traffic of 10,000 shapes, has about 1 MiB."""
MAX_YAML_NODES = 200_000
"""Keys and values, each alias counted as often as it is used."""
MAX_BYTES = 64 * 2**20
"""Largest file that is read whole: a model's source, a log of traffic, a manifest."""
MAX_TEXT = 20_000
"""Characters of a text in any YAML file."""

MAX_YAML_DEPTH = 50
"""Mappings and lists in each other: a space with conditions has 6."""
MAX_NUMBER = 64
"""Characters of a number: Python writes a float with at most 25, and 64 bits with 20."""
_MOST_SHOWN = 60
"""Characters of a file's text that a sentence repeats."""


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


_TAG = "tag:yaml.org,2002:"
_TEXT, _LIST, _MAPPING = (
    yaml.BaseLoader.DEFAULT_SCALAR_TAG,
    yaml.BaseLoader.DEFAULT_SEQUENCE_TAG,
    yaml.BaseLoader.DEFAULT_MAPPING_TAG,
)
_AMBIGUOUS = "autotune:ambiguous"
_PATTERNS = {
    f"{_TAG}null": re.compile(r"(?:~|null|Null|NULL|)\Z"),
    f"{_TAG}bool": re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"),
    f"{_TAG}int": re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z"),
    f"{_TAG}float": re.compile(
        r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))\Z"
    ),
    _AMBIGUOUS: re.compile(r"(?:yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF|<<)\Z"),
}
"""Tag -> the plain scalars that have it: YAML 1.2's core schema, and what YAML 1.1 gives another meaning. The rest is
text."""


class _CoreLoader(yaml.BaseLoader):
    """Composes the nodes of one document, as long as they are few, small and not deep."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._sizes: dict[int, tuple[int, int]] = {}
        """Nodes and characters that each node stands for, by its identity; the loader keeps them all alive."""
        self._num_composed = 0
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._num_composed += 1
        if self._num_composed > MAX_YAML_NODES:
            raise yaml.YAMLError(_TOO_MANY)
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > MAX_TEXT:
            raise _problem(event, f"a text or number of {len(event.value):,} characters, {MAX_TEXT:,} are the most")
        if self._depth > MAX_YAML_DEPTH:
            raise _problem(event, f"nested more than {MAX_YAML_DEPTH} deep")
        self._depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None:
            self._count(node, is_alias=isinstance(event, yaml.AliasEvent))
        return node

    def _count(self, node: yaml.Node, *, is_alias: bool) -> None:
        if not is_alias:
            sizes = [self._sizes[id(each)] for each in _children(node)]
            own_chars = len(node.value) if isinstance(node, yaml.ScalarNode) else 0
            self._sizes[id(node)] = 1 + sum(each[0] for each in sizes), own_chars + sum(each[1] for each in sizes)
        elif id(node) not in self._sizes:
            raise _problem(node, "it holds itself")
        num_nodes, num_chars = self._sizes[id(node)]
        if num_nodes > MAX_YAML_NODES or num_chars > MAX_YAML_BYTES:
            raise yaml.YAMLError(_TOO_MANY)


for _tag, _pattern in _PATTERNS.items():
    _CoreLoader.add_implicit_resolver(_tag, _pattern, None)


def _children(node: yaml.Node) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    elif isinstance(node, yaml.MappingNode):
        for pair in node.value:
            yield from pair


_TOO_MANY = (
    f"more than {MAX_YAML_NODES:,} keys and values or {MAX_YAML_BYTES // 2**20} MiB of text, "
    "aliases counted as often as they are used"
)


def _value_of(node: yaml.Node) -> Any:
    """What a node stands for. Raises YAMLError where its tag is not the core schema's, or its content is not the
    tag's."""
    if isinstance(node, yaml.MappingNode) and node.tag == _MAPPING:
        return _mapping_of(node)
    if isinstance(node, yaml.SequenceNode) and node.tag == _LIST:
        return [_value_of(each) for each in node.value]
    if isinstance(node, yaml.ScalarNode) and node.tag == _TEXT:
        return node.value
    if isinstance(node, yaml.ScalarNode) and node.tag in _PATTERNS:
        return _scalar_of(node)
    kind = "a mapping" if isinstance(node, yaml.MappingNode) else "a list" if isinstance(node.value, list) else "a text"
    raise _problem(node, f"{kind} with the tag {_shown(node.tag)}: leave the tag out")


def _mapping_of(node: yaml.MappingNode) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = _value_of(key_node)
        if not isinstance(key, str):
            raise _problem(key_node, f"the key is read as {_shown(key)}, not as text; quote it")
        if key in content:
            raise _problem(key_node, f"the key {_shown(key)} is given twice")
        content[key] = _value_of(value_node)
    return content


def _scalar_of(node: yaml.ScalarNode) -> Any:
    text = str(node.value)
    if node.tag == _AMBIGUOUS:
        raise _problem(node, _ambiguity(text))
    kind = node.tag.removeprefix(_TAG)
    if len(text) > MAX_NUMBER and _PATTERNS[node.tag].match(text):
        raise _problem(node, f"a number of {len(text):,} characters, {MAX_NUMBER} are the most")
    if not _PATTERNS[node.tag].match(text):
        raise _problem(node, f"{_shown(text)} has the tag !!{kind} and is none: leave the tag out")
    match kind:
        case "null":
            return None
        case "bool":
            return text.lower() == "true"
        case "int":
            return int(text, {"0o": 8, "0x": 16}.get(text[:2], 10))
    number = float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    if math.isinf(number) and "inf" not in text.lower():
        raise _problem(node, f"the number {text} is too large")
    return number


def _ambiguity(text: str) -> str:
    if text == "<<":
        return "'<<' without quotes would merge mappings in YAML 1.1; write the keys out"
    return f"{text!r} without quotes means true or false in YAML 1.1; write true, false or '{text}'"


def _shown(content: object) -> str:
    """As a sentence has room for it."""
    text = repr(content)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes text which readers of YAML 1.1 or ours would take for something else."""


for _tag, _pattern in _PATTERNS.items():
    _Dumper.add_implicit_resolver(_tag, _pattern, None)


def _problem(place: yaml.Node | yaml.Event, what: str) -> yaml.YAMLError:
    mark: Any = place.start_mark
    return yaml.composer.ComposerError(None, None, what, mark)


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML file that holds one mapping. Raises InputError with file, line and key."""
    content = read_file(path, MAX_YAML_BYTES)
    try:
        node = _CoreLoader(content.decode()).get_single_node()
        loaded = None if node is None else _value_of(node)
    except UnicodeDecodeError:
        raise InputError(f"{path} is not text (UTF-8)") from None
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(f"{path}{line}: {str(error.problem)[:MOST_SAID]}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not YAML: {str(error)[:MOST_SAID]}") from None
    if not isinstance(loaded, dict):
        found = "is empty" if loaded is None else f"holds a {type(loaded).__name__}"
        raise InputError(f"{path}: {found}, expected keys and values")
    for key, text in _texts(loaded):
        if not is_utf8(text):
            raise InputError(
                f"{path}: key {key[:MAX_NAME]}: {_shown(text)} is not text (UTF-8), or holds null characters"
            )
    return loaded


def parse_toml(path: Path, content: bytes) -> dict[str, Any]:
    """The content of the TOML file at `path`. Raises InputError."""
    import tomllib

    try:
        return tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:  # Also what is no UTF-8.
        raise InputError(f"{path}: is not valid TOML: {str(error)[:MOST_SAID]}") from None


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


def read_stored(path: Path, model: type[Model], form: Format, writer: Callable[[dict[str, Any]], object]) -> Model:
    """An export, of whichever release, whose names are printable text. `writer` finds the release in its content.
    Raises InputError with file and key."""
    content = read_yaml(path)
    if "schema" not in content:
        raise InputError(f"{path}: is no file that autotune wrote", tip="give one that `export` wrote")
    written = form.written(writer(content), content.get("schema"))
    try:
        schema = form.schema_of(content)
        for key, wrong in _unfit(content):
            raise InputError(f"{path}: key {key[:MAX_NAME]}: {wrong}")
        current = form.current(content, schema)
    except ValueError as error:
        raise InputError(
            f"{path}: {error} ({written})", tip="upgrade autotune, or export the study again with this one"
        ) from None
    return parse_as(model, current, path, written=written)


def _unfit(content: object, place: str = "") -> Iterator[tuple[str, str]]:
    """Key -> what is wrong with it, for what no export holds and a job's log should not: control characters, long
    names, numbers that nothing can be set to."""
    if isinstance(content, dict):
        for name, value in content.items():
            key = f"{place}.{name}" if place else name
            if not is_printable(name) or len(name) > MAX_NAME:
                yield key, f"a name is printable text of at most {MAX_NAME} characters"
            yield from _unfit(value, key)
    elif isinstance(content, list):
        for number, value in enumerate(content):
            yield from _unfit(value, f"{place}.{number}")
    elif isinstance(content, str) and not is_printable(content):
        yield place, "a text is printable: it holds no control characters"
    elif isinstance(content, int) and not -(2**63) <= content < 2**64:
        yield place, "the number is too large"


def parse_as(
    model: type[Model], content: object, path: Path, error_class: type[AutotuneError] = InputError, *, written: str = ""
) -> Model:
    """`content` of the file at `path` checked against `model`. `written`: what wrote it (see `Format`), of a file that
    people do not write themselves. Raises with file and key in the sentence."""
    try:
        return read(model.model_validate, content) if written else model.model_validate(content)
    except ValidationError as error:
        raise error_class(f"{path}: {problem(error, written)}") from None


def write_yaml(path: Path, content: dict[str, Any], comment: str = "", *, compact: bool = False) -> None:
    """Write readable YAML, keys in the given order, `comment` lines on top. Raises InputError if not writable.

    `compact`: what holds plain values only stands on one line, `{a: 1, b: 2}`.
    """
    heading = "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())
    flow = None if compact else False
    body = yaml.dump(content, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110, default_flow_style=flow)
    write_asked(path, heading + body, tip="choose another place with -o")


def require_place(path: Path) -> None:
    """Raises InputError where no file could be written, before there is anything to write."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise InputError(f"{path}: no file can be written there", tip="name a file in a folder that exists")


def write_asked(path: Path, content: str | bytes, tip: str | None = None) -> None:
    """Write a file where the user wants it. Raises InputError, with this tip, if that cannot be."""
    try:
        write_whole(path, content)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}", tip=tip) from None


def write_whole(path: Path, content: str | bytes) -> None:
    """Write through a temporary name and rename: a reader sees the old file or the new one, never half.

    Raises OSError, also for what is no plain file: a device would be replaced by a file of its name.
    """
    with replacing(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the place of `path` when the block ends, and is removed if the block raises. Raises
    OSError as `write_whole` does.

    Its temporary name is a new one and never a link: in a folder that others may write, a link of theirs under a name
    that they can foresee would have the file that it leads to overwritten.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "it is a pipe or a device and not a plain file", str(path))
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    new = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, new, 0o666)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
