"""Kinds of work, one a module: what is done with a model, and what its author's function returns for that.

A module here needs no entry anywhere: its `Work` is found by being here. What else a kind of work consists of is found
in the same way by the class of its work: its subject (`trial.worker.subjects`) and its calls (`trial.worker.calls`) in
a trial, and its use in a job (`job.uses`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

from autotune.doors import modules_in
from autotune.workload.kinds.work import Work
from autotune.workload.workload import Task, Workload

T = TypeVar("T")
_MODULES = modules_in(__name__, __path__)
KINDS: tuple[type[Work], ...] = tuple(
    dict.fromkeys(
        value
        for module in _MODULES
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Work) and value is not Work
    )
)


def kind_of(workload: Workload, parts: Mapping[str, Any] | None = None) -> type[Work]:
    """The kind of work that `parts`, what the author's function returned, are for; without them, or where they leave it
    open, the kind that was asked for."""
    shown = (kind for kind in KINDS if parts is not None and kind.is_shown_by(parts))
    return next(shown, None) or kind_asked(workload.task, many_shapes=bool(workload.dimensions))


def kind_asked(task: Task, *, many_shapes: bool) -> type[Work]:
    """The kind of work that a question is about, before anything of the model is known."""
    return next(kind for kind in KINDS if kind.is_asked_by(task, many_shapes=many_shapes))


class Rows(Generic[T]):
    """The classes of a folder by the kind of work that each says it is for (`kind`). One that is for a kind is for
    those derived of it too, unless they have a class of their own."""

    def __init__(self, package: str, path: Iterable[str], base: type[T]) -> None:
        self._rows: dict[type[Work], type[T]] = {
            vars(value)["kind"]: value
            for module in modules_in(package, path)
            for value in vars(module).values()
            if isinstance(value, type) and issubclass(value, base) and "kind" in vars(value)
        }

    def of(self, kind: type[Work]) -> type[T]:
        """The class for a kind of work. Raises LookupError where there is none."""
        return next(self._rows[each] for each in kind.__mro__ if each in self._rows)
