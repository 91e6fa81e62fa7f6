"""Clocks, power and temperature of a GPU by NVIDIA's management library; nvidia-ml-py is optional (extra `gpu`).

Read only: no clock, limit or mode is ever set. API: https://docs.nvidia.com/deploy/nvml-api/, binding:
https://pypi.org/project/nvidia-ml-py/
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from autotune.measure.device_state import DeviceReading

REASONS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
"""Bits: https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html"""
_COMPUTE_MODES = {0: "default", 1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
_ON_OFF = {0: "off", 1: "on"}


class Nvml:
    """One GPU. What the driver does not tell (a MIG slice, a virtual GPU, another user's) is left out."""

    def __init__(self, library: Any, handle: Any) -> None:
        self._library = library
        self._handle = handle

    @classmethod
    def of(cls, uuid: str | None) -> Nvml | None:
        """The GPU of this UUID, as the driver writes it; without one that it knows, the only one there is. None without
        the library, a driver, or rights, and where it cannot be told which GPU is meant."""
        if importlib.util.find_spec("pynvml") is None:
            return None
        library = importlib.import_module("pynvml")
        try:
            library.nvmlInit()
            if uuid is not None:
                with suppress(library.NVMLError):
                    return cls(library, library.nvmlDeviceGetHandleByUUID(uuid))
            is_only_one = library.nvmlDeviceGetCount() == 1
            return cls(library, library.nvmlDeviceGetHandleByIndex(0)) if is_only_one else None
        except library.NVMLError:
            return None

    def read(self) -> DeviceReading | None:
        """None where not even the clock can be read."""
        library, ask = self._library, self._ask
        clock = ask(library.nvmlDeviceGetClockInfo, library.NVML_CLOCK_SM)
        if clock is None:
            return None
        milliwatts = ask(library.nvmlDeviceGetPowerUsage)
        return DeviceReading(
            sm_clock_mhz=clock,
            memory_clock_mhz=ask(library.nvmlDeviceGetClockInfo, library.NVML_CLOCK_MEM),
            power_w=None if milliwatts is None else milliwatts / 1e3,
            temperature_c=ask(library.nvmlDeviceGetTemperature, library.NVML_TEMPERATURE_GPU),
            num_processes=self._num_processes(),
            reasons=self._reasons(),
        )

    def identity(self) -> dict[str, str]:
        """What decides how fast a GPU of this name is."""
        library, ask = self._library, self._ask
        milliwatts = ask(library.nvmlDeviceGetEnforcedPowerLimit)
        mode = ask(library.nvmlDeviceGetComputeMode)
        mig = ask(library.nvmlDeviceGetMigMode)
        facts = {
            "driver": self._said(library.nvmlSystemGetDriverVersion),
            "power limit": None if milliwatts is None else f"{milliwatts / 1e3:.0f} W",
            "highest SM clock": _mhz(ask(library.nvmlDeviceGetMaxClockInfo, library.NVML_CLOCK_SM)),
            "persistence": _ON_OFF.get(ask(library.nvmlDeviceGetPersistenceMode)),
            "compute mode": None if mode is None else _COMPUTE_MODES.get(mode, str(mode)),
            "MIG": None if mig is None else _ON_OFF.get(mig[0]),
        }
        return {name: fact for name, fact in facts.items() if fact is not None}

    def obstacle(self) -> str | None:
        """Why a study cannot be run on it, in words: confirmations hold several processes on the device at once."""
        mode = self._ask(self._library.nvmlDeviceGetComputeMode)
        return None if mode in (None, 0) else f"compute mode {_COMPUTE_MODES.get(mode, mode)}: a study needs `default`"

    def others(self) -> str | None:
        """The other processes that compute on it, in words; None where there are none, or the driver does not tell.

        In a container the driver's process numbers are the host's, so that this process may be among them; it is not
        while it has computed nothing.
        """
        found = [each for each in self._processes() or () if each.pid != os.getpid()]
        if not found:
            return None
        used = sum(each.usedGpuMemory or 0 for each in found) / 2**30
        return f"{len(found)} other process{'es' if len(found) > 1 else ''} on it, with {used:.1f} GiB"

    def _num_processes(self) -> int | None:
        found = self._processes()
        return None if found is None else len(found)

    def _processes(self) -> Any:
        # https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html: of compute, not of graphics.
        return self._ask(self._library.nvmlDeviceGetComputeRunningProcesses)

    def _reasons(self) -> tuple[str, ...]:
        # Renamed in driver 535; older bindings have the old name alone.
        names = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
        ask = next((getattr(self._library, name) for name in names if hasattr(self._library, name)), None)
        bits = None if ask is None else self._ask(ask)
        return () if bits is None else tuple(word for bit, word in REASONS.items() if bits & bit)

    def _said(self, ask: Callable[[], Any]) -> str | None:
        """Bytes in bindings before 11.515."""
        with suppress(self._library.NVMLError):
            said = ask()
            return said.decode() if isinstance(said, bytes) else str(said)
        return None

    def _ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        with suppress(self._library.NVMLError):
            return question(self._handle, *arguments)
        return None


def _mhz(clock: int | None) -> str | None:
    return None if clock is None else f"{clock} MHz"
