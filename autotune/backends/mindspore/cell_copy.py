"""A copy of a model's Cells that has its Parameters: what variants rewrite in place of the job's model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms

from autotune.backends.mindspore.compiled_cell import note_compiled
from autotune.backends.mindspore.proxy import copy_cells
from autotune.backends.mindspore.state import REGISTERS, Snapshot, initialise
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
        self._held = [(vars(each), vars(copies[id(each)])) for _, each in model.cells_and_names()]
        self._seen = Snapshot(model)
        self._rewritten: Snapshot | None = None

    def around(self, step: Callable[..., Any]) -> Callable[..., Any]:
        note_compiled(self._original, step)

        def called(*args: Any, **kwargs: Any) -> Any:
            self._require_the_same()
            try:
                return step(*args, **kwargs)
            finally:
                self._bring_back()

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
        if self._rewritten is None:
            self._rewritten = Snapshot(self.model)

    def _bring_back(self) -> None:
        """Attributes that a call has set in the copy are set in the job's Cells."""
        if self._rewritten is None or self._rewritten.attributes_hold():
            return
        for original, held in self._held:
            for name in self._rewritten.changed(held):
                if name not in REGISTERS:
                    original[name] = held[name]
        self._rewritten, self._seen = Snapshot(self.model), Snapshot(self._original)
