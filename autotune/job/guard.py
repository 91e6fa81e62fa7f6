"""`Guard`: takes a job's calls, watches the first ones, and goes back to the untuned model if that is better.

The first call may find that the config does not compile here, or is not for these inputs; it can be checked against the
untuned model, and so can a later one now and then (`later_calls`). The next calls are timed, where the recorded latency
is comparable: if they are slower than recorded, as many calls are made untuned, and the faster of the two stays; what
the system counted meanwhile says why they are slow. No call is made that the job did not ask for, except for the check.
What happens to a call that fails: see `fallback`.
Before all that, a model whose compiled calls may lose what an untuned one leaves behind (MindSpore) is called untuned
once or twice: see `Watch`.

Rule of this file: going back is one assignment.
"""

from __future__ import annotations

import logging
import os
import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from autotune.apply.warm_start import WarmStart
from autotune.backends.contracts.compiler import EffectsOf
from autotune.backends.protocol import Backend
from autotune.environment import num_usable_cores, threads_said
from autotune.errors import InputError, UnsuitableCallError, marked
from autotune.job.admission import Admission, Refusal
from autotune.job.fallback import Fallback, MismatchError
from autotune.job.later_calls import LaterCalls
from autotune.job.output_check import CheckedCall, OutputCheck
from autotune.job.stats import StatsRecorder
from autotune.measure.disturbance import LoadMeter
from autotune.measure.sampling import own_cpu_s, used
from autotune.measure.scatter import SCATTERS, Cause, ProcessState, why_slower
from autotune.workload.arguments import Arguments
from autotune.workload.workload import STREAM_CALLS

NUM_TIMED = 10
"""Calls that are timed, after the framework's own warm-up."""
FORKED = (
    "this process was forked from one whose model had computed with up to {} threads, which a fork lacks: if the next "
    "call hangs, start the parent with OMP_NUM_THREADS=1, or call the model in its children alone"
)
MAX_LEFT_OUT = 200
"""Calls with other inputs than the measured ones, or that were made untuned, after which nothing more is timed."""


@dataclass(frozen=True)
class GuardTerms:
    """What was agreed on for one loaded model."""

    admission: Admission
    """Which calls are tuned."""
    hint: str
    """What to do where the config is slower than promised."""
    hint_of_misfits: str
    """What to do about calls that it is not for."""
    check: OutputCheck | None
    """Compares the first call's outputs with the untuned model's; None: they are not checked."""
    num_compiled: Callable[[], object] | None
    """Another value once something was compiled, for which a call is compared as the first one is; None: no later call
    is."""
    latency_s: float | None
    """Recorded median latency; None: the job's calls cannot be compared with it, as under traffic."""
    margin: float
    """Times the recorded latency that the first calls may take."""
    outsider: Callable[[], str | None] = lambda: None
    """Why a first call is not tuned, whatever its inputs: the process joined a group after `apply()`, and the ranks of
    that group have agreed on nothing."""
    page_faults: float | None = None
    """In a call, recorded with the latency; None: not known, or on a device."""
    keeping_memory: str | None = None
    """How the job keeps memory in its process; None: nobody knows a way."""
    check_share: float = 0.0
    """Share of the time of all calls that comparing later ones may take; 0: none is compared."""
    num_of_shapes: Callable[[], object] | None = None
    """Another value once something was compiled, where many shapes are compiled one after the other: exported caches
    are for all of them. None: for the first call alone."""
    effects: EffectsOf | None = None
    """How to look at a call that may leave behind what a tuned one would not; None: there is nothing to look for."""


class Guard:
    """A callable: what the job's calls go to."""

    def __init__(
        self,
        backend: Backend,
        tuned: Callable[..., Any],
        fallback: Fallback,
        terms: GuardTerms,
        recorder: StatsRecorder,
        *,
        warm_start: WarmStart | None = None,
    ) -> None:
        """`warm_start`: caches for the first tuned calls."""
        self._tuned = tuned if warm_start is None else WarmCalls(self, tuned, warm_start)
        self._untuned = fallback.untuned
        self._refusal = terms.admission.refusal
        self._backend = backend
        self._fallback = fallback
        self._terms = terms
        self._recorder = recorder
        self._timing: Timing | None = None
        """Calls that are timed now."""
        self._num_left_out = 0
        self._has_misfits = False
        """Whether it was said that some calls are not what the config is for."""
        self._fell_back = False
        """The last call while settling was made untuned, since the tuned model refused it or failed."""
        self._seen: ProcessState | None = None
        """What the tuned calls showed in their turn."""
        self._untuned_s: float | None = None
        """Median of the untuned turn, once there was one."""
        self._can_compare = terms.check is not None
        """Later calls are compared: a repeated call changes nothing."""
        self._num_settling = 0
        """Calls so far."""
        self._call: Callable[..., Any] = self._settling
        self._watch = None if terms.effects is None else Watch(terms.effects, fallback)
        self._phase: _Phase = self._first if self._watch is None else self._watched
        fallback.leave_tuned = partial(self._send_calls_to, self._untuned)
        fallback.forked = partial(_warn_in_child, self)
        recorder.state = "settling"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def _settling(self, *args: Any, **kwargs: Any) -> Any:
        """One call at a time, as long as each may change what the next one does."""
        with self._fallback.lock:
            self._num_settling += 1
            return self._phase(args, kwargs)

    def _watched(self, args: _Args, kwargs: _Kwargs) -> Any:
        """Untuned calls, until it is known that tuned ones lose nothing of what they leave behind."""
        assert self._watch is not None
        result = self._watch.call(self._untuned, *args, **kwargs)
        if self._is_settling and self._watch.is_over:
            self._phase = self._first
        return result

    def _first(self, args: _Args, kwargs: _Kwargs) -> Any:
        """Calls up to the first that the config is for."""
        self._recorder.note_first_call()
        outsider = self._terms.outsider()
        if outsider is not None:
            self._fallback.give_up(outsider)
            return self._untuned(*args, **kwargs)
        refusal = self._refusal(args, kwargs)
        if refusal is not None:
            return self._untuned_for(refusal, args, kwargs)
        misfit = self._terms.admission.misfit(args, kwargs)
        if misfit is not None:
            self._note_misfit(f"{misfit}; applied anyway")
        self._fell_back = False
        check = None if self._terms.check is None else self._terms.check.begin(args, kwargs)
        tuned = self._settled if self._watch is None else partial(self._watch.call_tuned, self._settled)
        result = tuned(*args, **kwargs)
        if self._fell_back:
            return result
        if self._is_settling and check is not None:
            finding = check.finding(result, lambda: self._untuned(*args, **kwargs))
            if finding.is_open:
                return finding.result
            self._can_compare = self._can_compare and finding.unchecked is None
            result = self._checked(finding, "the first outputs")
        if self._is_settling:
            if misfit is None and self._terms.latency_s is not None:
                self._phase = self._time_tuned
            else:
                self._settle()
        return result

    def _untuned_for(self, refusal: Refusal, args: _Args, kwargs: _Kwargs) -> Any:
        """The untuned model's result or error, for a call that is not for tuned code."""
        self._fell_back = True
        if refusal.misfit is not None:
            if self._fallback.raises:
                raise MismatchError(refusal.misfit, tip=self._terms.hint_of_misfits)
            said = f"{refusal.misfit}: such calls stay untuned"
            self._note_misfit("; ".join(filter(None, [said, self._terms.hint_of_misfits])))
        return refusal.answered_by(self._untuned, args, kwargs)

    def _note_misfit(self, message: str) -> None:
        """Once: a job with other inputs has them in each call."""
        if not self._has_misfits:
            self._has_misfits = True
            self._recorder.note("mismatch", message)

    def _checked(self, finding: CheckedCall, outputs: str) -> Any:
        """The result if it is right or cannot be checked, else the untuned model's."""
        if finding.unchecked is not None:
            self._recorder.note_once("mismatch", f"{finding.unchecked}: {outputs} cannot be checked")
        if finding.wrong is not None:
            self._fallback.give_up(f"{outputs} are wrong: {finding.wrong}")
        return finding.result

    def _time_tuned(self, args: _Args, kwargs: _Kwargs) -> Any:
        result, state = self._timed(self._tuned_call, args, kwargs)
        if self._is_settling and state is not None:
            self._judge(state)
        return result

    def _judge(self, tuned: ProcessState) -> None:
        assert self._terms.latency_s is not None
        self._seen = tuned
        if tuned.latency_s <= self._terms.margin * self._terms.latency_s:
            if tuned.latency_s > (1 + SCATTERS) * self._terms.latency_s and self._cause_of(tuned) is Cause.FAULTS:
                seen = f"{tuned.latency_s:.3g} s a call, recorded {self._terms.latency_s:.3g}"
                self._recorder.note("slow", f"slower than promised: {seen}{self._why(tuned)}", logging.INFO)
            self._settle()
        elif self._untuned_s is None:
            # The machine may be slower as a whole than it was then: only the untuned model tells.
            self._phase = self._time_untuned
        else:
            self._keep_the_faster(tuned, self._untuned_s)

    def _time_untuned(self, args: _Args, kwargs: _Kwargs) -> Any:
        result, state = self._timed(self._untuned, args, kwargs)
        if state is None:
            return result
        assert self._seen is not None, "their turn came first"
        self._untuned_s = state.latency_s
        if self._untuned_s < self._seen.latency_s:
            self._phase = self._time_tuned
        else:
            self._keep_the_faster(self._seen, self._untuned_s)
        return result

    def _keep_the_faster(self, tuned: ProcessState, untuned_s: float) -> None:
        assert self._terms.latency_s is not None
        seen = f"{tuned.latency_s:.3g} s a call, recorded {self._terms.latency_s:.3g}; untuned here {untuned_s:.3g}"
        seen += self._why(tuned)
        if untuned_s < tuned.latency_s:
            self._fallback.give_up(f"the tuned model is slower: {seen}", tip=self._terms.hint)
        else:
            self._recorder.note("slow", f"this machine is slower, the tuned model still faster: {seen}", logging.INFO)
            self._settle()

    def _cause_of(self, tuned: ProcessState) -> Cause | None:
        """What makes it slower than recorded; None where nothing that is counted does, and on a device."""
        latency_s, page_faults = self._terms.latency_s, self._terms.page_faults
        return None if latency_s is None or page_faults is None else why_slower(tuned, latency_s, page_faults)

    def _why(self, tuned: ProcessState) -> str:
        """The cause with what to do about it, after a semicolon (docs/measurement.md has the table); or nothing."""
        match self._cause_of(tuned):
            case Cause.FAULTS:
                faults = f"; {tuned.page_faults:,.0f} page faults a call, recorded {self._terms.page_faults:,.0f}: "
                keeping = self._terms.keeping_memory
                ended_by = "" if keeping is None else f", which {keeping} ends"
                return f"{faults}the C library gives memory back to the system{ended_by}"
            case Cause.OTHERS:
                return f"; other processes used {tuned.others:.2g} cores meanwhile"
            case Cause.STOLEN:
                return f"; a hypervisor or a CPU quota kept {tuned.stolen:.2g} cores from it"
        return ""

    def _timed(self, call: Callable[..., Any], args: _Args, kwargs: _Kwargs) -> tuple[Any, ProcessState | None]:
        """The call's result, and what the calls say once enough are timed. Those with other inputs are not counted."""
        fits = self._terms.admission.misfit(args, kwargs) is None
        self._fell_back = False
        timing = self._timing = self._timing or Timing()
        self._backend.synchronise()
        timing.begin()
        result = call(*args, **kwargs)
        self._backend.synchronise()
        if fits and not self._fell_back:
            timing.end()
        else:
            # A job of other inputs than the measured ones settles too: what was promised is not for them.
            self._num_left_out += 1
            if self._is_settling and self._num_left_out >= MAX_LEFT_OUT:
                self._settle()
        if timing.num_calls < self._backend.warmup_calls + NUM_TIMED:
            return result, None
        self._timing = None
        return result, timing.state(NUM_TIMED)

    @property
    def _is_settling(self) -> bool:
        return self._recorder.state == "settling"

    def _settle(self) -> None:
        self._recorder.state = "tuned"
        call, check, share = self._tuned_call, self._terms.check, self._terms.check_share
        if self._can_compare and check is not None and share:
            later = LaterCalls(check, share, call, self._fallback, self._recorder)
            later.number += self._num_settling
            call = later.call
        self._send_calls_to(call)

    @property
    def _tuned_call(self) -> Callable[..., Any]:
        """What tuned calls go to after the first one."""
        return self._compared if self._can_compare and self._terms.num_compiled is not None else self._settled

    def _settled(self, *args: Any, **kwargs: Any) -> Any:
        refusal = self._refusal(args, kwargs)
        if refusal is not None:
            return self._untuned_for(refusal, args, kwargs)
        try:
            return self._tuned(*args, **kwargs)
        except Exception as error:
            self._fell_back = True
            return self._fallback.result_after(error, "the tuned model", args, kwargs)

    def _compared(self, *args: Any, **kwargs: Any) -> Any:
        """A tuned call whose outputs are compared if something was compiled in it, by this thread or meanwhile."""
        check, num_compiled = self._terms.check, self._terms.num_compiled
        assert check is not None
        assert num_compiled is not None
        before = num_compiled()
        result = self._settled(*args, **kwargs)
        if num_compiled() == before or self._fallback.is_over:
            return result
        finding = check.finding_after(result, self._settled, self._untuned, Arguments(args, kwargs))
        return self._checked(finding, "outputs of a call in which something was compiled")

    def _send_calls_to(self, call: Callable[..., Any]) -> None:
        self._call = call
        # For threads that wait for their turn.
        self._phase = lambda args, kwargs: call(*args, **kwargs)


_Args = tuple[Any, ...]
_Kwargs = dict[str, Any]
_Phase = Callable[[_Args, _Kwargs], Any]


def _warn_in_child(guard: Guard) -> None:
    """A child process lacks the threads of its parent's OpenMP. GNU's waits for them without end, in compiled code and
    in the framework's own, so it is said before the next call."""
    num_threads, call = threads_said(os.environ) or num_usable_cores(), guard._call

    def first(*args: Any, **kwargs: Any) -> Any:
        guard._call = call
        guard._recorder.note("mismatch", FORKED.format(num_threads))
        return call(*args, **kwargs)

    if guard._num_settling and num_threads > 1:
        guard._call = first


class WarmCalls:
    """The first tuned call, with exported caches if they are for its inputs; without them if not. Calls of many shapes
    have them up to the last of so many in a row that compile nothing, one call at a time: where caches lie is said to
    the whole process."""

    def __init__(self, guard: Guard, tuned: Callable[..., Any], start: WarmStart) -> None:
        self._guard = guard
        self._tuned = tuned
        self._start = start
        self._num_idle = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        guard = self._guard
        count = guard._terms.num_of_shapes
        with guard._fallback.lock, ExitStack() as caches:
            try:
                caches.enter_context(self._start.first_call(Arguments(args, kwargs).leaves()))
            except (InputError, OSError) as problem:
                guard._recorder.note("artifact", f"{problem}; the first call compiles")
                count = None
            if count is None:
                guard._tuned = self._tuned
                return self._tuned(*args, **kwargs)
            before = count()
            result = self._tuned(*args, **kwargs)
            self._num_idle = self._num_idle + 1 if count() == before else 0
            if self._num_idle == STREAM_CALLS:
                guard._tuned = self._tuned
            return result


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


# `Watch`: looks at what a model's first calls leave behind, where compiled code may lose it, or add to it.

NUM_WATCHED = 2
"""Untuned calls that are looked at, at most."""


class Watch:
    """The config is given up where each untuned call leaves something behind, and where the first tuned one does after
    an untuned one did not. Once is no reason: a model may fill a table at its first call."""

    def __init__(self, effects: EffectsOf, fallback: Fallback) -> None:
        self.is_over = False
        self._effects = effects
        self._fallback = fallback
        self._num_calls = 0

    def call(self, untuned: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The untuned call's result."""
        if self.is_over:
            return untuned(*args, **kwargs)
        effects = self._effects(args, kwargs)
        result = untuned(*args, **kwargs)
        self._note(effects.found())
        return result

    def call_tuned(self, tuned: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The first tuned call's result."""
        effects = self._effects(args, kwargs)
        result = tuned(*args, **kwargs)
        if (found := effects.found()) is not None:
            self._fallback.give_up(f"a compiled call changed {found}, which the model's own does not")
        return result

    def _note(self, found: str | None) -> None:
        self._num_calls += 1
        self.is_over = found is None or self._num_calls >= NUM_WATCHED
        if found is not None and self.is_over:
            self._fallback.give_up(f"each call of the model changes {found}, which a compiled call does not")


# `RecordedCalls` and `CallsOfAStep`: what stands in front of a model for calls that no trial compared.
#
# A trial of inference compares outputs alone. Compiled code may lose a gradient, or give zeros where the untuned model
# gives none, and nobody would have seen it (docs/decisions/0048-what-an-applied-model-is.md). A trial of training steps
# compares the gradients of calls that are surrounded as the step surrounds them.


class RecordedCalls:
    """A callable: what the job's calls come to first. Those that record gradients stay untuned."""

    def __init__(
        self,
        backend: Backend,
        model: Any,
        call: Callable[..., Any],
        fallback: Fallback,
        recorder: StatsRecorder,
        *,
        of_a_step: bool = False,
    ) -> None:
        """`of_a_step`: the config is one of training steps, which compiles something else than the model's call."""
        self._recorder = recorder
        self._backend = backend
        self._records = backend.records_gradients
        self._model = model
        self._call = call
        self._fallback = fallback
        self._of_a_step = of_a_step

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._fallback.is_over:
            return self._call(*args, **kwargs)
        if self._records(self._model, args, kwargs):
            what = "compiles more of a step than the model" if self._of_a_step else "was tuned without"
            return self._untuned(f"the call records gradients, and the config {what}", args, kwargs)
        result = self._call(*args, **kwargs)
        if self._records(None, result) and not self._fallback.is_over:
            what = "outputs require gradients, though no parameter of the model and no input does"
            return self._untuned(what, args, kwargs, lasting=True)
        return result

    def _untuned(self, what: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, lasting: bool = False) -> Any:
        self._recorder.note_first_call()
        ways_out = (
            f"use training_step, or tune without {marked('whole_step')}"
            if self._of_a_step
            else f"{self._backend.call_without_gradients}, or tune with {marked('task', 'train')} and use training_step"
        )
        return self._fallback.result_after(UnsuitableCallError(what, tip=ways_out, lasting=lasting), "", args, kwargs)


class CallsOfAStep:
    """A callable: what the job's calls come to first, under a config of training steps that compiles the model alone.
    Those that are surrounded otherwise than in a step stay untuned."""

    def __init__(
        self, unlike: Callable[[], UnsuitableCallError | None], call: Callable[..., Any], fallback: Fallback
    ) -> None:
        self._unlike = unlike
        self._call = call
        self._fallback = fallback

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._fallback.is_over or (refusal := self._unlike()) is None:
            return self._call(*args, **kwargs)
        return self._fallback.result_after(refusal, "", args, kwargs)
