"""What is seen of a job's calls in one process, and the document of it in the folder.

A process that is killed writes nothing at its end. So the document is written anew after 2, 4, 8, ... calls of a model
and every few seconds, and once more where the process ends in a way that Python sees.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

SCHEMA = 1
PROCESSES = "processes"
"""Where in the folder each process has its document. `tune` knows the folder by it."""
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
    backward: int = 0
    """Calls whose outputs were to be differentiated."""
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

    def forget(self) -> None:
        """Nothing was called yet: for a process that was forked. Files and kept calls stay."""
        self.calls = self.nanoseconds = self.first_ns = self.backward = 0
        self.counts, self.latest = {}, []


class Recorder:
    """The models of this process. `describe` gives the documents of one; `save` writes one into the folder."""

    def __init__(self, wanted: Wanted, framework: Any) -> None:
        self.wanted = wanted
        self.folder = Path(wanted.folder)
        self.models: list[Seen] = []
        self.lock = threading.Lock()
        self.notes: dict[str, None] = {}
        self.is_over = False
        self._framework = framework
        self._begin()
        atexit.register(self.write)
        os.register_at_fork(after_in_child=self._forked)
        self._leave = os._exit
        self._leave_written = self._written_and_left
        os._exit = self._leave_written

    def _written_and_left(self, status: int) -> NoReturn:
        """In place of `os._exit`, with which processes that multiprocessing forks end."""
        self.write()
        self._leave(status)

    def close(self) -> None:
        """Write what was seen; nothing is counted or written any more."""
        self.write()
        self.is_over = True
        atexit.unregister(self.write)
        if os._exit is self._leave_written:
            os._exit = self._leave

    def _begin(self) -> None:
        self._first_ns: int | None = None
        self._last_ns = 0
        self._written_ns = 0
        self._num_written = -1
        self._writing_ns = 0
        """Spent between calls by what is written here."""
        self._token = os.urandom(4).hex()

    def _forked(self) -> None:
        self.lock = threading.Lock()
        self._begin()
        for seen in self.models:
            seen.forget()

    def note(self, seen: Seen, key: tuple[Any, ...], begun_ns: int, took_ns: int) -> None:
        """Count a call that ended; write the document where it is time to."""
        with self.lock:
            seen.count(key, took_ns)
            if self._first_ns is None:
                self._first_ns = begun_ns
            self._last_ns = now = begun_ns + took_ns
            is_over = self._has_enough(seen, now)
            is_due = seen.calls > 1 and seen.calls & (seen.calls - 1) == 0
            if not (is_due or is_over or now - self._written_ns > _EVERY_S * 1e9):
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

    def write(self) -> None:
        """Write what was seen, if there is anything new. Never raises: the job goes on, or ends, as ever."""
        if self.is_over or not self.lock.acquire(timeout=5):
            return
        try:
            num = sum(seen.calls for seen in self.models)
            num += len(self.notes)
            if num and num != self._num_written:
                self._num_written, self._written_ns = num, time.perf_counter_ns()
                self._save()
                place = self.folder / PROCESSES
                place.mkdir(parents=True, exist_ok=True)
                path = place / f"{socket.gethostname()}-{os.getpid()}-{self._token}.json"
                partial = path.with_suffix(".partial")
                partial.write_text(json.dumps(self._document()))
                partial.replace(path)
        except Exception as problem:
            if os.environ.get("AUTOTUNE_WATCH_DEBUG"):
                with suppress(Exception):
                    sys.stderr.write(f"autotune: {self.folder} was not written: {problem!r}\n")
        finally:
            self.lock.release()

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
        used = sum(path.stat().st_size for path in self.folder.glob("*") if path.is_file())
        return self.wanted.most_bytes - used

    def _document(self) -> Mapping[str, Any]:
        return {
            "schema": SCHEMA,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "command": list(sys.orig_argv),
            "folder": os.getcwd(),
            "seconds": self._seconds(),
            "cores": sorted(os.sched_getaffinity(0)),
            "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
            "notes": list(self.notes),
            **self._framework.describe_process(),
            "models": [self._describe(seen) for seen in self.models if seen.calls],
        }

    def _seconds(self) -> float:
        """From the first call to the last, without what was written in between."""
        return max(0, self._last_ns - (self._first_ns or self._last_ns) - self._writing_ns) / 1e9

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
            "shapes": [
                {"count": count, **self._framework.describe_layout(key)}
                for key, count in sorted(seen.counts.items(), key=lambda pair: -pair[1])
            ],
            "kept": [self._framework.describe_kept(key) for key, _ in seen.kept[: seen.extra.get("calls_written", 0)]],
            "files": seen.files,
            "notes": list(seen.notes),
            "around": seen.extra.get("around", []),
            "prompts": seen.extra.get("prompts", []),
        }


_VARIABLES = (
    *("OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "OMP_WAIT_POLICY", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"),
    *("KMP_BLOCKTIME", "MKL_NUM_THREADS", "LD_PRELOAD", "MALLOC_CONF", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES"),
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
)
"""Those that make the same calls faster or slower, and those of ranks."""
