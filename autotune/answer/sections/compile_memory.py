"""Memory while the answer compiles: what a job's container must hold once, where its calls need less."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.answer.content import Fact, Section
from autotune.answer.format import num_bytes

NOTABLE = 1.25
"""So many times what calls need: less than that any limit leaves room for."""


class CompileMemorySection(Section):
    """A line where compiling takes notably more than calls do."""

    place = 15

    def facts(self) -> Iterator[Fact]:
        best = self.answer.best
        if best is None or best.measurement.diagnosis.compiled is False:
            return
        measured = best.measurement
        compiling, calls = measured.compile_peak_memory_bytes, measured.peak_memory_bytes
        if compiling is not None and calls is not None and compiling > NOTABLE * calls:
            yield "compiling", f"needs up to {num_bytes(compiling)} of memory, the calls after it {num_bytes(calls)}"
