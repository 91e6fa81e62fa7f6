"""`Guard`: takes a job's calls, watches the first ones, and goes back to the untuned model if that is better.

The first call may find that the config does not compile here, or is not for these inputs; it can be checked against the
untuned model, and so can a later one now and then (`later_calls`). The next calls are timed, where the recorded latency
is comparable (`latency_check`). No call is made that the job did not ask for, except for the check.
What happens to a call that fails: see `fallback`.
Before all that, a model whose compiled calls may lose what an untuned one leaves behind (MindSpore) is called untuned
once or twice: see `Watch`.

Rule of this file: going back is one assignment.
"""

from __future__ import annotations

import os
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
from autotune.job.latency_check import LatencyCheck, Promise
from autotune.job.later_calls import LaterCalls
from autotune.job.output_check import CheckedCall, OutputCheck
from autotune.job.stats import StatsRecorder
from autotune.workload.arguments import Arguments
from autotune.workload.workload import STREAM_CALLS

FORKED = (
    "this process was forked from one whose model had computed with up to {} threads, which a fork lacks: if the next "
    "call hangs, start the parent with OMP_NUM_THREADS=1, or call the model in its children alone"
)


@dataclass(frozen=True)
class GuardTerms:
    """What was agreed on for one loaded model."""

    admission: Admission
    """Which calls are tuned."""
    hint_of_misfits: str
    """What to do about calls that the config is not for."""
    check: OutputCheck | None
    """Compares the first call's outputs with the untuned model's; None: they are not checked."""
    num_compiled: Callable[[], object] | None
    """Another value once something was compiled, for which a call is compared as the first one is; None: no later call
    is."""
    promise: Promise | None
    """How long a call may take; None: the job's calls cannot be compared with those that were measured, as under
    traffic."""
    outsider: Callable[[], str | None] = lambda: None
    """Why a first call is not tuned, whatever its inputs: the process joined a group after `apply()`, and the ranks of
    that group have agreed on nothing."""
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
        self._tuned = TunedCalls(tuned, fallback, terms, recorder, warm_start)
        self._untuned = fallback.untuned
        self._backend = backend
        self._fallback = fallback
        self._terms = terms
        self._recorder = recorder
        self._num_settling = 0
        """Calls so far."""
        self._call: Callable[..., Any] = self._settling
        self._watch = None if terms.effects is None else Watch(terms.effects, fallback)
        self._phase: _Phase = self._first if self._watch is None else self._watched
        fallback.leave_tuned = partial(self._send_calls_to, self._untuned)
        fallback.forked = self._warn_in_child
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
        refusal = self._terms.admission.refusal(args, kwargs)
        if refusal is not None:
            return self._tuned.refused(refusal, args, kwargs)
        misfit = self._terms.admission.misfit(args, kwargs)
        if misfit is not None:
            self._tuned.note_misfit(f"{misfit}; applied anyway")
        self._tuned.fell_back = False
        check = None if self._terms.check is None else self._terms.check.begin(args, kwargs)
        tuned = self._tuned.call if self._watch is None else partial(self._watch.call_tuned, self._tuned.call)
        result = tuned(*args, **kwargs)
        if self._tuned.fell_back:
            return result
        if self._is_settling and check is not None:
            finding = check.finding(result, lambda: self._untuned(*args, **kwargs))
            if finding.is_open:
                return finding.result
            self._tuned.is_comparable = self._tuned.is_comparable and finding.unchecked is None
            result = self._tuned.checked(finding, "the first outputs")
        if self._is_settling:
            self._go_on(self._terms.promise if misfit is None else None)
        return result

    def _go_on(self, promise: Promise | None) -> None:
        """Time the next calls; None: there is nothing to compare them with."""
        if promise is None:
            self._settle()
            return
        tuned, fallback, recorder = self._tuned.later, self._fallback, self._recorder
        check = LatencyCheck(promise, self._backend, tuned=tuned, fallback=fallback, recorder=recorder)
        self._phase = partial(self._timed, check)

    def _timed(self, check: LatencyCheck, args: _Args, kwargs: _Kwargs) -> Any:
        """Calls by which it is seen which model is the faster one. Those with other inputs do not count."""
        fits = self._terms.admission.misfit(args, kwargs) is None
        self._tuned.fell_back = False
        result = check.call(args, kwargs, lambda: fits and not self._tuned.fell_back)
        if self._is_settling and check.is_over:
            self._settle()
        return result

    @property
    def _is_settling(self) -> bool:
        return self._recorder.state == "settling"

    def _settle(self) -> None:
        self._recorder.state = "tuned"
        call, check, share = self._tuned.later, self._terms.check, self._terms.check_share
        if self._tuned.is_comparable and check is not None and share:
            later = LaterCalls(check, share, call, self._fallback, self._recorder)
            later.number += self._num_settling
            call = later.call
        self._send_calls_to(call)

    def _send_calls_to(self, call: Callable[..., Any]) -> None:
        self._call = call
        # For threads that wait for their turn.
        self._phase = lambda args, kwargs: call(*args, **kwargs)

    def _warn_in_child(self) -> None:
        """A child process lacks the threads of its parent's OpenMP. GNU's waits for them without end, in compiled code
        and in the framework's own, so it is said before the next call."""
        num_threads, call = threads_said(os.environ) or num_usable_cores(), self._call

        def first(*args: Any, **kwargs: Any) -> Any:
            self._call = call
            self._recorder.note("mismatch", FORKED.format(num_threads))
            return call(*args, **kwargs)

        if self._num_settling and num_threads > 1:
            self._call = first


_Args = tuple[Any, ...]
_Kwargs = dict[str, Any]
_Phase = Callable[[_Args, _Kwargs], Any]


class TunedCalls:
    """The tuned model as calls come to it. One that it is not for, or that it fails at, is made untuned."""

    def __init__(
        self,
        tuned: Callable[..., Any],
        fallback: Fallback,
        terms: GuardTerms,
        recorder: StatsRecorder,
        warm_start: WarmStart | None,
    ) -> None:
        def without_caches() -> None:
            self._tuned = tuned

        self._tuned = tuned
        if warm_start is not None:
            count = terms.num_of_shapes
            self._tuned = WarmCalls(tuned, warm_start, count, fallback, recorder=recorder, over=without_caches)
        self._untuned = fallback.untuned
        self._refusal = terms.admission.refusal
        self._fallback = fallback
        self._terms = terms
        self._recorder = recorder
        self._has_misfits = False
        """Whether it was said that some calls are not what the config is for."""
        self.fell_back = False
        """The last call while settling was made untuned, since the tuned model refused it or failed."""
        self.is_comparable = terms.check is not None
        """Later calls are compared: a repeated call changes nothing."""

    @property
    def later(self) -> Callable[..., Any]:
        """What calls go to after the first one."""
        return self._compared if self.is_comparable and self._terms.num_compiled is not None else self.call

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """The tuned model's result, or the untuned one's."""
        refusal = self._refusal(args, kwargs)
        if refusal is not None:
            return self.refused(refusal, args, kwargs)
        try:
            return self._tuned(*args, **kwargs)
        except Exception as error:
            self.fell_back = True
            return self._fallback.result_after(error, "the tuned model", args, kwargs)

    def refused(self, refusal: Refusal, args: _Args, kwargs: _Kwargs) -> Any:
        """The untuned model's result or error, for a call that is not for tuned code."""
        self.fell_back = True
        if refusal.misfit is not None:
            if self._fallback.raises:
                raise MismatchError(refusal.misfit, tip=self._terms.hint_of_misfits)
            said = f"{refusal.misfit}: such calls stay untuned"
            self.note_misfit("; ".join(filter(None, [said, self._terms.hint_of_misfits])))
        return refusal.answered_by(self._untuned, args, kwargs)

    def note_misfit(self, message: str) -> None:
        """Once: a job with other inputs has them in each call."""
        if not self._has_misfits:
            self._has_misfits = True
            self._recorder.note("mismatch", message)

    def checked(self, finding: CheckedCall, outputs: str) -> Any:
        """The result if it is right or cannot be checked, else the untuned model's."""
        if finding.unchecked is not None:
            self._recorder.note_once("mismatch", f"{finding.unchecked}: {outputs} cannot be checked")
        if finding.wrong is not None:
            self._fallback.give_up(f"{outputs} are wrong: {finding.wrong}")
        return finding.result

    def _compared(self, *args: Any, **kwargs: Any) -> Any:
        """A tuned call whose outputs are compared if something was compiled in it, by this thread or meanwhile."""
        check, num_compiled = self._terms.check, self._terms.num_compiled
        assert check is not None
        assert num_compiled is not None
        before = num_compiled()
        result = self.call(*args, **kwargs)
        if num_compiled() == before or self._fallback.is_over:
            return result
        finding = check.finding_after(result, self.call, self._untuned, Arguments(args, kwargs))
        return self.checked(finding, "outputs of a call in which something was compiled")


class WarmCalls:
    """The first tuned call, with exported caches if they are for its inputs; without them if not. Calls of many shapes
    have them up to the last of so many in a row that compile nothing, one call at a time: where caches lie is said to
    the whole process."""

    def __init__(
        self,
        tuned: Callable[..., Any],
        start: WarmStart,
        num_of_shapes: Callable[[], object] | None,
        fallback: Fallback,
        *,
        recorder: StatsRecorder,
        over: Callable[[], None],
    ) -> None:
        """`num_of_shapes`: see `GuardTerms`. `over` is called once later calls need no caches."""
        self._tuned = tuned
        self._start = start
        self._num_of_shapes = num_of_shapes
        self._fallback = fallback
        self._recorder = recorder
        self._over = over
        self._num_idle = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        count = self._num_of_shapes
        with self._fallback.lock, ExitStack() as caches:
            try:
                caches.enter_context(self._start.first_call(Arguments(args, kwargs).leaves()))
            except (InputError, OSError) as problem:
                self._recorder.note("artifact", f"{problem}; the first call compiles")
                count = None
            if count is None:
                self._over()
                return self._tuned(*args, **kwargs)
            before = count()
            result = self._tuned(*args, **kwargs)
            self._num_idle = self._num_idle + 1 if count() == before else 0
            if self._num_idle == STREAM_CALLS:
                self._over()
            return result


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
        self._may_record = backend.may_record
        self._records = backend.records_gradients
        self._model = model
        self._call = call
        self._fallback = fallback
        self._of_a_step = of_a_step

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._fallback.is_over:
            return self._call(*args, **kwargs)
        if self._may_record() and self._records(self._model, args, kwargs):
            what = "compiles more of a step than the model" if self._of_a_step else "was tuned without"
            return self._untuned(f"the call records gradients, and the config {what}", args, kwargs)
        result = self._call(*args, **kwargs)
        if self._may_record() and self._records(None, result) and not self._fallback.is_over:
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
