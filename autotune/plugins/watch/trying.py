"""The models of a job's process that are called tuned and untuned in turns, and the document of them in a folder.

Training changes sides between steps: where the weights were changed since the call before. A step's time is that from
its first call to the first call of the next one. So its gradients, be they accumulated over several calls, are of one
side, and optimizer and weights are the job's own at all times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from autotune.apply.config_parts import ConfigParts
from autotune.backends.protocol import Backend
from autotune.job.stats import StatsRecorder
from autotune.measure.measurement import Latency
from autotune.plugins.watch.document import Document
from autotune.plugins.watch.stretches import TUNED, UNTUNED, CallTurn, Sides
from autotune.tuned.tuned_config import TunedConfig

SCHEMA = 1
_EVERY_S = 1.0
"""Seconds after which the document is written anew: what a job that is killed has lost at most."""


@dataclass
class ModelInTurns:
    """One model that a file was applied to, or that stays untuned for a reason in its notes."""

    file: str
    name: str
    unit: Literal["call", "step", "text"]
    num_settling: int
    """Calls in which the guard settles, at least."""
    centre: Callable[[list[float]], float]
    """What a call took, from those of a stretch."""
    notes: Callable[[], Sequence[str]] = list

    def __post_init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """There was no call yet."""
        self.sides = Sides(self.centre)

    def content(self) -> Mapping[str, Any]:
        """What the document says of it."""
        sides = self.sides
        pairs, latest_s = sides.counted()
        return {
            "file": self.file,
            "name": self.name,
            "unit": self.unit,
            "num": sides.num,
            "num_first": sides.num_first,
            "num_left_out": sides.num_left_out,
            "num_needed": sides.num_needed(self.num_settling),
            "pairs": [[each.centre_s for each in pair] for pair in pairs],
            "notes": list(self.notes()),
            **{
                name: _described(latest_s[side], [pair[side] for pair in pairs])
                for name, side in (("untuned", UNTUNED), ("tuned", TUNED))
            },
        }


def _described(latest_s: list[float], stretches: list[Any]) -> Mapping[str, Any] | None:
    """One side: percentiles of the latest calls, and what a call took of all whole stretches. None: there are none."""
    num, seconds = sum(each.num for each in stretches), sum(each.seconds for each in stretches)
    if not num:
        return None
    latency = Latency.of(tuple(latest_s))
    return {"num": num, "mean_s": seconds / num, "p50_s": latency.p50, "p99_s": latency.p99}


class Trying(Document):
    """All models of this process that a file names."""

    def __init__(self, folder: str) -> None:
        self.models: list[ModelInTurns] = []
        super().__init__(folder)

    def size(self) -> int:
        """Number of models, and of their calls."""
        return len(self.models) + sum(model.sides.num for model in self.models)

    def content(self) -> Mapping[str, Any]:
        """All models."""
        return {"schema": SCHEMA, "models": [model.content() for model in self.models]}

    def forget(self) -> None:
        """Models stay, with no call."""
        for model in self.models:
            model.begin_anew()

    def note(self, model: ModelInTurns) -> None:
        """A call of the model is over: the document is written where it is time to."""
        if self.is_due(model.sides.num, time.perf_counter_ns(), _EVERY_S):
            self.write()


def why_untuned(tuned: TunedConfig, backend: Backend, num_ranks: int) -> str | None:
    """Why no call of a model changes sides in this process; None: calls may."""
    if num_ranks > 1:
        return f"this is one of {num_ranks} ranks, which cannot change sides each by itself: the job ran untuned"
    training = backend.training if tuned.kind.trains else None
    if training is not None and not training.calls_as_compiled(ConfigParts.of(tuned.config).settings):
        return (
            "the config compiles more of a step than the model, which a step of the job's own cannot change: the job "
            "ran untuned; it is for training_step"
        )
    return None


@dataclass
class CallTurns:
    """How the calls of one model take turns."""

    trying: Trying
    model: ModelInTurns
    recorder: StatsRecorder
    synchronise: Callable[[], object]
    num_compiled: Callable[[], object]
    """Another value once something was compiled."""
    is_slowed: Callable[[], bool] = field(default=lambda: False)
    """Untuned calls are slower for now: they do not count."""

    def __post_init__(self) -> None:
        self._was_slowed = self.is_slowed()

    @property
    def are_over(self) -> bool:
        """The guard went back to the untuned model for good."""
        return self.recorder.state == "untuned"

    def begin(self) -> CallTurn:
        """The turn of a call that comes now."""
        if self._was_slowed and not self.is_slowed():
            self._was_slowed = False
            self.model.sides.start_over()
        return self.model.sides.begin(is_settled=self.recorder.state != "settling")

    def end(self, turn: CallTurn, took_s: float, *, counts: bool) -> None:
        """The call is over."""
        self.model.sides.end(turn, took_s, counts=counts)
        self.trying.note(self.model)


class StepTurns:
    """How the steps of one model take turns: all calls of a step are tuned, or none is."""

    def __init__(self, turns: CallTurns, num_updates: Callable[[], object]) -> None:
        """`num_updates` gives another value after each change of the weights."""
        self._turns, self._num_updates = turns, num_updates
        self._turn: CallTurn | None = None
        """That of the current step."""
        self._begun_s = 0.0
        self._at_begin: tuple[object, object] = (None, None)
        """What `num_updates` gave, and what had been compiled, when it began."""
        self._is_like_others = True

    def side(self, *, trains: bool) -> int:
        """That of the call that comes. `trains`: gradients are to be taken of it; else it is a validation between two
        steps."""
        if not trains:
            self._is_like_others = False
            return TUNED if self._turn is None else self._turn.side
        num_updates = self._num_updates()
        if self._turn is None or num_updates != self._at_begin[0]:
            return self._next(num_updates).side
        return self._turn.side

    def _next(self, num_updates: object) -> CallTurn:
        """A step ends, if there was one, and the next begins."""
        turns = self._turns
        turns.synchronise()
        num_compiled = turns.num_compiled()
        if self._turn is not None:
            counts = self._is_like_others and num_compiled == self._at_begin[1]
            turns.end(self._turn, time.perf_counter() - self._begun_s, counts=counts)
        turn = self._turn = turns.begin()
        self._at_begin, self._is_like_others = (num_updates, num_compiled), True
        self._begun_s = time.perf_counter()
        return turn
