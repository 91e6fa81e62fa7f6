"""`Infer`: calls of a model, all with inputs of one shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from autotune.workload.kinds.work import Work
from autotune.workload.workload import Task, Workload


@dataclass(frozen=True)
class Infer(Work):
    """See the module."""

    task = "infer"
    words = "calls of a model"
    has_engines = True
    times_near_misses = True

    @classmethod
    def is_asked_by(cls, task: Task, *, many_shapes: bool) -> bool:
        return task == cls.task and not many_shapes

    @classmethod
    def in_title(cls) -> str:
        """Nothing: it is what one expects."""
        return ""

    @classmethod
    def of(cls, parts: Mapping[str, Any], workload: Workload) -> Self:
        del parts, workload
        return cls()
