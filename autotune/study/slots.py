"""`Slot` and `ListSlot`: typed values that are stored with a study, each under a fixed name.

A part of the program that keeps something with a study declares a slot and needs no method of `Study`:

    TAIL = Slot("tail", Tail)
    TAIL.write(study, tail)
    TAIL.read(study)  # Tail | None

A slot that is an attribute of `Study` is read and assigned like any other attribute: `study.noise_floor = floor`.
The names and the JSON form of the values are what studies on disk hold: neither may change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol, Self, TypeVar, overload

from pydantic import TypeAdapter, ValidationError

from autotune.errors import StoreError

T = TypeVar("T")


class Readable(Protocol):
    """Plain data by name, such as a study's or those of its result."""

    def read_attribute(self, name: str) -> Any:
        """The data stored under a name, None if there is none."""


class Attributes(Readable, Protocol):
    """Plain data by name that can be replaced: what a slot needs of a study."""

    def write_attribute(self, name: str, content: Any) -> None:
        """Store JSON data under a name, in place of what was there."""


class Slot(Generic[T]):
    """One value; None before it is written."""

    def __init__(self, name: str, kind: type[T]) -> None:
        self.name = name
        self._adapter: TypeAdapter[T] = TypeAdapter(kind)

    def read(self, study: Readable) -> T | None:
        """The stored value. Raises StoreError for one that this version cannot read."""
        stored = study.read_attribute(self.name)
        return None if stored is None else _validated(self._adapter, stored, self.name)

    def write(self, study: Attributes, value: T | None) -> None:
        """Store a value in place of the one before."""
        study.write_attribute(self.name, None if value is None else self._adapter.dump_python(value, mode="json"))

    @overload
    def __get__(self, study: None, owner: type) -> Self: ...
    @overload
    def __get__(self, study: Attributes, owner: type) -> T | None: ...
    def __get__(self, study: Attributes | None, owner: type) -> Self | T | None:
        return self if study is None else self.read(study)

    def __set__(self, study: Attributes, value: T | None) -> None:
        self.write(study, value)


class ListSlot(Generic[T]):
    """Values in the order in which they were added; empty before the first."""

    def __init__(self, name: str, kind: type[T]) -> None:
        self.name = name
        self._adapter: TypeAdapter[list[T]] = TypeAdapter(list[kind])  # type: ignore[valid-type]

    def read(self, study: Readable) -> list[T]:
        """The stored values. Raises StoreError for one that this version cannot read."""
        return _validated(self._adapter, study.read_attribute(self.name) or [], self.name)

    def add(self, study: Attributes, *values: T) -> None:
        """Store further values after those that are there."""
        self.write(study, [*self.read(study), *values])

    def write(self, study: Attributes, values: Sequence[T]) -> None:
        """Store values in place of those before."""
        study.write_attribute(self.name, self._adapter.dump_python(list(values), mode="json"))

    @overload
    def __get__(self, study: None, owner: type) -> Self: ...
    @overload
    def __get__(self, study: Attributes, owner: type) -> list[T]: ...
    def __get__(self, study: Attributes | None, owner: type) -> Self | list[T]:
        return self if study is None else self.read(study)

    def __set__(self, study: Attributes, values: Sequence[T]) -> None:
        self.write(study, values)


def _validated(adapter: TypeAdapter[T], stored: Any, name: str) -> T:
    try:
        return adapter.validate_python(stored)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in (name, *first["loc"]))
        raise StoreError(
            f"the study's {key} is stored in a form that this version does not read: {first['msg']}",
            tip="read the study with the version of autotune that its manifest.json names, or start another",
        ) from None
