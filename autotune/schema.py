"""`Record`: the base of everything that is written to a file or a database; `Format`: how it is read again, whichever
release wrote it.

What a release has written, each later one reads. A key may come, and is absent in what was written before. A key that
goes, or that says something else from now on, leaves a `Change` in the format's table, and counts its schema up unless
it could always be left out. A key that is not known and null says nothing and is passed over; any other is an error,
which names what wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, ClassVar, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

T = TypeVar("T")


class Record(BaseModel):
    """Immutable data with a JSON form; an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """As pydantic's, which adds whatever `update` names: here an unknown name raises TypeError."""
        unknown = set(update or ()) - type(self).model_fields.keys()
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(sorted(unknown))}")
        copied = super().model_copy(update=update, deep=deep)
        # What a `cached_property` has kept in this one need not hold for the copy.
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied


class SparseRecord(Record):
    """A record that is written without those fields of `ABSENT` that are None or empty."""

    ABSENT: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _without_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        written: dict[str, Any] = handler(self)
        return {name: value for name, value in written.items() if value or name not in self.ABSENT}


_MOST_NULLS = 1000
"""Each is looked up by itself, and a file from somebody else may have any number."""


def read(validate: Callable[[Any], T], content: Any) -> T:
    """What `validate` makes of a stored content, without unknown keys in it that are null. Raises ValidationError."""
    try:
        return validate(content)
    except ValidationError as error:
        found = error.errors(include_url=False)
        nulls = [wrong["loc"] for wrong in found if wrong["type"] == "extra_forbidden" and wrong["input"] is None]
        if not 0 < len(nulls) <= _MOST_NULLS:
            raise
        return validate(reduce(_without, nulls, content))


def _without(content: Any, place: tuple[int | str, ...]) -> Any:
    """The content without one of its keys. Parts of the place that are none of it name a kind of record."""
    step, rest = place[0], place[1:]
    if isinstance(content, Mapping) and step in content:
        kept = {key: value for key, value in content.items() if key != step}
        return {**kept, step: _without(content[step], rest)} if rest else kept
    if isinstance(content, (list, tuple)) and isinstance(step, int):
        return [_without(item, rest) if number == step else item for number, item in enumerate(content)]
    return _without(content, rest) if rest else content


@dataclass(frozen=True)
class Change:
    """What became of a key that was written up to a schema."""

    until: int
    """The last schema that has it."""
    where: str
    """The mapping that holds it: keys with dots between them, `*` for each item of a list."""
    key: str
    became: Callable[[Any], Mapping[str, Any]]
    """From its value to the keys that take its place, or that are as they were. Raises ValueError, in words, for a
    value that nothing takes the place of."""


def gone(_: Any) -> Mapping[str, Any]:
    """Nothing takes its place, whatever it said."""
    return {}


def renamed(key: str) -> Callable[[Any], Mapping[str, Any]]:
    """Value as it was, under another name."""
    return lambda value: {key: value}


def refused(why: str) -> Callable[[Any], Mapping[str, Any]]:
    """Nothing takes its place where it is empty; where it says something, that cannot be read."""

    def become(value: Any) -> Mapping[str, Any]:
        if value:
            raise ValueError(why)
        return {}

    return become


@dataclass(frozen=True)
class Format:
    """A kind of file, or a study with all its records: the one place of its schema, and what became of earlier ones."""

    schema: int
    """The one that is written."""
    oldest: int
    """The oldest that is read."""
    release: str
    """The tool's, which is told beside that of what wrote something."""
    changes: tuple[Change, ...] = ()

    @property
    def within(self) -> Any:
        """How a record's field for it is declared: one of the schemas that are read."""
        return Field(strict=True, ge=self.oldest, le=self.schema)

    def schema_of(self, content: Mapping[str, Any]) -> int:
        """The schema that the content says it has, the present one where it says none that is a number: whoever
        validates it refuses that. Raises ValueError, in words, for one that is not read."""
        schema = content.get("schema")
        if type(schema) is not int:
            return self.schema
        if schema > self.schema:
            raise ValueError(f"key schema: {schema} is newer than {self.schema}, the newest that this autotune reads")
        if schema < self.oldest:
            raise ValueError(f"key schema: {schema} is older than {self.oldest}, the oldest that this autotune reads")
        return schema

    def current(self, content: Mapping[str, Any], schema: int) -> Any:
        """Content of an earlier schema in the keys of the present one. Raises ValueError, in words."""
        for change in self.changes:
            if schema <= change.until:
                content = _changed(content, change.where.split(".") if change.where else [], change)
        return content

    def written(self, by: object, schema: object) -> str:
        """What wrote something and what reads it, for the end of a sentence."""
        release = f"autotune {by}" if by and isinstance(by, str) else "another program"
        return f"written by {release}, schema {schema}; this is autotune {self.release}, schema {self.schema}"


def _changed(content: Any, path: Sequence[str], change: Change) -> Any:
    if not path:
        if not isinstance(content, Mapping) or change.key not in content:
            return content
        rest = {key: value for key, value in content.items() if key != change.key}
        try:
            return {**rest, **change.became(content[change.key])}
        except ValueError as error:
            raise ValueError(f"key {change.key}: {error}") from None
    step, *rest_of_path = path
    if step == "*" and isinstance(content, (list, tuple)):
        return [_changed(item, rest_of_path, change) for item in content]
    if isinstance(content, Mapping) and step in content:
        return {**content, step: _changed(content[step], rest_of_path, change)}
    return content


MOST_SAID = 500
"""Characters of what a parser or a schema says, which may repeat a whole name."""
MAX_NAME = 300
"""Characters of a key of an export."""


def problem(error: ValidationError, written: str = "") -> str:
    """The first thing that is wrong with a content, with its key; `written` is said of a key that is not known."""
    first = error.errors(include_input=False, include_url=False)[0]
    key = ".".join(str(part) for part in first["loc"])[:MAX_NAME] or "(top level)"
    is_unknown = first["type"] == "extra_forbidden"
    wrong = "unknown key" if is_unknown else "is missing" if first["type"] == "missing" else first["msg"]
    return f"key {key}: {wrong[:MOST_SAID]}" + (f" ({written})" if is_unknown and written else "")
