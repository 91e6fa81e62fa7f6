"""CPU time that other programs use on the usable cores: the system's busy time minus that of this process.

Time that a hypervisor gave to another machine (steal) counts as used by others. In a container that sees all
processors of the host, only what exceeds the cores beyond the container's quota counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from autotune.environment import num_usable_cores, usable_cpus

STAT = Path("/proc/stat")


class LoadMeter:
    """Counts from its creation. `own_s` returns the CPU seconds that are not counted; None: unknown."""

    def __init__(self, own_s: Callable[[], float | None], stat: Path = STAT) -> None:
        self._own_s, self._stat = own_s, stat
        self._begun = self._read()

    def taken_s(self) -> float | None:
        """CPU seconds that others used on the usable cores so far; None where the system does not report it."""
        now = self._read()
        if self._begun is None or now is None:
            return None
        wall_s, busy_s, own_s = (after - before for before, after in zip(self._begun, now, strict=True))
        spare_s = (len(usable_cpus()) - num_usable_cores()) * wall_s
        return max(busy_s - own_s - spare_s, 0.0)

    def _read(self) -> tuple[float, float, float] | None:
        """The clock, the busy seconds of the usable processors, and this process's own."""
        busy_s, own_s = busy_cpu_s(self._stat), self._own_s()
        return None if busy_s is None or own_s is None else (time.monotonic(), busy_s, own_s)


def taken_cores(seconds: float) -> float | None:
    """Number of usable cores that others use, measured for `seconds`; None where the system does not report it.

    This process and its descendants do not count.
    """
    begun, meter = time.monotonic(), LoadMeter(_own_tree_s)
    time.sleep(seconds)
    taken_s = meter.taken_s()
    return None if taken_s is None else taken_s / (time.monotonic() - begun)


def busy_cpu_s(stat: Path = STAT) -> float | None:
    """Seconds since boot in which the processors that this process may use were busy or stolen."""
    try:
        lines = [line.split() for line in stat.read_text().splitlines() if line.startswith("cpu")]
    except OSError:
        return None
    usable = {f"cpu{number}" for number in usable_cpus()}
    # user nice system idle iowait irq softirq steal; what guests had is part of user already.
    rows = [[int(each) for each in words[1:9]] for words in lines if words[0] in usable]
    if not rows or any(len(row) < 8 for row in rows):
        return None
    ticks = sum(sum(row) - row[3] - row[4] for row in rows)
    return ticks / float(os.sysconf("SC_CLK_TCK"))


def _own_tree_s() -> float:
    """CPU seconds of this process and its descendants, including ended ones."""
    total_s = 0.0
    own = psutil.Process()
    for each in (own, *own.children(recursive=True)):
        try:
            used = each.cpu_times()
        except psutil.Error:
            continue  # It ended just now.
        total_s += used.user + used.system + used.children_user + used.children_system
    return total_s
