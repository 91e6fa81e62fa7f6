"""Memory of the answer: while it compiles, which a job's container must hold once, and what its calls keep."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.answer.content import Fact, Section
from autotune.answer.format import num_bytes

NOTABLE = 1.25
"""So many times what calls need: less than that any limit leaves room for."""


class MemorySection(Section):
    """A line where compiling takes notably more than calls do, and one where growth was bounded."""

    place = 15

    def facts(self) -> Iterator[Fact]:
        best = self.answer.best
        if best is None:
            return
        measured, growth = best.measurement, best.measurement.growth
        if growth is not None:
            is_told = growth.per_1000_calls_bytes > growth.resolution_bytes
            kept = f"{'' if is_told else 'less than '}{num_bytes(growth.at_most_bytes)}"
            yield "growth", f"1,000 calls keep {kept} of memory ({growth.num_calls:,} were made)"
        is_on_cpu = self.answer.manifest.workload.device == "cpu"
        compiling, calls = measured.compile_peak_memory_bytes, measured.peak_memory_bytes
        if is_on_cpu and compiling is not None:
            compiling = max(compiling, measured.compile_host_bytes or 0)
        if measured.diagnosis.compiled is False or compiling is None or calls is None:
            return
        if compiling > NOTABLE * calls:
            yield "compiling", f"needs up to {num_bytes(compiling)} of memory, the calls after it {num_bytes(calls)}"
