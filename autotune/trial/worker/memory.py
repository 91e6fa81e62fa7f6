"""Peak memory of a trial: the device allocator's where there is one, else the growth of the resident set.

On Linux the kernel records each process's resident peak (VmHWM) and can reset it. A forked child starts with its
parent's peak, so the peak is always reset first and reported as growth since before the model was built: memory of the
interpreter and the framework is not counted.
"""

from __future__ import annotations

from pathlib import Path

import psutil

from autotune.backends.protocol import Backend

_STATUS = Path("/proc/self/status")
_CLEAR_REFS = Path("/proc/self/clear_refs")
_RESET_PEAK = "5"


class PeakMemory:
    """Create it before the model is built; call `restart()` at the start of a stage and `peak_bytes()` at its end."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._start_bytes = psutil.Process().memory_info().rss
        self._resettable = True
        self.restart()

    def restart(self) -> None:
        """Reset the peak to the current use."""
        if self._backend.peak_memory_bytes() is not None:
            self._backend.reset_peak_memory()
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
        peak = _resident_peak_bytes() if self._resettable else None
        return None if peak is None else max(peak - self._start_bytes, 0) + spared_bytes


def _resident_peak_bytes() -> int | None:
    try:
        lines = _STATUS.read_text().splitlines()
    except OSError:
        return None
    peak = next((line for line in lines if line.startswith("VmHWM:")), None)
    return None if peak is None else int(peak.split()[1]) * 1024
