"""`Instruments` of a CUDA device: events for its own clock, a buffer that fills its L2 cache, NVML beside it;
and what a device's allocator holds.

Events: https://docs.pytorch.org/docs/stable/generated/torch.cuda.Event.html. The buffer is larger than any L2 there is,
as in Triton's do_bench: https://triton-lang.org/main/python-api/generated/triton.testing.do_bench.html
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any

import torch

from autotune.command_line import command
from autotune.errors import MissingDeviceError
from autotune.measure.device_state import DeviceReading
from autotune.measure.measurement import DeviceMemory
from autotune.workload.workload import Device

_FLUSH_BYTES = 256 * 2**20
CONTEXT_BYTES = 2**29
"""What the driver's context takes in each process, which no allocator tells of: 300 to 500 MB."""


ASKS_NVML = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""So torch tells whether there is a GPU without initialising the driver:
https://docs.pytorch.org/docs/stable/notes/multiprocessing.html#poison-fork-in-multiprocessing"""


def require_found(device: Device, name: str) -> None:
    """Raises MissingDeviceError where torch finds no such device, which it calls so. Begins no driver of a GPU, which
    takes seconds, and which a process that only reads what a model declares has no use for; nor does what asks later,
    such as torch's tensors without data."""
    os.environ.update(ASKS_NVML)
    if not torch.get_device_module(name).is_available():
        raise MissingDeviceError(f"torch {torch.__version__} finds no {device}", tip=f"run `{command('doctor')}`")


class CudaInstruments:
    """See `Instruments`. `cuda` is `torch.cuda`."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._nvml = Nvml.of(cuda_uuid(cuda))
        self._buffer: torch.Tensor | None = None
        self._identity: dict[str, str] | None = None

    @classmethod
    @functools.cache
    def own(cls) -> CudaInstruments:
        """Those of this process's device."""
        return cls(torch.cuda)

    def identity(self) -> dict[str, str]:
        if self._identity is None:
            own = self._cuda.get_device_properties(self._cuda.current_device())
            facts = {
                "compute capability": f"{own.major}.{own.minor}",
                "multiprocessors": str(own.multi_processor_count),
                "memory": f"{own.total_memory / 2**30:.0f} GiB",
                "CUDA": torch.version.cuda or torch.version.hip,
                "cuDNN": torch.backends.cudnn.version(),  # type: ignore[no-untyped-call]
            }
            known = {name: str(fact) for name, fact in facts.items() if fact is not None}
            self._identity = {**known, **({} if self._nvml is None else self._nvml.identity())}
        return self._identity

    def read(self) -> DeviceReading | None:
        return None if self._nvml is None else self._nvml.read()

    def flush_cache(self) -> None:
        if self._buffer is None:
            self._buffer = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device="cuda")
        self._buffer.zero_()
        self._cuda.synchronize()

    def device_s(self, call: Callable[[], object]) -> float:
        begin, end = (self._cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        # Waits for this event alone; `elapsed_time` (milliseconds) raises before both have happened.
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3


def others_on_gpu(cuda: Any) -> str | None:
    """What keeps the GPU from being this study's alone, in words: other processes, and a mode in which only one may use
    it. Asked before anything is computed there."""
    nvml = Nvml.of(cuda_uuid(cuda))
    return None if nvml is None else "; ".join(filter(None, [nvml.obstacle(), nvml.others()])) or None


def cuda_uuid(cuda: Any) -> str | None:
    """As NVML writes it: CUDA may number its devices in another order, and hide some. A MIG slice is made visible by
    its own UUID alone, and CUDA may tell that of the whole card in its place."""
    number: int = cuda.current_device()
    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if number < len(visible) and visible[number].startswith("MIG-"):
        return visible[number]
    uuid = getattr(cuda.get_device_properties(number), "uuid", None)
    return None if uuid is None else f"GPU-{uuid}"


def lock_cpu_benchmarks(taken: Callable[[], AbstractContextManager[None]]) -> bool:
    """Inductor takes this context around each of its benchmarks on a CPU. It has no hook for it: its own class is
    changed, in the trial's process."""
    try:
        from torch._inductor.runtime.benchmarking import Benchmarker
    except ImportError:
        return False
    benchmark = getattr(Benchmarker, "benchmark_cpu", None)
    if benchmark is None:
        return False

    @functools.wraps(benchmark)
    def alone(*args: Any, **kwargs: Any) -> Any:
        with taken():
            return benchmark(*args, **kwargs)

    Benchmarker.benchmark_cpu = alone  # type: ignore[method-assign]
    return True


def lock_gpu_benchmarks(taken: Callable[[], AbstractContextManager[None]]) -> bool:
    """Inductor takes this context around each of its benchmarks on a GPU, from torch 2.13 on."""
    try:
        from torch._inductor.runtime.benchmarking import set_gpu_benchmark_lock_context
    except ImportError:
        return False
    set_gpu_benchmark_lock_context(taken)
    return True


# Clocks, power and temperature of a GPU by NVIDIA's management library; nvidia-ml-py is optional (extra `gpu`).
#
# Read only: no clock, limit or mode is ever set. API: https://docs.nvidia.com/deploy/nvml-api/, binding:
# https://pypi.org/project/nvidia-ml-py/

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
        milliwatts, processes = ask(library.nvmlDeviceGetPowerUsage), self._processes()
        return DeviceReading(
            sm_clock_mhz=clock,
            memory_clock_mhz=ask(library.nvmlDeviceGetClockInfo, library.NVML_CLOCK_MEM),
            power_w=None if milliwatts is None else milliwatts / 1e3,
            temperature_c=ask(library.nvmlDeviceGetTemperature, library.NVML_TEMPERATURE_GPU),
            num_processes=None if processes is None else len(processes),
            reasons=self._reasons(),
        )

    def identity(self) -> dict[str, str]:
        """What decides how fast a GPU of this name is."""
        library, ask = self._library, self._ask
        milliwatts = ask(library.nvmlDeviceGetEnforcedPowerLimit)
        mode = ask(library.nvmlDeviceGetComputeMode)
        mig = ask(library.nvmlDeviceGetMigMode)
        clock = ask(library.nvmlDeviceGetMaxClockInfo, library.NVML_CLOCK_SM)
        facts = {
            "driver": self._said(library.nvmlSystemGetDriverVersion),
            "power limit": None if milliwatts is None else f"{milliwatts / 1e3:.0f} W",
            "highest SM clock": None if clock is None else f"{clock} MHz",
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
        found = [process for process in self._processes() or () if process.pid != os.getpid()]
        if not found:
            return None
        used = sum(process.usedGpuMemory or 0 for process in found) / 2**30
        return f"{len(found)} other process{'es' if len(found) > 1 else ''} on it, with {used:.1f} GiB"

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


# What a model holds of a device's memory: what the allocator has handed out, and what captured graphs keep.
#
# A captured graph (CUDA graphs; NPU graphs alike) has a private pool. Between its recording and the end of the
# process the pool is not free, but most of it does not count as allocated: of a training step that held 15 GiB,
# `max_memory_allocated` told 0.65 (https://github.com/pytorch/pytorch/issues/121932). So what lies idle in private
# pools is added. The snapshot has it in all supported releases; `memory_stats` tells it since 2.13 only.

_GENERAL_POOL = (0, 0)


def peak_bytes(device: Any) -> int:
    """The peak since the allocator's last reset. `device` is the module of the device: `torch.cuda`, `torch.npu`."""
    return int(device.max_memory_allocated()) + idle_pool_bytes(device)


def memory_of(device: Any) -> DeviceMemory | None:
    """What the process has of the device at its peak, and what is free. None where the device does not tell."""
    tell = getattr(device, "mem_get_info", None)
    if not callable(tell):
        return None
    free_bytes, _ = tell()
    own_bytes = max(int(device.max_memory_reserved()), int(device.memory_reserved())) + CONTEXT_BYTES
    return DeviceMemory(own_bytes=own_bytes, free_bytes=int(free_bytes))


def idle_pool_bytes(device: Any) -> int:
    """What private pools have taken from the device and not handed out; 0 where the device does not list its memory."""
    snapshot = getattr(device, "memory_snapshot", None)
    segments = snapshot() if callable(snapshot) else ()
    return sum(
        int(segment["total_size"]) - int(segment["allocated_size"])
        for segment in segments
        if tuple(segment.get("segment_pool_id", _GENERAL_POOL)) != _GENERAL_POOL
    )
