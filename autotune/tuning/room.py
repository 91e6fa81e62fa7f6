"""`Room`: memory for processes of a study's model, as it is planned with before the first block."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.environment import available_memory_bytes
from autotune.measure.measurement import Measurement
from autotune.study.study import Study

PROCESS_BYTES = 2**28
"""What a process on a CPU takes beside the growth that is measured: the interpreter and the framework, so far as forks
do not share them."""
BLOCK = 2
"""Processes of the smallest block."""


@dataclass(frozen=True)
class Room:
    """What one process of the untuned model needs, and what there is for all that live at a time, in bytes."""

    needs_bytes: int
    bytes_: int

    @property
    def num_processes(self) -> int:
        """That may live at a time; one that has run once may run again."""
        return max(self.bytes_ // max(self.needs_bytes, 1), 1)

    @property
    def holds_block(self) -> bool:
        """Two processes fit side by side."""
        return self.num_processes >= BLOCK

    def __str__(self) -> str:
        return f"a block of two needs {_gib(BLOCK * self.needs_bytes)} GiB of {_gib(self.bytes_)}"


def room_for(study: Study, *, is_here: bool) -> Room | None:
    """By the untuned model's trial, which must be the only process that is alive. None where it does not tell: on a
    device that does not tell what is free, and for the CPU of another machine."""
    untuned = study.untuned_record()
    if untuned is None or not isinstance(untuned.outcome, Measurement):
        return None
    seen = untuned.outcome
    if study.manifest.workload.device != "cpu":
        memory = seen.device_memory
        return None if memory is None else Room(memory.own_bytes, memory.own_bytes + memory.free_bytes)
    peaks = [peak for peak in (seen.peak_memory_bytes, seen.compile_peak_memory_bytes) if peak is not None]
    return Room(PROCESS_BYTES + max(peaks), available_memory_bytes()) if peaks and is_here else None


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.3g}"
