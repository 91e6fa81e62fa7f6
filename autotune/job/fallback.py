"""`Fallback`: the way back from a tuned model to the untuned one, for one call or for good.

A call that the tuned model fails at is repeated untuned. What fails there too is the job's own error, and the config
is kept; if it works, the config is given up: what it set in the process is undone, and one warning says why. A call
that the tuned model refuses, since it would answer it wrongly, is made untuned. A training step is never made twice:
the backend says how one that failed comes to its end (`errors.finish_by`). What a hook of the job raises reaches the
job.

Rule of this file: the untuned model can be called at any moment, whatever other threads call, and what a config set in
the process is undone only after no further call goes to the tuned model.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from autotune.backends.origin import Origin, interruption, origin
from autotune.backends.undo import UndoLog
from autotune.errors import InputError, UnsuitableCallError, quoted, rest_of_call
from autotune.job.stats import StatsRecorder


def raise_interruption(error: BaseException) -> None:
    """Raises the exception that came from outside of a call and that is behind `error`, if there is one: a job ends a
    call that takes too long so, and it is no failure of the call. Raises `error` itself where a backend lets it
    through."""
    found = interruption(error)
    if found is error:
        raise error
    if found is not None:
        raise found from None


class MismatchError(InputError):
    """The tuned config cannot be used here, and the job's policy asks for exceptions."""


@dataclass(frozen=True)
class Together:
    """How the ranks of a job leave a tuned model: none of them does alone."""

    post: Callable[[str], object]
    """Tells all of them what went wrong here. Each then calls `Fallback.leave` before its next call."""
    who: str
    """The beginning of a sentence about all of them."""
    level: int
    """Level of the line in this rank's log."""


class Fallback:
    """One for each loaded model. Threads may share it."""

    def __init__(
        self,
        untuned: Callable[..., Any],
        changes: UndoLog,
        recorder: StatsRecorder,
        *,
        raises: bool = False,
        repeats: bool = True,
        together: Together | None = None,
    ) -> None:
        """`changes` are what the config set in the process. `raises`: nothing falls back, whatever goes wrong is an
        exception. `repeats`: a call may be made twice, which a training step may not."""
        self.untuned = untuned
        self.repeats = repeats
        self.raises = raises
        self.is_over = False
        """Calls go to the untuned model for good."""
        self.trouble: str | None = None
        """What went wrong here first, and was posted."""
        self.rehearsal: Callable[..., None] | None = None
        """What `prepare` calls."""
        self.leave_tuned: Callable[[], None] = lambda: None
        """Sends later calls to the untuned model, and frees the tuned one. Set by what the job calls."""
        self.forked: Callable[[], None] = lambda: None
        """Told in a child process that goes on with the tuned model. Set by what the job calls."""
        self.lock = threading.RLock()
        """Held by whoever changes where calls go."""
        self._changes = changes
        self._recorder = recorder
        self._together = together
        _fallbacks.add(self)

    def result_after(self, error: Exception, what: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the untuned model returns for a call at which `what` raised `error`. Raises the job's own error."""
        if isinstance(error, UnsuitableCallError):
            return self._result_after_refusal(error, args, kwargs)
        raise_interruption(error)
        if self.raises or origin(error) is Origin.HOOK:
            raise error
        rest = rest_of_call(error, partial(self.untuned, *args, **kwargs) if self.repeats else None)
        if rest is None:
            self.give_up(f"{what} failed in a call that cannot be made again: {quoted(error, max_lines=2)}")
            raise error
        try:
            result = rest()
        except Exception as own:
            raise own from None
        self.give_up(f"{what} failed: {quoted(error, max_lines=2)}")
        return result

    def _result_after_refusal(self, error: UnsuitableCallError, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Nothing of the call was run."""
        if self.raises:
            raise MismatchError(str(error), tip=error.tip) from error
        if error.lasting:
            self.give_up("; ".join(filter(None, [str(error), error.tip])))
        else:
            why = "; ".join(filter(None, [f"{error}: such calls are made untuned", error.tip]))
            with self.lock:
                self._recorder.note_once("mismatch", why)
        return self.untuned(*args, **kwargs)

    def after_fork(self) -> None:
        """Called in a child process, by its only thread. A lock that another thread held is never given back: a first
        call may have been under way, with the compiler's own locks."""
        if self.lock.acquire(blocking=False):
            self.lock.release()
            self.forked()
            return
        self.lock = threading.RLock()
        self.release()
        self._recorder.note("fallback", "the process was forked during a first call; back to the untuned model")

    def give_up(self, why: str, *, tip: str | None = None) -> None:
        """All later calls go to the untuned model, with one warning; `tip` is for the exception that a job may ask for
        instead. Does nothing where another thread was first. Where others take part it is posted, and calls go on."""
        if self.raises:
            raise MismatchError(why, tip=tip)
        if self._together is None:
            self.leave(why)
        elif self.trouble is None:
            self.trouble = why
            self._together.post(why)

    def leave(self, why: str) -> None:
        """All later calls go to the untuned model, with one line in the log."""
        with self.lock:
            if not self.is_over:
                self.release()
                who, level = (
                    ("", logging.WARNING) if self._together is None else (self._together.who, self._together.level)
                )
                self._recorder.note("fallback", f"{why}; {who}back to the untuned model", level)

    def release(self) -> None:
        """All later calls go to the untuned model, and the process is as it was before the config was applied."""
        with self.lock:
            self.is_over = True
            self._recorder.state = "untuned"
            put_back(self.leave_tuned, self._recorder)
            put_back(self._changes.undo, self._recorder)


def put_back(undo: Callable[[], object], recorder: StatsRecorder) -> None:
    """Call `undo`. What cannot be put back gets a line, and keeps no job from its untuned model."""
    try:
        undo()
    except Exception as error:
        raise_interruption(error)
        recorder.note("mismatch", f"not all that the config set could be put back: {quoted(error)}")


def _after_fork() -> None:
    for fallback in list(_fallbacks):
        fallback.after_fork()


_fallbacks: weakref.WeakSet[Fallback] = weakref.WeakSet()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
