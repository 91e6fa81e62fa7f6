"""`Runtime`: a framework on the device that runs a model."""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from autotune.backends.capabilities import Ranks
from autotune.measure.device_state import Instruments
from autotune.measure.measurement import DeviceMemory
from autotune.measure.sampling import Clock
from autotune.workload.workload import Device


@dataclass(frozen=True)
class DeviceReport:
    """What a framework sees on this machine: `devices` it can use, and `notes` on what is missing for others."""

    version: str
    devices: dict[Device, str]
    """Device -> its name as the framework gives it."""
    compilers: dict[str, str]
    """Compilers and runtimes that the framework's backends need -> version or where found."""
    notes: tuple[str, ...] = ()
    shared: dict[Device, str] = field(default_factory=dict)
    """Device -> what keeps it from being a study's alone, in words: other processes, or a mode that lets one in."""


class Runtime(Protocol):
    """The selected device, its clock, its memory and the generators of random numbers."""

    clock: Clock = time.perf_counter
    """What calls are timed with: seconds from any start. It is read after `synchronise`."""

    @property
    def instruments(self) -> Instruments | None:
        """What can be read of the selected accelerator, after `prepare`; None: nothing, or there is none."""
        return None

    def find(self) -> DeviceReport:
        """Look for devices and compilers, quietly: absent hardware is data, not an error."""

    def prepare(self, device: Device, seed: int) -> None:
        """Seed the generators and select the device, before the model exists. Raises MissingDeviceError."""

    def seed(self, seed: int) -> None:
        """Seed the generators that `random_state` tells of, those of the selected device included."""

    def adopt(self, model: Any) -> None:
        """In place of `prepare` in a job: go by the device that the job's own model is on. Raises AutotuneError."""
        return

    def ranks(self) -> Ranks | None:
        """The ranks of the distributed job that this process takes part in now; None: it is alone."""
        return None

    def device_name(self) -> str:
        """The selected device as the framework names it; for the record."""

    def device_uuid(self) -> str | None:
        """What the selected accelerator has alone in the world; None where the framework does not tell."""
        return None

    def lock_benchmarks(self, taken: Callable[[], AbstractContextManager[None]]) -> bool:
        """From now on the compiler times its candidates on the device within such a context. False: it has no way to,
        and compiles as before."""
        return False

    def synchronise(self) -> None:
        """Return when the device has finished all work handed to it so far."""
        return

    def random_state(self) -> bytes:
        """The state of the generators that `prepare` seeds: another one after a call means that it drew from them.

        The same does not mean that nothing was drawn: a model can hold generators of its own.
        """
        return python_random_state()

    def peak_memory_bytes(self, *, restart: bool = False) -> int | None:
        """The peak of the device's allocator; None where there is none (CPU). `restart`: a new peak begins now."""
        return None

    def device_memory(self) -> DeviceMemory | None:
        """What this process has taken of the device's memory at its peak, and what is free now; None where there is no
        device (CPU), or the framework does not tell."""
        return None


def python_random_state() -> bytes:
    """The state of Python's and NumPy's global generators."""
    return pickle.dumps((random.getstate(), np.random.get_state()))
