"""Memory of a trial: the peaks of its stages, that of compiling with all processes, and what steady calls keep.

**Peaks** are those of the device allocator where there is one, else the growth of the resident set. On Linux the kernel
records each process's resident peak (VmHWM) and can reset it. A forked child starts with its parent's peak, so the peak
is always reset first and reported as growth since before the model was built: memory of the interpreter and the
framework is not counted. A model that the process was forked with counts as if it were built here: it was none of what
a process of its own would begin with.

**Compiling** takes further processes: workers of the compiler, and C++ compilers below them. The kernel keeps the peak
of each process and of none together, so a thread adds up, ten times a second, what this one has grown by and what all
below it hold: pages that several of them share count once, in shares (PSS). What lives for less than that is missed.
It is memory of the machine on an accelerator too.

**Growth.** An allocator, a cache or a lazily loaded library takes memory once; a leak takes it again and again. So
after the last sample further calls are made, in windows of equally many. At each border garbage is collected and the
memory in use is read. What a call keeps is the median over the windows: memory that comes at once, in up to two of the
five windows, is none of it. The system counts pages, so less than a page in a window cannot be told from nothing: that
is the resolution. Only where a constraint asks for it, since it takes more calls than the samples do.

A leak first fills the room that earlier objects have left, and the process holds no more than before. So the C library
gives free pages back at each border, and what Python objects hold is traced besides: of a window the larger of the two
counts.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import statistics
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import psutil

from autotune.backends.contracts.runtime import Runtime
from autotune.measure.measurement import Growth
from autotune.measure.objective import PAGE_BYTES
from autotune.trial.worker.built_ahead import bytes_ahead

WINDOWS = 5
FEWEST_CALLS, MOST_CALLS = 8, 200
"""In a window: with these a growth of 500 KiB, or 20 KiB, for a thousand calls can be told."""
GROWTH_S = 2.0
"""So long calls are made, if that is not too few of them."""
LOOK_S = 0.1
"""A compile is looked at so often, or less often where looks are dear."""
SHARE_OF_LOOKS = 0.01
"""Share of a core that looks take: one takes 10 ms where a process has compile workers that were forked from it."""

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


class PeakMemory:
    """Create it before the model is built; call `restart()` at the start of a stage and `peak_bytes()` at its end."""

    def __init__(self, backend: Runtime) -> None:
        self._backend = backend
        self._start_bytes = psutil.Process().memory_info().rss - bytes_ahead()
        self._resettable = True
        self.restart()

    def restart(self) -> None:
        """Reset the peak to the current use."""
        if self._backend.peak_memory_bytes(restart=True) is not None:
            return
        try:
            _CLEAR_REFS.write_text(_RESET_PEAK)
        except OSError:
            self._resettable = False

    def peak_bytes(self, spared_bytes: int = 0) -> int | None:
        """Peak since `restart`; None where neither a device allocator nor the kernel reports one.

        `spared_bytes`: what the process holds already that a job's would grow by (`Spared`).
        """
        device_peak = self._backend.peak_memory_bytes()
        if device_peak is not None:
            return device_peak
        peak = _counted(_STATUS, "VmHWM") if self._resettable else None
        return None if peak is None else max(peak - self._start_bytes, 0) + spared_bytes

    def watched(self) -> CompileWatch:
        """What all processes hold while something is compiled within."""
        return CompileWatch(self._start_bytes)


class CompileWatch:
    """Reads what this process and all below it hold, again and again, from entering to leaving."""

    def __init__(self, start_bytes: int) -> None:
        self._start_bytes = start_bytes
        self._most_bytes: int | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="autotune-memory", daemon=True)

    def __enter__(self) -> CompileWatch:
        if _tells_children():
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._thread.ident is not None:
            self._thread.join()
            self._look()

    def peak_bytes(self, spared_bytes: int) -> int | None:
        """The most at any look; None where the system does not tell. `spared_bytes`: as of `PeakMemory`."""
        return None if self._most_bytes is None else self._most_bytes + spared_bytes

    def _watch(self) -> None:
        wait_s = LOOK_S
        while not self._is_over.wait(wait_s):
            begun = time.thread_time()
            self._look()
            wait_s = max(LOOK_S, (time.thread_time() - begun) / SHARE_OF_LOOKS)

    def _look(self) -> None:
        own = max((_counted(_STATUS, "VmRSS") or 0) - self._start_bytes, 0)
        below = sum(_counted(Path(f"/proc/{each}/smaps_rollup"), "Pss") or 0 for each in _below(os.getpid()))
        self._most_bytes = max(self._most_bytes or 0, own + below)


def virtual_peak_bytes() -> int | None:
    """The most addresses that this process ever had; None where the system does not tell."""
    return _counted(_STATUS, "VmPeak")


def _tells_children() -> bool:
    return Path(f"/proc/self/task/{os.getpid()}/children").exists()


def _below(pid: int) -> Iterator[int]:
    """Processes that this one has started, and those that they have."""
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = file.read_text().split()
        except OSError:  # It has ended.
            continue
        for child in map(int, children):
            yield child
            yield from _below(child)


def _counted(file: Path, name: str) -> int | None:
    """Bytes of the line `NAME: N kB` of a file; None where it is not there."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    found = next((line for line in lines if line.startswith(f"{name}:")), None)
    return None if found is None else int(found.split()[1]) * 1024


def growth_of(calls: Sequence[Callable[[], None]], pass_s: float, longest_s: float, backend: Runtime) -> Growth | None:
    """What calls keep, which were made before and take `pass_s` a pass; None where so many would take too long."""
    fewest, most = (max(1, math.ceil(number / len(calls))) for number in (FEWEST_CALLS, MOST_CALLS))
    num_passes = min(max(int(GROWTH_S / WINDOWS / pass_s), fewest), most)
    if WINDOWS * num_passes * pass_s > longest_s:
        return None
    tracemalloc.start()
    held = [_held_bytes(backend)]
    for _ in range(WINDOWS):
        for _ in range(num_passes):
            for call in calls:
                call()
        held.append(_held_bytes(backend))
    tracemalloc.stop()
    num_calls = num_passes * len(calls)
    kept = statistics.median(max(b - a for a, b in zip(*two, strict=True)) for two in pairwise(held))
    return Growth(
        per_1000_calls_bytes=max(round(1000 * kept / num_calls), 0),
        resolution_bytes=math.ceil(1000 * PAGE_BYTES / num_calls),
        num_calls=WINDOWS * num_calls,
    )


def _held_bytes(backend: Runtime) -> tuple[int, int]:
    """Memory in use of the device's allocator, where there is one, else resident, counted exactly where the system can;
    and that of Python objects that were made since they are traced."""
    gc.collect()
    traced_bytes, _ = tracemalloc.get_traced_memory()
    if backend.peak_memory_bytes(restart=True) is not None:
        return backend.peak_memory_bytes() or 0, traced_bytes
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    exactly = _counted(Path("/proc/self/smaps_rollup"), "Rss")
    return psutil.Process().memory_info().rss if exactly is None else exactly, traced_bytes
