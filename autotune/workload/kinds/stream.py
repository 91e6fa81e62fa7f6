"""`Stream`: calls of a model with inputs of many shapes, as traffic has them."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.workload.kinds.infer import Infer
from autotune.workload.workload import Workload


@dataclass(frozen=True)
class Stream(Infer):
    """The calls of the workload's traffic."""

    @classmethod
    def is_asked_by(cls, workload: Workload) -> bool:
        return workload.task == cls.task and workload.traffic is not None
