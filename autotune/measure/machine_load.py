"""How much of the usable cores other programs take: the system's own count of busy time, less that of this process.

Time that a hypervisor gave to another machine (steal) counts as taken. In a container that sees all of the host's
processors, others only take what they leave too little of for the container's quota.
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
    """Counts from when it is made. `own_s` gives the CPU seconds of what is not to be counted; None: unknown."""

    def __init__(self, own_s: Callable[[], float | None], stat: Path = STAT) -> None:
        self._own_s, self._stat = own_s, stat
        self._begun = self._read()

    def taken_s(self) -> float | None:
        """CPU seconds of the usable cores that others had so far; None where the system does not tell."""
        now = self._read()
        if self._begun is None or now is None:
            return None
        wall_s, busy_s, own_s = (after - before for before, after in zip(self._begun, now, strict=True))
        spare_s = (len(usable_cpus()) - num_usable_cores()) * wall_s
        return max(busy_s - own_s - spare_s, 0.0)

    def _read(self) -> tuple[float, float, float] | None:
        """The clock, the busy seconds of the usable processors, and the own ones."""
        busy_s, own_s = busy_cpu_s(self._stat), self._own_s()
        return None if busy_s is None or own_s is None else (time.monotonic(), busy_s, own_s)


def taken_cores(seconds: float) -> float | None:
    """How many of the usable cores others take, watched for so long; None where the system does not tell.

    This process and all below it do not count.
    """
    begun, meter = time.monotonic(), LoadMeter(_own_tree_s)
    time.sleep(seconds)
    taken_s = meter.taken_s()
    return None if taken_s is None else taken_s / (time.monotonic() - begun)


def busy_cpu_s(stat: Path = STAT) -> float | None:
    """Seconds that the processors which this process may use were busy or stolen since the system started."""
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
    """CPU seconds of this process and of all below it, those that have ended included."""
    total_s = 0.0
    own = psutil.Process()
    for each in (own, *own.children(recursive=True)):
        try:
            used = each.cpu_times()
        except psutil.Error:
            continue  # It ended just now.
        total_s += used.user + used.system + used.children_user + used.children_system
    return total_s
