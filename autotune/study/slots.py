"""`Slot`: a typed value that is stored with a study under a fixed name.

A part of the program that keeps something with a study declares a slot and needs no method of `Study`:

    ENGINE_BLOCK = value_slot("engines", EngineBlock)
    ENGINE_BLOCK.write(study, block)
    ENGINE_BLOCK.read(study)  # EngineBlock | None

What a study itself keeps is an attribute of `Study`, read and assigned like any other: `study.noise_floor = floor`.
The names and the JSON form of the values are what studies on disk hold: neither may change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, Self, TypeVar, overload

from pydantic import TypeAdapter, ValidationError

from autotune.errors import StoreError
from autotune.schema import MOST_SAID, problem, read
from autotune.study.manifest import Manifest

T = TypeVar("T")
TIP = "read the study with the version of autotune that its manifest.json names, or start another"
"""What can be done about a record that cannot be read."""


UNREADABLE = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What Optuna raises where rows hold what it never writes: no JSON, no number, a state that there is not."""


def unreadable(place: str, error: Exception) -> StoreError:
    """What is raised for them."""
    said = f"{type(error).__name__}: {error}".partition("\n")[0]
    return StoreError(
        f"{place} is damaged: it holds what no study writes: {said[:MOST_SAID]}",
        tip="restore it from a copy; the trials/ folders still hold each outcome",
    )


class Readable(Protocol):
    """Plain data by name, such as a study's or those of its result."""

    @property
    def manifest(self) -> Manifest:
        """The study's."""

    def read_attribute(self, name: str) -> Any:
        """The data stored under a name, in the keys of the present schema; None if there are none."""


class Attributes(Readable, Protocol):
    """Plain data by name that can be replaced: what a slot needs of a study."""

    def write_attribute(self, name: str, content: Any) -> None:
        """Store JSON data under a name, in place of what was there."""


class Slot(Generic[T]):
    """A value that is `empty()` before it is written. `value_slot` and `list_slot` make one."""

    def __init__(self, name: str, kind: Any, empty: Callable[[], T]) -> None:
        self.name = name
        self.kind = kind
        self._adapter: TypeAdapter[T] = TypeAdapter(kind)
        self._empty = empty

    def read(self, study: Readable) -> T:
        """The stored value. Raises StoreError for one that this version cannot read."""
        stored = study.read_attribute(self.name)
        if stored is None:
            return self._empty()
        try:
            return read(self._adapter.validate_python, stored)
        except ValidationError as error:
            raise StoreError(
                f"the study's {self.name} cannot be read: {problem(error, study.manifest.written)}", tip=TIP
            ) from None

    def write(self, study: Attributes, value: T) -> None:
        """Store a value in place of the one before."""
        study.write_attribute(self.name, self._adapter.dump_python(value, mode="json"))

    @overload
    def __get__(self, study: None, owner: type) -> Self: ...
    @overload
    def __get__(self, study: Attributes, owner: type) -> T: ...
    def __get__(self, study: Attributes | None, owner: type) -> Self | T:
        return self if study is None else self.read(study)

    def __set__(self, study: Attributes, value: T) -> None:
        self.write(study, value)


def value_slot(name: str, kind: type[T]) -> Slot[T | None]:
    """A slot of one value; None before it is written."""
    return Slot(name, kind | None, lambda: None)


def list_slot(name: str, kind: type[T]) -> Slot[list[T]]:
    """A slot of values in the order in which they were added; empty before the first."""
    return Slot(name, list[kind], list)  # type: ignore[valid-type]
