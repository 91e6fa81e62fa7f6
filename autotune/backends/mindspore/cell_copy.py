"""A copy of a model's Cells that has its Parameters: what variants rewrite in place of the job's model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms

from autotune.backends.mindspore.compiled_cell import note_compiled
from autotune.backends.mindspore.mirror import Mirror
from autotune.backends.mindspore.proxy import copy_cells
from autotune.backends.mindspore.state import Snapshot, initialise
from autotune.errors import UnsuitableCallError


class CellCopy:
    """See `capabilities.ModelCopy`.

    A variant is written for the model as it was when it was applied: calls in another mode, or with other attributes or
    parts, are refused. New weights are seen, since the Parameters are the job's own, wherever their data lie.
    """

    def __init__(self, model: ms.nn.Cell) -> None:
        initialise(model)
        copies: dict[int, ms.nn.Cell] = {}
        self.model = copy_cells(model, copies)
        self._original = model
        self._mirror = Mirror(model, copies)
        self._seen = Snapshot(model)

    def around(self, step: Callable[..., Any]) -> Callable[..., Any]:
        note_compiled(self._original, step)

        def called(*args: Any, **kwargs: Any) -> Any:
            self._require_the_same()
            self._mirror.begin()  # What a variant is made of was put into the copy before.
            result = step(*args, **kwargs)
            if self._mirror.bring_back():
                self._seen = Snapshot(self._original)
            return result

        return called

    def _require_the_same(self) -> None:
        if not self._seen.attributes_hold():
            now = Snapshot(self._original)
            if now.has_hooks or not self._seen.has_attributes_of(now):
                raise UnsuitableCallError(
                    "the model has another mode, attribute, part or hook than when its variant was put in",
                    tip="apply the config again once the model is as it is to be used",
                )
            self._seen = now
