"""`Guard`: stands between a job's calls and the tuned model, and goes back to the untuned one if that is better.

The first call may find that the config does not compile here, or is not for these inputs; it can be checked against the
untuned model. The next calls are timed, where the recorded latency is comparable: if they are slower than recorded, as
many calls are made untuned, and the faster of the two stays. No call is made that the job did not ask for, but for the
check. Later on a call that fails is repeated untuned, and what fails untuned too is the job's own error.

Rule of this file: going back is one assignment. The untuned model can be called at any moment, whatever other threads
call, and what a config set in the process is undone only after no further call goes to the tuned model.
"""

from __future__ import annotations

import logging
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

from autotune.apply.warm_start import WarmStart
from autotune.backends.outputs import compared
from autotune.backends.protocol import Backend
from autotune.backends.undo import UndoLog
from autotune.errors import InputError, UnsuitableCallError, quoted
from autotune.job.stats import StatsRecorder
from autotune.workload.arguments import Arguments

NUM_TIMED = 10
"""Calls that are timed, after the framework's own warm-up."""


class MismatchError(InputError):
    """The tuned config cannot be used here, and the job's policy is to be told by an exception."""


@dataclass(frozen=True)
class Terms:
    """What was agreed on for one loaded model."""

    misfit: Callable[[Arguments], str | None]
    """Why a first call is not one that the config is for, or None."""
    apply_to_misfits: bool
    raises: bool
    """Whatever keeps the tuned model from being used is an exception."""
    hint: str
    """What to do about a misfit."""
    tolerance: float | None
    """Largest relative error of the first call's outputs; None: they are not checked."""
    latency_s: float | None
    """Recorded median latency; None: the job's calls cannot be compared with it, as under traffic."""
    margin: float
    """Times the recorded latency that the first calls may take."""


@dataclass(frozen=True)
class Applied:
    """A model with a config applied. `untuned` can be called whether the changes stand, as they do now, or not."""

    backend: Backend
    tuned: Callable[..., Any]
    untuned: Callable[..., Any]
    changes: UndoLog
    warm_start: WarmStart | None = None
    """Caches for the first tuned call."""


class Guard:
    """A callable: what the job's calls go to."""

    def __init__(self, applied: Applied, terms: Terms, journal: StatsRecorder) -> None:
        self._applied = applied
        self._tuned = applied.tuned if applied.warm_start is None else self._from_artifact
        self._untuned = applied.untuned
        self._changes = applied.changes
        self._backend = applied.backend
        self._terms = terms
        self._journal = journal
        self._lock = threading.RLock()
        self._seconds: list[float] = []
        self._was_refused = False
        """The last call while settling was none that the tuned model may serve."""
        self._tuned_s = 0.0
        self._call: Callable[..., Any] = self._settling
        self._phase: _Phase = self._first
        journal.state = "settling"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def release(self) -> None:
        """Undo everything: from now on calls go to the untuned model."""
        with self._lock:
            self._become("untuned", self._untuned)
            self._changes.undo()

    def _settling(self, *args: Any, **kwargs: Any) -> Any:
        """One call at a time, as long as each may change what the next one does."""
        with self._lock:
            return self._phase(args, kwargs)

    def _first(self, args: _Args, kwargs: _Kwargs) -> Any:
        """Calls up to the first that the config is for."""
        misfit = self._terms.misfit(Arguments(args, kwargs))
        if misfit is not None and not self._terms.apply_to_misfits:
            return self._passed_by(misfit, args, kwargs)
        if misfit is not None:
            self._note_misfit(f"{misfit}; applied all the same")
        self._was_refused = False
        result = self._settled(*args, **kwargs)
        if self._was_refused:
            return result
        if self._is_settling and self._terms.tolerance is not None:
            result = self._checked(result, self._terms.tolerance, args, kwargs)
        if self._is_settling:
            if misfit is None and self._terms.latency_s is not None:
                self._phase = self._time_tuned
            else:
                self._settle()
        return result

    def _passed_by(self, misfit: str, args: _Args, kwargs: _Kwargs) -> Any:
        if self._terms.raises:
            raise MismatchError(misfit, tip=self._terms.hint)
        self._note_misfit(f"{misfit}: such calls stay untuned until one fits; {self._terms.hint}")
        return self._untuned(*args, **kwargs)

    def _note_misfit(self, message: str) -> None:
        """Once: a job with other inputs has them in each call."""
        if not any(each.kind == "mismatch" for each in self._journal.events):
            self._journal.note("mismatch", message)

    def _checked(self, result: Any, tolerance: float, args: _Args, kwargs: _Kwargs) -> Any:
        """The result if it is right, else the untuned model's."""
        expected, error = compared(self._backend, result, lambda: self._untuned(*args, **kwargs))
        if error is None:
            self._journal.note("mismatch", "the model draws random numbers: its first outputs cannot be checked")
            return result
        if error <= tolerance:
            return result
        wrong = f"the first outputs are wrong: relative error {error:.3g}, tolerance {tolerance:g}"
        if self._terms.raises:
            raise MismatchError(wrong)
        self._give_up(wrong)
        return expected

    def _time_tuned(self, args: _Args, kwargs: _Kwargs) -> Any:
        result, median_s = self._timed(self._settled, args, kwargs)
        if self._is_settling and median_s is not None:
            self._judge(median_s)
        return result

    def _judge(self, median_s: float) -> None:
        assert self._terms.latency_s is not None
        if median_s <= self._terms.margin * self._terms.latency_s:
            self._settle()
            return
        # The machine may be slower as a whole than it was then: only the untuned model tells.
        self._tuned_s = median_s
        self._phase = self._time_untuned

    def _time_untuned(self, args: _Args, kwargs: _Kwargs) -> Any:
        result, median_s = self._timed(self._untuned, args, kwargs)
        if median_s is None:
            return result
        seen = f"{self._tuned_s:.3g} s a call, recorded {self._terms.latency_s:.3g}; untuned here {median_s:.3g}"
        if median_s < self._tuned_s:
            if self._terms.raises:
                raise MismatchError(f"the tuned model is slower: {seen}", tip=self._terms.hint)
            self._give_up(f"the tuned model is slower: {seen}")
        else:
            self._journal.note("slow", f"this machine is slower, the tuned model still faster: {seen}", logging.INFO)
            self._settle()
        return result

    def _timed(self, call: Callable[..., Any], args: _Args, kwargs: _Kwargs) -> tuple[Any, float | None]:
        """The call's result, and the median once enough calls are timed. Calls with other inputs are not counted."""
        fits = self._terms.misfit(Arguments(args, kwargs)) is None
        self._was_refused = False
        self._backend.synchronise()
        start = time.perf_counter()
        result = call(*args, **kwargs)
        self._backend.synchronise()
        if fits and not self._was_refused:
            self._seconds.append(time.perf_counter() - start)
        if len(self._seconds) < self._backend.warmup_calls + NUM_TIMED:
            return result, None
        median_s = statistics.median(self._seconds[-NUM_TIMED:])
        self._seconds.clear()
        return result, median_s

    @property
    def _is_settling(self) -> bool:
        return self._journal.state == "settling"

    def _settle(self) -> None:
        self._become("tuned", self._settled)

    def _settled(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self._tuned(*args, **kwargs)
        except UnsuitableCallError as error:
            return self._unsuitable(error, args, kwargs)
        except Exception as error:
            return self._repeated(error, args, kwargs)

    def _unsuitable(self, error: UnsuitableCallError, args: _Args, kwargs: _Kwargs) -> Any:
        """A call that the tuned model refused before it did anything."""
        if self._terms.raises:
            raise MismatchError(str(error), tip=error.tip) from error
        self._was_refused = True
        if error.lasting:
            self._give_up("; ".join(filter(None, [str(error), error.tip])))
        else:
            self._journal.note_once(
                "mismatch", "; ".join(filter(None, [f"{error}: such calls are made untuned", error.tip]))
            )
        return self._untuned(*args, **kwargs)

    def _from_artifact(self, *args: Any, **kwargs: Any) -> Any:
        """The first tuned call, with the artifact's caches if they are for these inputs; without them if not."""
        self._tuned = self._applied.tuned
        assert self._applied.warm_start is not None
        with ExitStack() as caches:
            try:
                caches.enter_context(self._applied.warm_start.first_call(Arguments(args, kwargs).leaves()))
            except (InputError, OSError) as problem:
                self._journal.note("artifact", f"{problem}; the first call compiles")
            return self._tuned(*args, **kwargs)

    def _repeated(self, error: Exception, args: _Args, kwargs: _Kwargs) -> Any:
        """A failed call once more, untuned: what fails there too is the job's own error, and the config is kept."""
        if self._terms.raises:
            raise error
        try:
            result = self._untuned(*args, **kwargs)
        except Exception as own:
            raise own from None
        self._give_up(f"the tuned model failed: {quoted(error)}")
        return result

    def _give_up(self, why: str) -> None:
        with self._lock:
            if self._journal.state == "untuned":
                return  # Another thread was first.
            self._become("untuned", self._untuned)
            self._changes.undo()
            self._journal.note("fallback", f"{why}; back to the untuned model")

    def _become(self, state: Literal["tuned", "untuned"], call: Callable[..., Any]) -> None:
        self._journal.state = state
        self._call = call
        # For threads that wait for their turn.
        self._phase = lambda args, kwargs: call(*args, **kwargs)


_Args = tuple[Any, ...]
_Kwargs = dict[str, Any]
_Phase = Callable[[_Args, _Kwargs], Any]
