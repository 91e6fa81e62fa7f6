"""`Infer`: calls of a model, all with inputs of one shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from autotune.workload.kinds.work import Work
from autotune.workload.workload import Workload


@dataclass(frozen=True)
class Infer(Work):
    """See the module."""

    task = "infer"
    words = "calls of a model"

    @classmethod
    def is_asked_by(cls, workload: Workload) -> bool:
        return super().is_asked_by(workload) and workload.traffic is None

    @classmethod
    def of(cls, parts: Mapping[str, Any], workload: Workload) -> Self:
        del parts, workload
        return cls()
