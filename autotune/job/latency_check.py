"""`LatencyCheck`: whether a job's first tuned calls are as fast as promised, and which model is the faster one here.

Some calls of the tuned model are timed. If they are slower than recorded, as many calls are made untuned, since the
machine may be slower as a whole, and the faster of the two stays. What the system counted meanwhile says why they are
slow. No call is made that the job did not ask for.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autotune.backends.protocol import Backend
from autotune.job.fallback import Fallback
from autotune.job.stats import StatsRecorder
from autotune.measure.disturbance import LoadMeter
from autotune.measure.sampling import own_cpu_s, used
from autotune.measure.scatter import SCATTERS, Cause, ProcessState, why_slower

NUM_TIMED = 10
"""Calls that are timed, after the framework's own warm-up."""
MAX_LEFT_OUT = 200
"""Calls with other inputs than the measured ones, or that were made untuned, after which nothing more is timed."""


@dataclass(frozen=True)
class Promise:
    """What was recorded with a config, and how far a job may be from it."""

    latency_s: float
    """Median of a call."""
    margin: float
    """Times the recorded latency that the first calls may take."""
    page_faults: float | None
    """In a call; None: not known, or on a device."""
    keeping_memory: str | None
    """How the job keeps memory in its process; None: nobody knows a way."""
    hint: str
    """What to do where the config is slower than promised."""


class LatencyCheck:
    """The calls of one model while they are timed. The tuned model has the first turn."""

    def __init__(
        self,
        promise: Promise,
        backend: Backend,
        *,
        tuned: Callable[..., Any],
        fallback: Fallback,
        recorder: StatsRecorder,
    ) -> None:
        self.is_over = False
        """The config is kept, or too few calls can be timed."""
        self._promise = promise
        self._backend = backend
        self._tuned = tuned
        self._untuned = fallback.untuned
        self._fallback = fallback
        self._recorder = recorder
        self._is_untuned_turn = False
        self._timing: Timing | None = None
        """Calls of this turn."""
        self._num_left_out = 0
        self._seen: ProcessState | None = None
        """What the tuned calls showed in their turn."""
        self._untuned_s: float | None = None
        """Median of the untuned turn, once there was one."""

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any], counts: Callable[[], bool]) -> Any:
        """The result of the model whose turn it is. `counts` is asked after the call: whether it was one that the
        recorded latency is for."""
        timing = self._timing = self._timing or Timing()
        call = self._untuned if self._is_untuned_turn else self._tuned
        self._backend.synchronise()
        timing.begin()
        result = call(*args, **kwargs)
        self._backend.synchronise()
        if counts():
            timing.end()
        else:
            # A job of other inputs than the measured ones settles too: what was promised is not for them.
            self._num_left_out += 1
            self.is_over = self.is_over or self._num_left_out >= MAX_LEFT_OUT
        if timing.num_calls >= self._backend.warmup_calls + NUM_TIMED:
            self._timing = None
            self._judge(timing.state(NUM_TIMED))
        return result

    def _judge(self, state: ProcessState) -> None:
        """At the end of a turn."""
        if self._is_untuned_turn:
            assert self._seen is not None, "their turn came first"
            self._untuned_s = state.latency_s
            if self._untuned_s < self._seen.latency_s:
                self._is_untuned_turn = False
            else:
                self._keep_the_faster(self._seen, self._untuned_s)
        elif self._recorder.state == "settling":
            self._seen = state
            if state.latency_s <= self._promise.margin * self._promise.latency_s:
                self._keep(state)
            elif self._untuned_s is None:
                # The machine may be slower as a whole than it was then: only the untuned model tells.
                self._is_untuned_turn = True
            else:
                self._keep_the_faster(state, self._untuned_s)

    def _keep(self, tuned: ProcessState) -> None:
        if tuned.latency_s > (1 + SCATTERS) * self._promise.latency_s and self._cause_of(tuned) is Cause.FAULTS:
            seen = f"{tuned.latency_s:.3g} s a call, recorded {self._promise.latency_s:.3g}"
            self._recorder.note("slow", f"slower than promised: {seen}{self._why(tuned)}", logging.INFO)
        self.is_over = True

    def _keep_the_faster(self, tuned: ProcessState, untuned_s: float) -> None:
        recorded_s = self._promise.latency_s
        seen = f"{tuned.latency_s:.3g} s a call, recorded {recorded_s:.3g}; untuned here {untuned_s:.3g}"
        seen += self._why(tuned)
        if untuned_s < tuned.latency_s:
            self._fallback.give_up(f"the tuned model is slower: {seen}", tip=self._promise.hint)
        else:
            self._recorder.note("slow", f"this machine is slower, the tuned model still faster: {seen}", logging.INFO)
            self.is_over = True

    def _cause_of(self, tuned: ProcessState) -> Cause | None:
        """What makes it slower than recorded; None where nothing that is counted does, and on a device."""
        page_faults = self._promise.page_faults
        return None if page_faults is None else why_slower(tuned, self._promise.latency_s, page_faults)

    def _why(self, tuned: ProcessState) -> str:
        """The cause with what to do about it, after a semicolon (docs/timings-differ.md has them); or nothing."""
        match self._cause_of(tuned):
            case Cause.FAULTS:
                faults = f"; {tuned.page_faults:,.0f} page faults a call, recorded {self._promise.page_faults:,.0f}: "
                keeping = self._promise.keeping_memory
                ended_by = "" if keeping is None else f", which {keeping} ends"
                return f"{faults}the C library gives memory back to the system{ended_by}"
            case Cause.OTHERS:
                return f"; other processes used {tuned.others:.2g} cores meanwhile"
            case Cause.STOLEN:
                return f"; a hypervisor or a CPU quota kept {tuned.stolen:.2g} cores from it"
        return ""


class Timing:
    """Some of a job's calls: what each took, and what the system counted from the first to the last of them."""

    def __init__(self) -> None:
        self._load = LoadMeter(own_cpu_s)
        self._before: tuple[float, ...] = ()
        self._calls: list[tuple[float, ...]] = []
        """Seconds of each, of CPU time too; page faults and involuntary switches."""

    @property
    def num_calls(self) -> int:
        return len(self._calls)

    def begin(self) -> None:
        """A call comes."""
        self._before = _counted()

    def end(self) -> None:
        """It is over, and counts."""
        now = _counted()
        self._calls.append(tuple(after - before for after, before in zip(now, self._before, strict=True)))

    def state(self, num_last: int) -> ProcessState:
        """What the last of them say. Cores of others are those of the whole time."""
        took_s, cpu_s, faults, switches = zip(*self._calls[-num_last:], strict=True)
        wall_s, watched_s = sum(took_s), self._load.wall_s()
        taken_s, stolen_s = self._load.taken_s(), self._load.stolen_s()
        return ProcessState(
            latency_s=max(statistics.median(took_s), 1e-9),
            page_faults=statistics.median(faults),
            switches=sum(switches) / max(wall_s, 1e-9),
            cores=max(sum(cpu_s), 0.0) / max(wall_s, 1e-9),
            others=max(taken_s - (stolen_s or 0.0), 0.0) / watched_s if taken_s is not None and watched_s else None,
            stolen=stolen_s / watched_s if stolen_s is not None and watched_s else None,
        )


def _counted() -> tuple[float, ...]:
    return (time.perf_counter(), *(used() or (0.0, 0, 0)))
