"""Where the time of a call goes, by torch.profiler (https://docs.pytorch.org/docs/2.13/profiler.html)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity

from autotune.profile import Profile

_FUSED = "CompiledFxGraph"
_HASHED = re.compile(r"(?:## Call )?(CompiledFxGraph) \w+(?: ##)?|(Torch-Compiled Region)(?:: [\d/]+)?")
"""What has another name in each process or for each graph: inductor's graphs, and what is around them."""


def profile(call: Callable[[], None], num_calls: int, trace: Path, device: str) -> Profile:
    """On a CUDA device the times are those of its kernels, elsewhere those of the host."""
    on_gpu = device == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(num_calls):
            call()
    profiler.export_chrome_trace(str(trace))
    times: dict[str, tuple[float, int]] = {}
    for event in profiler.key_averages():
        self_us = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if self_us <= 0:
            continue
        name = operator_name(event.key)
        self_s, count = times.get(name, (0.0, 0))
        times[name] = (self_s + self_us * 1e-6, count + event.count)
    return Profile.of(times, num_calls, _note(device, fused=_FUSED in times))


def operator_name(key: str) -> str:
    """The profiler's name of an event, the same in every process."""
    named = _HASHED.fullmatch(key)
    return key if named is None else next(each for each in named.groups() if each)


def _note(device: str, *, fused: bool) -> str | None:
    if device not in ("cpu", "cuda"):
        return f"time on the host: kernels of {device} are not seen"
    if device == "cpu" and fused:
        return f"on a CPU, inductor's fused kernels count as {_FUSED}: the profiler does not see them one by one"
    return None
