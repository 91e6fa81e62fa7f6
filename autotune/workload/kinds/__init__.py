"""Kinds of work, one a module: what is done with a model, and what its author's function returns for that.

A module here needs no entry anywhere: its `Work` is found by being here. What else a kind of work consists of is found
in the same way by the class of its work: its subject (`trial.worker.subjects`) and its calls (`trial.worker.calls`) in
a trial, its use in a job (`job.uses`), and its findings (`answer.sections`).

Another package adds a kind behind a door: an entry is a package with a module `kinds`, and as far as its kind has
something of its own one named as each of these folders. Nobody looks behind the door but for a key that no kind here
has, and for what was measured of such a kind.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any, Generic, TypeVar

from autotune.doors import Door, classes_in, modules_in
from autotune.workload.kinds.work import Work
from autotune.workload.workload import Task, Workload

T = TypeVar("T")
PACKAGES: Door[ModuleType] = Door("autotune.kinds", "kind of work", ModuleType)
KINDS: tuple[type[Work], ...] = tuple(classes_in(modules_in(__name__, __path__), Work))


def kind_of(workload: Workload, parts: Mapping[str, Any] | None = None) -> type[Work]:
    """The kind of work that `parts`, what the author's function returned, are for; without them, or where they leave it
    open, the kind that was asked for. Raises InputError where a package's kind cannot be used."""
    shown = () if parts is None else (kind for kind in _kinds_for(parts) if kind.is_shown_by(parts))
    return next(iter(shown), None) or kind_asked(workload.task, many_shapes=bool(workload.dimensions))


def kind_asked(task: Task, *, many_shapes: bool) -> type[Work]:
    """The kind of work that a question is about, before anything of the model is known."""
    return next(kind for kind in KINDS if kind.is_asked_by(task, many_shapes=many_shapes))


def kind_named(name: str) -> type[Work]:
    """The kind of a package, by the name of its entry. Raises InputError where it cannot be used."""
    module = import_module(f"{PACKAGES.require(name).__name__}.kinds")
    return next(kind for kind in classes_in([module], Work) if kind.entry == name)


@cache
def keys_of_all() -> frozenset[str]:
    """What an author's function may return for any of the kinds here, beside what it may return for each."""
    return frozenset(key for kind in KINDS for key in kind.keys)


def _kinds_for(parts: Mapping[str, Any]) -> Iterator[type[Work]]:
    yield from KINDS
    if not parts.keys() <= {*OF_ANY, *keys_of_all()}:
        yield from map(kind_named, PACKAGES.names())


OF_ANY = ("model", "inputs", "more_inputs", "compare", "gradients", "regions", "variants", "padding", "reset")
"""What an author's function may return for any kind, as far as the kind takes it."""


class Rows(Generic[T]):
    """The classes of a folder by the kind of work that each says it is for (`kind`). One that is for a kind is for
    those derived of it too, unless they have a class of their own."""

    def __init__(self, package: str, path: Iterable[str], base: type[T]) -> None:
        self._folder = package.rpartition(".")[2]
        self._base = base
        self._rows = self._in(modules_in(package, path))

    def of(self, kind: type[Work]) -> type[T]:
        """The class for a kind of work."""
        rows = {**self._rows, **self._in(modules_of(kind, self._folder))}
        return next(rows[each] for each in kind.__mro__ if each in rows)

    def _in(self, modules: Iterable[ModuleType]) -> dict[type[Work], type[T]]:
        return {vars(each)["kind"]: each for each in classes_in(modules, self._base) if "kind" in vars(each)}


def modules_of(kind: type[Work], folder: str) -> list[ModuleType]:
    """What a package's kind has of its own, named as a folder here; nothing for a kind that is in that folder."""
    name = "" if kind.entry is None else f"{kind.__module__.rpartition('.')[0]}.{folder}"
    return [import_module(name)] if name and importlib.util.find_spec(name) is not None else []
