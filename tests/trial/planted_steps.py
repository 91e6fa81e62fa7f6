"""Wrong training steps of a model, made by the hundred: what a step does wrong, where, and from which step on.

A fault acts on a `Trainer`, which takes the parts of a step by hand; each framework has one. What it comes to is judged
by the trial's own `Steps`: its first steps, some that stand for the timed ones, and the compared ones once more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from autotune.backends.protocol import Backend
from autotune.backends.undo import UndoLog
from autotune.config import Config
from autotune.trial.worker.accuracy_check import WrongResultError
from autotune.trial.worker.calls.later_steps import Untuned, require_like_reference
from autotune.trial.worker.calls.steps import Steps
from autotune.trial.worker.subjects import build_subject
from autotune.workload.workload import Workload

TOLERANCE = 1e-3
NUM_TIMED = 10
LATER = 6
"""A step that no check of a trial sees: there are five before the timed ones."""
Change = Callable[[np.ndarray, dict[str, Any]], np.ndarray | None]
"""Takes a gradient and what the fault keeps from step to step; None: there is no gradient."""


class Trainer(Protocol):
    """The parts of a step."""

    def backward(self, *batch: Any) -> Any:
        """The loss; gradients are there."""

    def change(self, name: str, change: Callable[[np.ndarray], np.ndarray | None]) -> None:
        """Another gradient for a weight."""

    def update(self) -> None:
        """The optimizer steps."""

    def read(self, name: str) -> np.ndarray:
        """A copy of a weight or buffer."""

    def write(self, name: str, array: np.ndarray) -> None:
        """In place."""

    def lose_state(self) -> None:
        """The optimizer forgets its moments."""


@dataclass(frozen=True)
class Fault:
    """What goes wrong at a weight or buffer, if it is about one, from the step `since` on."""

    kind: str
    where: str = ""
    since: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.where} from step {self.since + 1} on"

    def step(self, trainer: Trainer) -> Callable[..., Any]:
        """A step with this fault."""
        memory: dict[str, Any] = {"step": 0}

        def step(*batch: Any) -> Any:
            is_wrong = memory["step"] >= self.since
            memory["step"] += 1
            kind = self.kind if is_wrong else ""
            before = trainer.read(self.where) if self.where else None
            loss = trainer.backward(*batch)
            if kind in GRADIENTS:
                trainer.change(self.where, lambda gradient: GRADIENTS[kind](gradient, memory))
            if kind == "state lost":
                trainer.lose_state()
            if kind != "no update" and not (kind == "every second update" and memory["step"] % 2):
                trainer.update()
            if kind == "not moved" and before is not None:
                trainer.write(self.where, before)
            if kind == "loss detached":
                return memory.setdefault("loss", loss)
            return loss + 0.1 if kind == "loss shifted" else loss

        return step


def _rare_rows(gradient: np.ndarray, memory: dict[str, Any]) -> np.ndarray | None:
    """Rows of little gradient get none."""
    del memory
    norms = np.abs(gradient.reshape(len(gradient), -1)).max(1)
    shown = np.flatnonzero(norms > 0)
    gradient[shown[np.argsort(norms[shown])[: max(len(shown) // 5, 1)]]] = 0
    return gradient


def _stale(gradient: np.ndarray, memory: dict[str, Any]) -> np.ndarray | None:
    """That of the step before."""
    earlier = memory.get("gradient", gradient)
    memory["gradient"] = gradient.copy()
    return earlier


GRADIENTS: dict[str, Change] = {
    "none": lambda gradient, _: None,
    "zeroed": lambda gradient, _: 0 * gradient,
    "negated": lambda gradient, _: -gradient,
    "doubled": lambda gradient, _: 2 * gradient,
    "rolled": lambda gradient, _: np.roll(gradient, 1),
    "rare rows": _rare_rows,
    "stale": _stale,
}


def faults(weights: list[str], buffers: list[str], *, has_momentum: bool, has_none: bool) -> Iterator[Fault]:
    """All there are. `has_none`: a step of this framework tells a weight without a gradient."""
    tables = [where for where in weights if not where.startswith("norm") and "bias" not in where]
    for since in (0, 1, LATER):
        for kind in GRADIENTS:
            for where in tables if kind == "rare rows" else weights:
                if kind != "none" or has_none:
                    yield Fault(kind, where, since)
        for where in (*weights, *buffers):
            yield Fault("not moved", where, since)
        for kind in ("no update", "every second update", "loss detached", "loss shifted"):
            yield Fault(kind, since=since)
        if has_momentum:
            yield Fault("state lost", since=since)


class Judge:
    """The checks of a study of training steps: of a trial, and of a finalist's first block."""

    def __init__(self, backend: Backend, workload: Workload, untuned: Config) -> None:
        self._backend = backend
        self._workload = workload
        task = self.calls()
        step = task.compile(untuned, UndoLog())
        seen = task.observe(step, task.first(step, untuned, backend.clock, 0.0), reference_tolerance=TOLERANCE)
        task.gate.refuse_unusable(seen, TOLERANCE)
        self._reference = task.gate.unpacked(task.gate.packed(seen))
        again = self.calls()
        later = self._later(again, again.compile(untuned, UndoLog()))
        self.untuned = Untuned.of(later, self._reference, again.gate, TOLERANCE)

    def verdict(self, make: Callable[[Steps, Any], Callable[..., Any]]) -> str | None:
        """Why the step that `make` makes of the calls and their subject is wrong; None if it passes."""
        task = self.calls()
        try:
            later = self._later(task, make(task, task.subject))
            require_like_reference(later, self.untuned, self._reference, task.gate, TOLERANCE)
        except WrongResultError as error:
            return str(error)
        return None

    def _later(self, task: Any, step: Callable[..., Any]) -> Any:
        seen = task.observe(step, task.first(step, Config({}), self._backend.clock, 0.0))
        task.gate.errors(self._reference, seen, TOLERANCE)
        for _ in range(NUM_TIMED):
            task.subject.inputs[0].call(step)
        task.require_sound(step)
        return task._later(step)

    def calls(self, *, is_used: bool = True) -> Any:
        """Those of a trial, which may be followed by a longer use."""
        self._backend.prepare("cpu", 0)
        subject = build_subject(self._workload, self._backend)
        task: Any = Steps(self._workload, subject, self._backend)
        task.is_used, task.subject = is_used, subject
        return task
