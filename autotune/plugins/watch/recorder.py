"""What is seen of a job's calls in one process, and the document of it in the folder."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from autotune.plugins.watch.document import Document
from autotune.plugins.watch.layouts import describe_kept, describe_layout

SCHEMA = 2
MOST_MODELS = 64
"""Models that are counted in a process."""
MOST_SAVED = 4
"""Models of a process that are written into the folder."""
MOST_SHAPES = 4096
MOST_KEPT = 8
"""Calls of a model whose arguments are kept."""
_EVERY_S = 5.0
_LAST = 4096
"""Latest calls whose time is kept."""
_LEAST_SHARE = 0.05
"""Share of the time of all calls from which a model is worth its place on the disk."""


@dataclass(frozen=True)
class Wanted:
    """What was asked of the watching."""

    folder: str
    seconds: float | None = None
    """Time of watching, from the first call on; None: until the end."""
    calls: int | None = None
    """Number for a model; None: until the end."""
    most_bytes: int = 4 << 30
    """Size of all that a folder holds."""


@dataclass
class Seen:
    """One model: its calls by their layout and state."""

    name: str
    structure: str
    model: Callable[[], Any] = lambda: None
    """The model itself, as long as the job holds it."""
    is_text: bool = False
    """Its calls are those that write a text."""
    calls: int = 0
    nanoseconds: int = 0
    first_ns: int = 0
    """Time of the first call."""
    counts: dict[tuple[Any, ...], int] = field(default_factory=dict)
    latest: list[int] = field(default_factory=list)
    kept: list[tuple[Any, Any]] = field(default_factory=list)
    """A call's layout, and a copy of its arguments."""
    kept_bytes: int = 0
    backward: int = 0
    """Calls whose outputs were to be differentiated."""
    steps: Any = None
    """What is seen of the steps that these are of; its `described` gives it for the document, or None."""
    notes: dict[str, None] = field(default_factory=dict)
    """What could not be kept, with what to do."""
    files: dict[str, str] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    def count(self, key: tuple[Any, ...], nanoseconds: int) -> None:
        if not self.calls:
            self.first_ns = nanoseconds
        self.calls += 1
        self.nanoseconds += nanoseconds
        if key in self.counts or len(self.counts) < MOST_SHAPES:
            self.counts[key] = self.counts.get(key, 0) + 1
        if len(self.latest) < _LAST:
            self.latest.append(nanoseconds)
        else:
            self.latest[self.calls % _LAST] = nanoseconds

    def keep(self, key: tuple[Any, ...], size: int, copy: Any) -> None:
        """Keep a call that did not fail, with what was copied of its arguments before it. `size`: bytes of that."""
        if len(self.kept) < MOST_KEPT:
            self.kept.append((key, copy))
            self.kept_bytes += size

    def forget(self) -> None:
        """Nothing was called yet: for a process that was forked. Files and kept calls stay."""
        self.calls = self.nanoseconds = self.first_ns = self.backward = 0
        self.counts, self.latest = {}, []


class Recorder(Document):
    """The models of this process, those of one framework, whose `save` writes one into the folder."""

    def __init__(self, wanted: Wanted, framework: Any) -> None:
        self.wanted = wanted
        self.models: list[Seen] = []
        self.notes: dict[str, None] = {}
        self._framework = framework
        super().__init__(wanted.folder)

    def _begin(self) -> None:
        super()._begin()
        self._first_ns: int | None = None
        self._last_ns = 0
        self._writing_ns = 0
        """Spent between calls by what is written here."""

    def take_in(self, model: Any, by_id: dict[int, Seen]) -> Seen | None:
        """What is kept of a model from its first call on, found by its identity for as long as the model lives; None
        for one too many. A model that takes the place of one that is gone, as a loss that is made in each step, has the
        record of that."""
        with self.lock:
            if (known := by_id.get(id(model))) is not None:  # Another thread was faster.
                return known
            gone = [each for each in self.models if each.model() is None]
            if len(self.models) >= MOST_MODELS and type(model).__name__ not in {each.name for each in gone}:
                self.notes["more models are called than are watched"] = None
                return None
            made: Seen = self._framework.seen_of(model)
            alike = (each for each in gone if (each.name, each.structure) == (made.name, made.structure))
            if (seen := next(alike, None)) is None:
                seen = made
                self.models.append(seen)
            seen.model, seen.steps = made.model, None
            seen.extra |= made.extra
            by_id[id(model)] = seen
            weakref.finalize(model, by_id.pop, id(model), None).atexit = False
            return seen

    def forget(self) -> None:
        """Files and kept calls stay."""
        for seen in self.models:
            seen.forget()

    def note(
        self, seen: Seen, key: tuple[Any, ...], begun_ns: int, took_ns: int, copy: tuple[int, Any] | None = None
    ) -> None:
        """Count a call that ended, and keep a copy of its arguments, given with its size; write the document where it
        is time to."""
        with self.lock:
            seen.count(key, took_ns)
            if copy is not None:
                seen.keep(key, *copy)
            if self._first_ns is None:
                self._first_ns = begun_ns
            self._last_ns = now = begun_ns + took_ns
            is_over = self._has_enough(seen, now)
            if not (is_over or self.is_due(seen.calls, now, _EVERY_S)):
                return
        begun = time.perf_counter_ns()
        self.write()
        self._writing_ns += time.perf_counter_ns() - begun
        self.is_over |= is_over

    def _has_enough(self, seen: Seen, now_ns: int) -> bool:
        wanted, first = self.wanted, self._first_ns or now_ns
        return (wanted.calls is not None and seen.calls >= wanted.calls) or (
            wanted.seconds is not None and now_ns - first > wanted.seconds * 1e9
        )

    def size(self) -> int:
        """Number of calls, and of notes."""
        return sum(seen.calls for seen in self.models) + len(self.notes)

    def _save(self) -> None:
        """Write the models that take the time, once each, and the calls of each that were kept since."""
        everything = sum(seen.nanoseconds for seen in self.models)
        saved = sum("model" in seen.files for seen in self.models)
        for seen in sorted(self.models, key=lambda one: -one.nanoseconds):
            is_worth = seen.nanoseconds >= _LEAST_SHARE * everything
            if seen.calls > 1 and is_worth and (saved < MOST_SAVED or "model" in seen.files):
                saved += "model" not in seen.files
                self._framework.save(self, seen)

    def room_bytes(self) -> int:
        """What may still be written into the folder."""
        used = 0
        for path in self.folder.glob("*"):
            with suppress(FileNotFoundError):  # That of another process, which has its name now.
                used += path.stat().st_size
        return self.wanted.most_bytes - used

    def content(self) -> Mapping[str, Any]:
        """Models that take the time are written into the folder first."""
        self._save()
        return {
            "schema": SCHEMA,
            "seconds": self._seconds(),
            "first_at": self._at(self._first_ns or self._last_ns),
            "last_at": self._at(self._last_ns),
            "cores": sorted(os.sched_getaffinity(0)),
            "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
            "notes": list(self.notes),
            **self._framework.describe_process(),
            "models": [self._describe(seen) for seen in self.models if seen.calls],
        }

    def _seconds(self) -> float:
        """From the first call to the last, without what was written in between."""
        return max(0, self._last_ns - (self._first_ns or self._last_ns) - self._writing_ns) / 1e9

    @staticmethod
    def _at(moment_ns: int) -> float:
        """The moment by the clock on the wall, which processes of two runs have in common."""
        return time.time() - (time.perf_counter_ns() - moment_ns) / 1e9

    def _describe(self, seen: Seen) -> Mapping[str, Any]:
        ordered = sorted(seen.latest)
        return {
            "name": seen.name,
            "structure": seen.structure,
            "is_text": seen.is_text,
            "calls": seen.calls,
            "seconds": seen.nanoseconds / 1e9,
            "first_s": seen.first_ns / 1e9,
            "p50_s": ordered[len(ordered) // 2] / 1e9,
            "p99_s": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] / 1e9,
            "backward": seen.backward,
            "steps": seen.steps and seen.steps.described(),
            "shapes": [
                {"count": count, **describe_layout(key)}
                for key, count in sorted(seen.counts.items(), key=lambda pair: -pair[1])
            ],
            "kept": [describe_kept(key) for key, _ in seen.kept[: seen.extra.get("calls_written", 0)]],
            "files": seen.files,
            "notes": list(seen.notes),
            "around": seen.extra.get("around", []),
            "ranks": seen.extra.get("ranks", 1),
            "prompts": seen.extra.get("prompts", []),
        }


_VARIABLES = (
    *("OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "OMP_WAIT_POLICY", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"),
    *("KMP_BLOCKTIME", "MKL_NUM_THREADS", "LD_PRELOAD", "MALLOC_CONF", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES"),
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
)
"""Those that make the same calls faster or slower, and those of ranks."""
