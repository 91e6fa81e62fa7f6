"""What a model holds of a device's memory: what the allocator has handed out, and what captured graphs keep.

A captured graph (CUDA graphs; NPU graphs alike) has a private pool. Between its recording and the end of the process
the pool is not free, but most of it does not count as allocated: of a training step that held 15 GiB,
`max_memory_allocated` told 0.65 (https://github.com/pytorch/pytorch/issues/121932). So what lies idle in private pools
is added. The snapshot has it in all supported releases; `memory_stats` tells it since 2.13 only.
"""

from __future__ import annotations

from typing import Any

_GENERAL_POOL = (0, 0)


def peak_bytes(device: Any) -> int:
    """The peak since the allocator's last reset. `device` is the module of the device: `torch.cuda`, `torch.npu`."""
    return int(device.max_memory_allocated()) + idle_pool_bytes(device)


def held_bytes(device: Any) -> int:
    """What is held now."""
    return int(device.memory_allocated()) + idle_pool_bytes(device)


def idle_pool_bytes(device: Any) -> int:
    """What private pools have taken from the device and not handed out; 0 where the device does not list its memory."""
    snapshot = getattr(device, "memory_snapshot", None)
    segments = snapshot() if callable(snapshot) else ()
    return sum(
        int(each["total_size"]) - int(each["allocated_size"])
        for each in segments
        if tuple(each.get("segment_pool_id", _GENERAL_POOL)) != _GENERAL_POOL
    )
