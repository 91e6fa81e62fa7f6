"""What other programs take of the machine while a trial is timed, and whether that disturbed it.

A sample in which the process was interrupted is longer than the model takes. If few samples are affected, the median
does not change; if many are, it measures the other program. Whether a trial was disturbed is derived from the counters
of its samples.

What others use of the usable cores is the system's busy time minus that of this process. Where several instances make
calls, it is that of the cores of all of them minus that of them all, and one of them that was interrupted is enough.
Time that a hypervisor gave to another machine (steal) counts as used by others. In a container that sees all processors
of the host, only what exceeds the cores beyond the container's quota counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from autotune.environment import num_usable_cores, throttled_s, usable_cpus
from autotune.measure.measurement import Measurement

STAT = Path("/proc/stat")

HIT_SHARE = 0.2
"""Share of the samples. With this share affected, the median is at most the 62nd percentile of undisturbed ones."""
SWITCHES_PER_S = 20.0
"""Involuntary switches. Measured on two cores: 2 to 8 a second on a quiet core, 45 to 130 beside a busy program."""
TAKEN_SHARE = 0.1
"""Share of a core that others use. Threads of one config interrupt each other too, while others use nothing."""


def disturbance_of(measurement: Measurement) -> str | None:
    """What disturbed the samples, in a sentence; None if nothing did or it is unknown.

    On a device the calls wait for it, and its load is not recorded: only drift checks show a disturbance there.
    """
    samples = measurement.samples
    usage, latency_s = samples.usage, samples.latency_s
    environment = measurement.environment
    if usage is None or environment.device.lower() != "cpu":
        return None
    wall_s = sum(latency_s)
    hit = _interrupted(latency_s, usage.involuntary_switches)
    beside = zip(samples.beside_s, samples.beside_switches, strict=False)  # Earlier records have no switches.
    hit_beside = max((_interrupted(calls_s, switches) for calls_s, switches in beside), default=0.0)
    if not (hit or hit_beside):
        return None
    whose = " of an instance" if samples.beside_s else ""
    interrupted = f"{max(hit, hit_beside):.0%} of the calls{whose} were interrupted"
    if usage.taken_s is None:
        # Where the system does not say: the process used less than one core although it was not waiting.
        return f"other programs ran while it was timed: {interrupted}" if sum(usage.cpu_s) < 0.9 * wall_s else None
    taken = usage.taken_s / (usage.watched_s or wall_s)
    if taken < TAKEN_SHARE:
        return None
    num_cores = environment.num_cores * (1 + len(samples.beside_s))
    return f"other programs used {taken:.1f} of {num_cores} cores while it was timed: {interrupted}"


def _interrupted(calls_s: Sequence[float], switches: Sequence[int]) -> float:
    """Share of the calls of a process in which it was interrupted; 0 where it is no more than on a quiet core."""
    hit = sum(number > 0 for number in switches) / len(calls_s)
    return 0.0 if hit < HIT_SHARE or sum(switches) < SWITCHES_PER_S * sum(calls_s) else hit


class LoadMeter:
    """Counts from its creation. `own_s` returns the CPU seconds that are not counted; None: unknown. `cpus` are the
    processors that are watched; None: those that this process may use."""

    def __init__(
        self, own_s: Callable[[], float | None], stat: Path = STAT, cpus: frozenset[int] | None = None
    ) -> None:
        self._own_s, self._stat, self._cpus = own_s, stat, cpus
        self._begun, self._stolen_before_s = self._read(), stolen_cpu_s(stat, cpus)

    def wall_s(self) -> float | None:
        """Seconds so far; None where the system does not report busy ones."""
        return None if self._begun is None else time.monotonic() - self._begun[0]

    def taken_s(self) -> float | None:
        """CPU seconds that others used on these cores so far; None where the system does not report it."""
        now = self._read()
        if self._begun is None or now is None:
            return None
        wall_s, busy_s, own_s = (after - before for before, after in zip(self._begun, now, strict=True))
        spare_s = (len(usable_cpus()) - num_usable_cores()) * wall_s
        return max(busy_s - own_s - spare_s, 0.0)

    def stolen_s(self) -> float | None:
        """CPU seconds that a hypervisor or a quota kept from this process so far; None where it is not reported."""
        now_s = stolen_cpu_s(self._stat, self._cpus)
        if now_s is None or self._stolen_before_s is None:
            return None
        return max(now_s - self._stolen_before_s, 0.0)

    def _read(self) -> tuple[float, float, float] | None:
        """The clock, the busy seconds of the processors, and what is not counted."""
        busy_s, own_s = busy_cpu_s(self._stat, self._cpus), self._own_s()
        return None if busy_s is None or own_s is None else (time.monotonic(), busy_s, own_s)


def taken_cores(seconds: float) -> float | None:
    """Number of usable cores that others use, measured for `seconds`; None where the system does not report it.

    This process and its descendants do not count.
    """
    begun, meter = time.monotonic(), LoadMeter(_own_tree_s)
    time.sleep(seconds)
    taken_s = meter.taken_s()
    return None if taken_s is None else taken_s / (time.monotonic() - begun)


def busy_cpu_s(stat: Path = STAT, cpus: frozenset[int] | None = None) -> float | None:
    """Seconds since boot in which these processors, or those that this process may use, were busy or stolen."""
    rows = _rows(stat, cpus)
    return None if rows is None else _seconds(sum(sum(row) - row[3] - row[4] for row in rows))


def stolen_cpu_s(stat: Path = STAT, cpus: frozenset[int] | None = None) -> float | None:
    """Seconds in which these processors were another machine's, or this process's group had used up its CPU quota."""
    rows = _rows(stat, cpus)
    return None if rows is None else _seconds(sum(row[7] for row in rows)) + throttled_s()


def _seconds(ticks: int) -> float:
    return ticks / float(os.sysconf("SC_CLK_TCK"))


def _rows(stat: Path, cpus: frozenset[int] | None) -> list[list[int]] | None:
    """Ticks of the processors by kind: user nice system idle iowait irq softirq steal."""
    try:
        lines = [line.split() for line in stat.read_text().splitlines() if line.startswith("cpu")]
    except OSError:
        return None
    watched = {f"cpu{number}" for number in (usable_cpus() if cpus is None else cpus)}
    # What guests had is part of user already.
    rows = [[int(ticks) for ticks in words[1:9]] for words in lines if words[0] in watched]
    return None if not rows or any(len(row) < 8 for row in rows) else rows


def _own_tree_s() -> float:
    """CPU seconds of this process and its descendants, including ended ones."""
    total_s = 0.0
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        try:
            used = process.cpu_times()
        except psutil.Error:
            continue  # It ended just now.
        total_s += used.user + used.system + used.children_user + used.children_system
    return total_s
