"""`Lease`: who runs a trial, so that the next start can tell a dead run from a living one, without a heartbeat."""

from __future__ import annotations

import os
import time

import psutil

from autotune import environment
from autotune.schema import Record


class Lease(Record):
    """A process, identified beyond its number, and the moment after which it cannot be alive."""

    host: str
    boot_id: str
    pid: int
    pid_started: float
    deadline: float
    """Seconds since the epoch after which no run of this trial can be alive."""

    @classmethod
    def of_this_process(cls, longest_s: float) -> Lease:
        return cls(
            host=environment.hostname(),
            boot_id=environment.boot_id(),
            pid=os.getpid(),
            pid_started=psutil.Process().create_time(),
            deadline=time.time() + longest_s,
        )

    def is_dead(self, *, hosts_locked_out: bool = False) -> bool:
        """`hosts_locked_out`: the caller has a lock that no process of another machine can hold by now."""
        if self.host != environment.hostname():
            return hosts_locked_out or time.time() > self.deadline
        if self.boot_id != environment.boot_id():
            return True
        try:
            process = psutil.Process(self.pid)
            # A zombie is dead: its parent, a container's first process say, has not asked for its status.
            is_zombie = process.status() == psutil.STATUS_ZOMBIE
            return is_zombie or abs(process.create_time() - self.pid_started) > 1.0
        except psutil.NoSuchProcess:
            return True
