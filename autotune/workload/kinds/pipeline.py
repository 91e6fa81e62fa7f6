"""`PipelineCalls`: calls of a pipeline. The author's function returns one, or a dict of its components with their
`call` (see `components`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autotune.errors import InputError, marked
from autotune.workload.components import Pipeline, as_pipeline, called, held_components
from autotune.workload.kinds.infer import Infer
from autotune.workload.workload import Task, Workload

_KEYS = ("components", "pipeline", "call")
_OF_ONE_MODEL = "it is for one model"


@dataclass(frozen=True)
class PipelineCalls(Infer):
    """See the module."""

    has_engines = False
    unsuitable = dict.fromkeys(("variants", "padding", "reset"), _OF_ONE_MODEL)

    @classmethod
    def is_asked_by(cls, task: Task, *, many_shapes: bool) -> bool:
        """Nobody asks for it: what the author's function returns shows it."""
        del task, many_shapes
        return False

    @classmethod
    def why_no_artifact(cls, framework: str, *, is_exact: bool) -> str:
        del framework, is_exact
        return "it holds what one model's first call compiles, and this answer is a pipeline's"

    @classmethod
    def adapted(cls, parts: Mapping[str, Any], workload: Workload) -> Mapping[str, Any]:
        """A dict of components or of a pipeline as one whose model is a `Pipeline`, and an object that holds models and
        can be called as one too."""
        rest = {key: value for key, value in parts.items() if key not in _KEYS}
        if "components" in parts:
            held = held_components(parts["components"], parts.get("call"), workload.model)
            return {"inputs": (), **rest, "model": held}
        if "pipeline" not in parts:
            return {**parts, "model": as_pipeline(parts["model"])} if "model" in parts else parts
        if "call" not in parts:
            return {"model": as_pipeline(parts["pipeline"]), **rest}
        model = Pipeline(parts["pipeline"], called(parts["call"], workload.model))
        return {"inputs": (), **rest, "model": model}

    @classmethod
    def is_shown_by(cls, parts: Mapping[str, Any]) -> bool:
        return isinstance(parts.get("model"), Pipeline)

    @classmethod
    def asked_for(cls, workload: Workload) -> str:
        return f"{workload.model} returned a pipeline"

    @classmethod
    def require_suitable(cls, parts: Mapping[str, Any], workload: Workload) -> None:
        if workload.task != cls.task:
            raise InputError(
                f"{marked('task', workload.task)}: {workload.model} returned a pipeline",
                tip="return one of its models with inputs of its own",
            )
        if workload.shapes is not None:
            raise InputError(
                f"{workload.model} returned a pipeline, and {marked('shapes')} is for one model", tip="leave it out"
            )
        super().require_suitable(parts, workload)
