"""`PaidBack`: what the steps of a tuned training take, and after which of them compiling is paid back, said once."""

from __future__ import annotations

import logging
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

from autotune.backends.registry import load_backend
from autotune.job.policy import LoadedFile
from autotune.job.stats import recorder_of
from autotune.tuned.tuned_config import TunedConfig

_log = logging.getLogger("autotune")
STEPS_OF_COMPILING, STEPS_TIMED = 5, 15
"""The first steps of a run, in which models compile, and those after them whose median is told."""


class PaidBack:
    """Times the steps of one trainer."""

    def __init__(self, tuned: TunedConfig) -> None:
        self._framework = tuned.framework
        num_batches = tuned.workload.arguments.get("accumulate")
        self._num_batches = num_batches if isinstance(num_batches, int) and num_batches > 0 else 1
        """Those of the study's step: the model's function of a watched job has an argument of this name."""
        self._saved_s = tuned.evidence.untuned.latency_s.p50 - tuned.evidence.best.latency_s.p50
        self._durations: list[float] = []
        self._begun = 0.0

    @classmethod
    def of(cls, loaded: LoadedFile) -> PaidBack | None:
        """None for a file by which nothing is compiled."""
        return None if loaded.answer is None or loaded.answer.is_untuned else cls(loaded.answer)

    def begin(self) -> None:
        """Before a step."""
        self._begun = time.perf_counter()

    def end(self, model: Any, num_steps: Callable[[], float], num_batches: int = 1) -> None:
        """After a step of so many batches, one of `num_steps` (see `told`). One rank alone says it, and only where the
        calls of the model are tuned."""
        if len(self._durations) == STEPS_OF_COMPILING + STEPS_TIMED:
            return
        self._durations.append(time.perf_counter() - self._begun)
        if len(self._durations) < STEPS_OF_COMPILING + STEPS_TIMED:
            return
        saved_s = self._saved_s * num_batches / self._num_batches
        ranks, recorder = load_backend(self._framework).ranks(), recorder_of(model)
        if (ranks is None or ranks.rank == 0) and recorder is not None and recorder.stats().state == "tuned":
            _log.info("autotune: %s", told(self._durations, saved_s, num_steps()))


def told(durations: list[float], saved_s: float, num_steps: float) -> str:
    """What steps of a trainer took (seconds, in order), of which each saves so many seconds by the study, and after
    which of all its steps compiling is paid back. `num_steps`: infinite, or below 0, where nobody knows."""
    step_s = statistics.median(durations[STEPS_OF_COMPILING:])
    compiling_s = max(sum(durations[:STEPS_OF_COMPILING]) - STEPS_OF_COMPILING * step_s, 0.0)
    took = f"a step takes {1e3 * step_s:.3g} ms"
    if saved_s <= 0:
        return f"{took}, by the study no less than untuned: not worth it"
    took += f", untuned {1e3 * (step_s + saved_s):.3g} ms by the study"
    needed = math.ceil(compiling_s / saved_s)
    paid = f"{took}; compiling took {compiling_s:.3g} s, paid back at step {needed:,}"
    if not 0 < num_steps < math.inf:
        return paid
    return f"{paid} of {num_steps:,}" + ("" if needed <= num_steps else f": not worth it for {num_steps:,} steps")
