"""`SubjectOfStream`: a model that is called with inputs of many shapes, which are cut from its largest ones."""

from __future__ import annotations

from typing import Any

from autotune.trial.worker.subjects.calls import SubjectOfCalls
from autotune.trial.worker.subjects.stream_inputs import StreamInputs, find_shapes
from autotune.workload.arguments import Arguments
from autotune.workload.kinds.stream import Stream
from autotune.workload.kinds.work import Work


class SubjectOfStream(SubjectOfCalls):
    """See the module."""

    kind = Stream

    def _work(self, model: Any, placed: list[Arguments]) -> tuple[Work, list[Arguments]]:
        """The calls that a trial replays. Raises InputError where the inputs do not show what a shape is."""
        shapes = find_shapes(self._workload, self._built, model, placed[0], self._backend)
        stream = StreamInputs.of_shapes(self._workload, placed[0], shapes, self._backend)
        return stream, list(stream.checked)

    @property
    def _are_enough(self) -> bool:
        return False
