"""`Later`: the compared steps of a training trial, taken again after all that were timed.

A trial compares four steps. What goes wrong from the seventh on, or in the hundreds that are timed, it does not see.
So a finalist, in the process of its first block, goes back to where its steps began, takes them once more, and is held
to the same reference. What each of these steps begins with lies in files without a name in the meantime: a further copy
of weights and moments would count as memory of the timed steps.

The untuned model is asked first, in its own process of that block: whether its own later steps are those of the
reference (a schedule that a model keeps in Python goes on), which of the things that a step leaves behind are, and what
its timed steps moved. What they do not tell is not compared, and is named.
"""

from __future__ import annotations

import math
import tempfile
import traceback
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from autotune.backends.capabilities import Training
from autotune.backends.protocol import Backend
from autotune.errors import quoted
from autotune.files import write_whole
from autotune.measure.agreement import Array
from autotune.measure.parts import DisagreementError, Part, Strictness, require_same_changes
from autotune.schema import Record
from autotune.trial.worker.accuracy_check import Gate, WrongResultError
from autotune.trial.worker.calls.step_gate import StepsTaken

_FILE = "later_steps.json"
_UNMOVED = "was not moved by any of the timed steps, and the untuned step moves it"
_NOT_COMPARED = "steps that are taken after the timed ones were not compared"


class LostStartError(Exception):
    """What steps begin with cannot be put back."""


class Beginning:
    """What tensors hold where steps begin, copied where they lie, until it is dropped."""

    def __init__(self, backend: Backend, training: Training, optimizer: Any, tensors: Sequence[Any]) -> None:
        """`tensors`: all that the optimizer trains is among them."""
        self._backend = backend
        self._training = training
        self._optimizer = optimizer
        self._tensors = tensors
        self._copies = training.copies(tensors)

    def put_back(self) -> None:
        """All of them are as they were."""
        self._training.write(self._tensors, self._copies)

    def ways(self) -> Array:
        """Root mean square of what each weight has changed by since."""
        return np.array([self._training.rms(*pair) for pair in self._weights()])

    def go_along(self, gradients: Sequence[Any], change: float) -> bool:
        """All are as they were, but for the weights, which are so much further along their gradients that the loss
        changes by so much, as the gradients say. False where they say nothing."""
        weights, there = self._weights(), [gradient for gradient in gradients if gradient is not None]
        square = sum(self._training.rms(each) ** 2 * self._num_elements(each) for each in there)
        if len(gradients) != len(weights) or not abs(change) * square > 0:
            return False
        self.put_back()
        pairs = zip(weights, gradients, strict=True)
        moved = (copy if gradient is None else copy + change / square * gradient for (_, copy), gradient in pairs)
        self._training.write([weight for weight, _ in weights], moved)
        return True

    def _num_elements(self, tensor: Any) -> int:
        spec = self._backend.spec(tensor)
        return 0 if spec is None else math.prod(spec.shape)

    def _weights(self) -> list[tuple[Any, Any]]:
        copies = {id(tensor): copy for tensor, copy in zip(self._tensors, self._copies, strict=True)}
        return [(weight, copies[id(weight)]) for weight in self._training.trained(self._optimizer)]


class Kept:
    """What tensors hold at one moment, in a file."""

    def __init__(self, backend: Backend, held: Callable[[], Sequence[Any]], write: Callable[..., None]) -> None:
        """`held` gives the tensors, now and when they are put back: an optimizer may make its own anew."""
        self._held = held
        self._write = write
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 -- It lives as long as this, and has no name.
        weakref.finalize(self, self._file.close)
        self._num = 0
        for tensor in held():
            array = backend.to_array(tensor)
            assert array is not None
            np.save(self._file, array)
            self._num += 1

    def put_back(self) -> None:
        """Raises LostStartError."""
        tensors = list(self._held())
        if len(tensors) != self._num:
            raise LostStartError(f"{len(tensors)} tensors instead of {self._num}")
        self._file.seek(0)
        try:
            self._write(tensors, (np.load(self._file) for _ in tensors))
        except Exception as error:
            raise LostStartError(quoted(error)) from error


class Untuned(Record):
    """What the untuned model's later steps tell."""

    why_unlike: str | None
    """Why they are not those of its reference; None: they are."""
    left: tuple[str, ...] = ()
    """Names of what its steps leave behind as they did at first."""
    moved: tuple[int, ...] = ()
    """Places of the weights that its timed steps moved."""
    changed: tuple[str, ...] = ()
    """Names of what else its timed steps moved."""

    @classmethod
    def read(cls, folder: Path) -> Untuned:
        """What `write` wrote, if it did."""
        file = folder / _FILE
        return cls.model_validate_json(file.read_bytes()) if file.exists() else cls(why_unlike="nothing is known")

    def write(self, folder: Path) -> None:
        """For the finalists of the block."""
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / _FILE, self.model_dump_json(indent=2))

    @classmethod
    def of(cls, later: Later, reference: StepsTaken, gate: Gate, tolerance: float) -> Untuned:
        """By its own reference."""
        if isinstance(later.seen, str):
            return cls(why_unlike=later.seen)
        names = tuple(part.name for part in _tensors(reference.left) if _is_same(part, later.seen.left, tolerance))
        try:
            gate.errors(_about(reference, names), _about(later.seen, names), tolerance)
        except WrongResultError as error:
            return cls(why_unlike=str(error))
        return cls(why_unlike=None, left=names, moved=later.moved, changed=later.changed)


class Later:
    """What a process tells at its end: the steps, or why they could not be taken; and what the timed ones moved."""

    def __init__(self, taken: Callable[[], StepsTaken], moved: Sequence[int], changed: Sequence[str]) -> None:
        self.moved = tuple(moved)
        self.changed = tuple(changed)
        self.seen: StepsTaken | str
        try:
            self.seen = taken()
        except LostStartError as error:
            traceback.print_exc()
            self.seen = f"what they begin with could not be put back ({error})"


def require_like_reference(
    later: Later, untuned: Untuned, reference: StepsTaken, gate: Gate, tolerance: float
) -> tuple[str, ...]:
    """Raises WrongResultError for a finalist whose later steps are other ones. What was not compared, as a sentence."""
    for place in untuned.moved:
        if place < len(reference.ways) and reference.ways[place] > 0 and place not in later.moved:
            raise WrongResultError(f"weight {place + 1} of {len(reference.ways)} {_UNMOVED}", 1.0)
    for name in untuned.changed:
        if reference.left_moved.get(name, 0.0) > 0 and name not in later.changed:
            raise WrongResultError(f"{name} {_UNMOVED}", 1.0)
    if untuned.why_unlike is not None:
        return (f"{_NOT_COMPARED}: of the untuned model, {untuned.why_unlike}",)
    if isinstance(later.seen, str):
        return (f"{_NOT_COMPARED}: {later.seen}",)
    try:
        gate.errors(_about(reference, untuned.left), _about(later.seen, untuned.left), tolerance)
    except WrongResultError as error:
        raise WrongResultError(f"taken again after the timed steps, {error}", error.relative_error) from None
    return ()


def _about(steps: StepsTaken, names: Sequence[str]) -> StepsTaken:
    """Without what Python holds, which goes on counting, and what has none of these names."""
    return replace(steps, left=[part for part in _tensors(steps.left) if part.name in names], has_turns=True)


def _tensors(left: Sequence[Part]) -> list[Part]:
    return [part for part in left if part.is_tensor]


def _is_same(part: Part, others: Sequence[Part], tolerance: float) -> bool:
    same = [other for other in others if other.name == part.name]
    try:
        require_same_changes([part], same, Strictness(tolerance, with_forms=False))
    except DisagreementError:
        return False
    return True
