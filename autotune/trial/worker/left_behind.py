"""`Surroundings`: what calls may leave something behind in, seen before and after."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autotune.backends.call_state import CallState
from autotune.backends.protocol import Backend
from autotune.errors import quoted
from autotune.measure.parts import Part
from autotune.trial.worker.subject import Subject

Moment = CallState | str
"""What was seen at one moment, or a sentence about what cannot be looked into."""


class Surroundings:
    """The model, and the inputs that its author gave. Inputs that were made up are left out: the model need not take
    them."""

    def __init__(self, subject: Subject, backend: Backend, apart_from: Sequence[Any] = ()) -> None:
        """`apart_from`: tensors that are meant to change, such as the weights in training."""
        self._backend = backend
        self._apart_from = apart_from
        self._roots: dict[str, Any] = {"model": subject.model}
        authors = [each for each in subject.inputs[:-1] if each is not subject.derived]
        for number, inputs in enumerate(authors, start=1):
            self._roots |= {f"{name} of input {number}": leaf for name, leaf in inputs.named_leaves()}

    def now(self) -> Moment:
        try:
            return CallState(self._backend, self._roots)
        except Exception as error:
            return f"the state of the model and its inputs ({quoted(error)})"

    def changed_since(self, before: Moment) -> tuple[list[Part], list[str]]:
        """What has changed, with what it is now; and in words why that is not known."""
        after = self.now()
        if isinstance(before, CallState) and isinstance(after, CallState):
            return after.changed_since(before, self._apart_from), []
        return [], [after if isinstance(after, str) else str(before)]
