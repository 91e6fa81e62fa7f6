"""`StatsRecorder`: what happened to a loaded model, for whoever asks later: `autotune.stats(model)`.

Events are always kept, there are few. Calls are counted and timed only where the job asked for it.
"""

from __future__ import annotations

import atexit
import logging
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

from autotune.errors import printable
from autotune.measure.diagnosis import Diagnosis
from autotune.measure.measurement import Latency

T = TypeVar("T")

_log = logging.getLogger("autotune")


def _in_one_line(record: logging.LogRecord) -> bool:
    """Names and errors in a line of the log must not begin another one, nor act on a terminal that shows it."""
    record.msg, record.args = printable(record.getMessage()), ()
    return True


_log.addFilter(_in_one_line)  # It stands before every handler, for whichever module writes to this log.


@dataclass(frozen=True)
class GenerationStats:
    """Calls of a model that generates text, by where they went."""

    num_prefills: int
    """Calls with a prompt, by the config's way; one that is not compiled counts too."""
    num_decodes: int
    """Calls with one token more, by the config's way."""
    num_untuned: int


EventKind = Literal["mismatch", "fallback", "slow", "artifact"]
NUM_KEPT = 4096
"""Latest calls that percentiles are taken over."""


@dataclass(frozen=True)
class Event:
    """Something that a job's operator wants to know. `at_s`: seconds since the epoch."""

    kind: EventKind
    message: str
    at_s: float


@dataclass(frozen=True)
class Stats:
    """A loaded model until now. None: not counted (see `monitor`), or the framework does not tell."""

    state: str
    """`tuned`; `untuned` if the answer was to leave the model as it is, or it was given up; `settling` until the first
    calls have shown that the tuned model does what it promised."""
    num_calls: int | None
    latency_s: Latency | None
    """Over the latest calls; on a device that computes on its own, over one call in `TIMED_EVERY`."""
    num_compiles: int | None
    """Graphs compiled in this process, by any model."""
    num_recompiles: int | None
    num_graph_breaks: int | None
    num_fallbacks: int
    peak_memory_bytes: int | None
    """Peak of the device's allocator; on a CPU the process's resident set as it is now."""
    events: tuple[Event, ...]
    generation: GenerationStats | None = None
    """Where the calls of `generate` went; None for other configs."""
    components: Mapping[str, Stats] = field(default_factory=dict)
    """What the components of a pipeline have done, by their paths. Its own calls are not counted."""


@dataclass
class StatsRecorder:
    """One for each model that `apply` gave or was given."""

    state: Literal["settling", "tuned", "untuned"] = "untuned"
    diagnose: Callable[[], Diagnosis | None] | None = None
    """Asks the framework's own books; None where nothing was compiled. It may not refer to the model:
    a recorder lives for as long as the model does, by which it is found."""
    memory_bytes: Callable[[], int | None] = lambda: None
    note_first_call: Callable[[], None] = lambda: None
    calls: CallTimes | None = None
    generation: Callable[[], GenerationStats | None] = lambda: None
    rehearsal: Callable[[], Callable[..., None] | None] = lambda: None
    """What `prepare` calls, found without keeping the model alive; None: there is nothing to prepare."""
    events: list[Event] = field(default_factory=list)

    def note(self, kind: EventKind, message: str, level: int = logging.WARNING) -> None:
        """Keep the event, and say it once in the log."""
        self.events.append(Event(kind, printable(message), time.time()))
        _log.log(level, "autotune: %s", message)

    def note_once(self, kind: EventKind, message: str) -> None:
        """Note it unless this very message was noted before."""
        if not any(event.kind == kind and event.message == printable(message) for event in self.events):
            self.note(kind, message)

    def stats(self) -> Stats:
        found = None if self.diagnose is None else self.diagnose()
        return Stats(
            state=self.state,
            num_calls=None if self.calls is None else self.calls.num_calls,
            latency_s=None if self.calls is None else self.calls.latency(),
            num_compiles=None if found is None else found.num_graphs,
            num_recompiles=None if found is None else found.num_recompiles,
            num_graph_breaks=None if found is None else found.num_graph_breaks,
            num_fallbacks=sum(event.kind == "fallback" for event in self.events),
            peak_memory_bytes=self.memory_bytes(),
            events=tuple(self.events),
            generation=self.generation(),
        )


TIMED_EVERY = 16
"""Calls on a device that computes on its own, of which one waits for the device and is timed."""


class CallTimes:
    """Counts calls and keeps the latest latencies, in seconds."""

    def __init__(self, synchronise: Callable[[], None] | None) -> None:
        """`synchronise` waits for the device; None where a call returns with its result."""
        self.num_calls = 0
        self._latest_s: deque[float] = deque(maxlen=NUM_KEPT)
        self._synchronise = synchronise

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`call`, counted and timed."""
        return self._every_one(call) if self._synchronise is None else self._one_in_many(call, self._synchronise)

    def latency(self) -> Latency | None:
        """Percentiles of the latest calls; None before the first."""
        latest_s = tuple(self._latest_s)
        return Latency.of(latest_s) if latest_s else None

    def _every_one(self, call: Callable[..., Any]) -> Callable[..., Any]:
        clock, keep = time.perf_counter, self._latest_s.append

        def counted(*args: Any, **kwargs: Any) -> Any:
            start = clock()
            result = call(*args, **kwargs)
            keep(clock() - start)
            self.num_calls += 1
            return result

        return counted

    def _one_in_many(self, call: Callable[..., Any], synchronise: Callable[[], None]) -> Callable[..., Any]:
        clock, keep = time.perf_counter, self._latest_s.append

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.num_calls += 1
            if self.num_calls % TIMED_EVERY:
                return call(*args, **kwargs)
            synchronise()
            start = clock()
            result = call(*args, **kwargs)
            synchronise()
            keep(clock() - start)
            return result

        return counted


class HasStats(Protocol):
    """Whatever keeps statistics of a model: a `StatsRecorder`, or that of a pipeline."""

    def stats(self) -> Any:
        """What is known of the model until now."""


def weakly(ask: Callable[[Any], T], owner: Any) -> Callable[[], T]:
    """`ask` of an owner that this does not keep alive; of None once it is gone."""
    try:
        held = weakref.ref(owner)
    except TypeError:  # No recorder is found by it.
        return lambda: ask(owner)
    return lambda: ask(held())


_RECORDERS: weakref.WeakKeyDictionary[Any, HasStats] = weakref.WeakKeyDictionary()


def register(model: Any, recorder: HasStats) -> None:
    """Find the recorder again by this object. An object that cannot be referred to weakly has none."""
    try:
        _RECORDERS[model] = recorder
    except TypeError:
        _log.debug("autotune: no statistics for a %s", type(model).__name__)


def recorder_of(model: Any) -> HasStats | None:
    """The recorder of a model that `apply` gave; None for any other object."""
    try:
        return _RECORDERS.get(model)
    except TypeError:
        return None


# A tuned model that no call comes through is told of once, when the process ends: the job calls something else.
#
# It calls the model that it gave, or parts or methods of it that are not called through the model; or it dropped what
# `apply` returned. A process that was forked is not told: its children may have made the calls.

_uncalled: set[str] = set()
"""Files whose config was applied, and of which no model was called so far."""


def expect_calls(path: str) -> Callable[[], None]:
    """A model was given the config in this file. Returns what is to be called at its first call."""
    _uncalled.add(path)
    return partial(_uncalled.discard, path)


def _tell_of_uncalled() -> None:
    for path in sorted(_uncalled):
        _log.warning(
            "autotune: %s: no call came to the model that apply() returned: only calls of that object are tuned, not "
            "those of the model that it was made of, nor of its parts",
            path,
        )


atexit.register(_tell_of_uncalled)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_uncalled.clear)
