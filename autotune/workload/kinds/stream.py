"""`Stream`: calls of a model with inputs of many shapes, as traffic has them."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.workload.kinds.infer import Infer
from autotune.workload.workload import Task


@dataclass(frozen=True)
class Stream(Infer):
    """The calls of the workload's traffic."""

    named = ("traffic",)
    has_engines = False
    has_many_shapes = True

    @classmethod
    def is_asked_by(cls, task: Task, *, many_shapes: bool) -> bool:
        return task == cls.task and many_shapes

    @classmethod
    def why_no_artifact(cls, framework: str, *, is_exact: bool) -> str | None:
        return (
            None if is_exact else f"what comes from {framework}'s cache is for one shape, and this answer is for many"
        )
