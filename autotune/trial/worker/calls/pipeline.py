"""`CallsOfPipeline`: calls of a pipeline, of which the components are compiled."""

from __future__ import annotations

from autotune.apply.compile_model import pipeline_under
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.trial.worker.calls.calls import Step
from autotune.trial.worker.calls.one_shape import OneShape
from autotune.workload.arguments import Arguments
from autotune.workload.kinds.pipeline import PipelineCalls


class CallsOfPipeline(OneShape):
    """See the module."""

    kind = PipelineCalls
    _takes_others = False

    def compile(self, config: Config, changes: UndoLog) -> Step:
        step = pipeline_under(self._backend, self._subject.model, config, changes)
        self._before = self._surroundings.now()  # No call put its compiled components where they are.
        return step

    @property
    def authors_inputs(self) -> list[Arguments]:
        """None: its components are what a job calls under a config."""
        return []
