"""`Door`: where packages add something of one kind by name, a group of entry points. What no core needs stands behind
one too (`plugins`), declared in `pyproject.toml` as a stranger's package declares it.

Entry points are looked up when a name is asked for and loaded one by one: who asks for none does not pay for what is
installed.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata
from types import ModuleType
from typing import Any, Generic, TypeVar

from autotune.errors import InputError, quoted

T = TypeVar("T")
DISTRIBUTION = "autotune-compile"
"""The one that holds this package."""


@dataclass(frozen=True)
class Door(Generic[T]):
    """One group: its name, the noun for what is behind it, and the type of that."""

    group: str
    noun: str
    kind: type[T]

    def names(self) -> tuple[str, ...]:
        """The names that installed packages give, also of entries that cannot be used."""
        return tuple(_points(self.group))

    def has(self, name: str) -> bool:
        """A package gives this name."""
        return name in _points(self.group)

    def find(self, name: str) -> T | None:
        """The object of this name; None where no package gives it. Raises InputError where it cannot be used."""
        point = self._point(name)
        if point is None:
            return None
        try:
            found = _loaded(point)
        except InputError:
            raise
        except Exception as error:
            raise InputError(
                f"the {self.noun} {name!r} of {owner(point)} cannot be loaded: {quoted(error)}",
                tip=f"install {owner(point)} anew with what it needs, or uninstall it",
            ) from error
        if not isinstance(found, self.kind):
            raise InputError(f"the {self.noun} {name!r} of {owner(point)}: {point.value} is no {self.kind.__name__}")
        return found

    def require(self, name: str) -> T:
        """The object of a name that this package itself declares. Raises InputError where it is not installed."""
        found = self.find(name)
        if found is None:
            anew = "run `pip install -e .`, or `make setup`, in autotune's folder, or install the package that has it"
            raise InputError(f"the {self.noun} {name!r} is not installed", tip=anew)
        return found

    def tip(self, *others: str) -> str:
        """Which names can be given, beside others; or that this package's own are missing, as from a checkout that was
        never installed."""
        if not any(
            point.dist is not None and owner(point) == DISTRIBUTION for (point, *_) in _points(self.group).values()
        ):
            return "autotune is not installed as it is now: run `pip install -e .`, or `make setup`, in its folder"
        return f"choose one of: {', '.join((*others, *_points(self.group)))}"

    def _point(self, name: str) -> metadata.EntryPoint | None:
        points = _points(self.group).get(name, ())
        if len(points) > 1:
            owners = " and ".join(sorted(map(owner, points)))
            raise InputError(f"the {self.noun} {name!r} is of two packages: {owners}", tip="uninstall one of them")
        return points[0] if points else None


USES: Door[Any] = Door("autotune.uses", "use", object)
"""Functions for jobs and programs: `autotune.NAME`."""


def owner(point: metadata.EntryPoint) -> str:
    """The distribution that declares an entry point; what the entry names where that is broken and has no name."""
    return (None if point.dist is None else point.dist.name) or point.value


def forget() -> None:
    """Look at the installed packages again, which have changed."""
    _points.cache_clear()
    _loaded.cache_clear()


@cache
def _points(group: str) -> Mapping[str, tuple[metadata.EntryPoint, ...]]:
    found: dict[str, tuple[metadata.EntryPoint, ...]] = {}
    for point in metadata.entry_points(group=group):
        found[point.name] = (*found.get(point.name, ()), point)
    return found


@cache
def _loaded(point: metadata.EntryPoint) -> Any:
    return point.load()


def modules_in(package: str, path: Iterable[str]) -> list[ModuleType]:
    """The modules of a folder in which each is one thing, found by being there, in the order of their names."""
    return [import_module(f"{package}.{module.name}") for module in pkgutil.iter_modules(path)]


def classes_in(modules: Iterable[ModuleType], of: type[T]) -> list[type[T]]:
    """The classes derived of one that these modules define."""
    return [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, of) and value.__module__ == module.__name__ and value is not of
    ]
