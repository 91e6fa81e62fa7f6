"""`SubjectOfPipeline`: a pipeline, whose call may take texts and numbers alone, and whose components are looked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from autotune.measure.measurement import TensorSpec
from autotune.trial.worker.components import ComponentRecord, repeated_in, require_regions
from autotune.trial.worker.subjects.calls import SubjectOfCalls
from autotune.workload.components import pipeline_of
from autotune.workload.kinds.pipeline import PipelineCalls

if TYPE_CHECKING:
    from autotune.space.declared import Declaration


class SubjectOfPipeline(SubjectOfCalls):
    """See the module."""

    kind = PipelineCalls

    def _require_inputs(self, specs: Sequence[TensorSpec]) -> None:
        """None is needed."""

    def _recognised(self, model: Any) -> Any:
        pipeline = pipeline_of(model)
        return model if pipeline is None else pipeline.holder

    def declared(self) -> Declaration:
        """With what its call calls, as an untuned call shows it. Raises InputError for a call that cannot be
        compared."""
        from autotune.space.declared import Declaration

        built, backend, name = self._built, self._backend, self._workload.model
        pipeline = pipeline_of(built.model)
        if backend.regions is None or pipeline is None:
            return super().declared()
        inputs = built.inputs.with_leaves([backend.place(leaf) for leaf in built.inputs.leaves()])
        components = ComponentRecord(name, backend.place(built.model), pipeline, backend).components(inputs)
        require_regions(name, built.regions or (), components)
        repeated = repeated_in(pipeline, components, backend)
        return Declaration(regions=built.regions, repeated=repeated, components=components, met=self._met())
