"""`DeviceLock`: of all trials on a machine, one at a time is timed on a device, whoever started them. Where the devices
of the machine disturb each other, one at a time is timed on all of them.

The lock is the kernel's own (flock): it ends with the process that has it, however that one ends. Two files: who wants
the device waits in the first one's queue, so that a process that takes turn after turn cannot keep the others out.
"""

from __future__ import annotations

import fcntl
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from autotune.backends.contracts.runtime import Runtime
from autotune.backends.registry import entry_of
from autotune.measure.measurement import Stage
from autotune.measure.sampling import Clock
from autotune.trial.request import TrialRequest
from autotune.trial.worker.stages import StageReporter

FOLDER_VARIABLE = "AUTOTUNE_DEVICE_LOCKS"
"""Folder of the lock files; `off`: no locks."""
OFF = "off"
FOLDER = Path("/tmp")
"""Shared by all users of the machine: `XDG_RUNTIME_DIR` and TMPDIR are another folder for each user or session."""
HOST = "host"
"""Key of all devices of a machine together."""
_LOOK_S = 0.05
"""Between two looks at a lock that another process has: a system call each."""
_VISIBLE_DEVICES = {
    "gpu": ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
    "ascend": ("ASCEND_RT_VISIBLE_DEVICES", "DEVICE_ID"),
}
"""Variables whose first number is that of the device, where the framework tells no UUID."""


class DeviceLock:
    """The lock that one trial takes, for all its turns. `longest_s` is what it waits at most, in all; after that it
    goes on without. `stages` are those that it must not enter without the lock."""

    def __init__(
        self, files: tuple[tuple[Path, Path], ...], longest_s: float, progress: StageReporter, stages: frozenset[Stage]
    ) -> None:
        self._files = files
        self._stages = stages
        self._left_s = longest_s
        self._progress = progress
        self._held = ExitStack()
        self._has_it = False
        self._waited_s = 0.0

    @classmethod
    def of(cls, request: TrialRequest, backend: Runtime, progress: StageReporter) -> DeviceLock:
        """For the device that the backend has selected. A compiler that locks what it times itself compiles the rest
        beside other trials."""
        folder = os.environ.get(FOLDER_VARIABLE) or str(FOLDER)
        keys = {"device": device_key(request, backend), "host": HOST}
        # All trials take them in this order, so that no two wait for each other.
        wanted = [] if folder == OFF else [keys[what] for what in sorted(request.alone_on)]
        names = [re.sub(r"[^\w.-]", "_", key) for key in wanted]
        files = tuple((Path(folder, f"autotune-{name}.queue"), Path(folder, f"autotune-{name}.lock")) for name in names)
        lock = cls(files, request.limits.total, progress, stages_alone(request))
        if Stage.COMPILE in lock._stages and not _picks_in_calls(request) and backend.lock_benchmarks(lock.taken):
            lock._stages -= {Stage.COMPILE}
        return lock

    def enter(self, stage: Stage) -> None:
        """Tell the stage, and have the device before, if the stage needs it for itself."""
        if stage in self._stages:
            self.take()
        self._progress.enter(stage)

    def take(self) -> None:
        """Wait until no other trial has the device. Does nothing where this one has it already."""
        if self._has_it or not self._files:
            return
        try:
            opened = [(self._opened(queue), self._opened(lock)) for queue, lock in self._files]
        except OSError as error:
            print(f"timed without a lock of the device: {error}", file=sys.stderr)
            self._files = ()
            return
        self._has_it = True
        for queue, lock in opened:
            self._take(queue, lock)

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Have the device inside; whoever had it before has it afterwards."""
        had_it = self._has_it
        self.take()
        try:
            yield
        finally:
            if not had_it:
                self.release()

    def without_waits(self, clock: Clock) -> Clock:
        """The clock less the time for which this trial has waited for the device."""
        return lambda: clock() - self._waited_s

    def release(self) -> None:
        """Let others have it."""
        self._held.close()
        self._has_it = False

    def _take(self, queue: int, lock: int) -> None:
        if _is_free(queue) and _is_free(lock):
            fcntl.flock(queue, fcntl.LOCK_UN)
            return
        begun = self._progress.running_s()
        with self._progress.queued():
            self._wait_for(queue)
            self._wait_for(lock)
        self._waited_s += self._progress.running_s() - begun
        fcntl.flock(queue, fcntl.LOCK_UN)

    def _wait_for(self, lock: int) -> None:
        while not _is_free(lock):
            if self._left_s <= 0:
                print("timed beside another trial, which does not let go of the device", file=sys.stderr)
                return
            time.sleep(_LOOK_S)
            self._left_s -= _LOOK_S

    def _opened(self, path: Path) -> int:
        descriptor = _open(path)
        # A process that was forked meanwhile has a copy: only unlocking frees it for certain.
        self._held.callback(os.close, descriptor)
        self._held.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)
        return descriptor


def device_key(request: TrialRequest, backend: Runtime) -> str:
    """Names a device among those of the machine; the CPU is one as a whole."""
    device = request.workload.device
    if device == "cpu":
        return device
    numbers = (os.environ.get(variable, "").partition(",")[0] for variable in _VISIBLE_DEVICES[device])
    return backend.device_uuid() or f"{device}-{next(filter(None, numbers), '0')}"


def stages_alone(request: TrialRequest) -> frozenset[Stage]:
    """The stages, besides the timing, that use an accelerator: its check runs there, and the first call of what times
    candidates. On the CPU they are work that the machine does for others as well."""
    if request.workload.device == "cpu":
        return frozenset()
    entry = entry_of(request.workload.framework)
    picks = entry.picks(request.config) or _picks_in_calls(request)
    return frozenset({Stage.CHECK, Stage.COMPILE} if picks else {Stage.CHECK})


def _picks_in_calls(request: TrialRequest) -> bool:
    """A library times its candidates in the model's first call, where no compiler can lock them."""
    return any(
        request.config.matches(settings) for settings in entry_of(request.workload.framework).picks_in_each_process
    )


def _is_free(lock: int) -> bool:
    """Whether nobody else had it; it is this process's then."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(path: Path) -> int:
    """To read: that suffices for a lock, so that a file of another user serves as well. Raises OSError."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    # With O_CREAT the kernel refuses a file of another user in /tmp (fs.protected_regular).
    with suppress(FileNotFoundError):
        return os.open(path, flags)
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return os.open(path, flags)
    os.fchmod(descriptor, 0o644)  # Whatever the umask.
    return descriptor
