"""`Instruments` of a CUDA device: events for its own clock, a buffer that fills its L2 cache, and NVML beside it.

Events: https://docs.pytorch.org/docs/stable/generated/torch.cuda.Event.html. The buffer is larger than any L2 there is,
as in Triton's do_bench: https://triton-lang.org/main/python-api/generated/triton.testing.do_bench.html
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from autotune.backends.torch.nvml import Nvml
from autotune.measure.device_state import DeviceReading

_FLUSH_BYTES = 256 * 2**20


class CudaInstruments:
    """See `Instruments`. `cuda` is `torch.cuda`."""

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        self._nvml = Nvml.of(cuda_uuid(cuda))
        self._buffer: torch.Tensor | None = None
        self._identity: dict[str, str] | None = None

    def identity(self) -> dict[str, str]:
        if self._identity is None:
            own = self._cuda.get_device_properties(self._cuda.current_device())
            facts = {
                "compute capability": f"{own.major}.{own.minor}",
                "multiprocessors": str(own.multi_processor_count),
                "memory": f"{own.total_memory / 2**30:.0f} GiB",
                "CUDA": torch.version.cuda or torch.version.hip,
                "cuDNN": _cudnn(),
            }
            known = {name: fact for name, fact in facts.items() if fact is not None}
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


def _cudnn() -> str | None:
    version = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return None if version is None else str(version)


def cuda_uuid(cuda: Any) -> str | None:
    """As NVML writes it: CUDA may number its devices in another order, and hide some."""
    uuid = getattr(cuda.get_device_properties(cuda.current_device()), "uuid", None)
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
