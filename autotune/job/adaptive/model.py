"""`AdaptiveModel`: stands between a job's calls and a model whose shapes are compiled one by one, as they earn it.

`adaptive` decides, this module does: it times calls, compiles with a call of the job's own, or behind it on copies of
its inputs, and holds what was compiled. A version that fails costs its shape the compiling, never the job a call.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil

from autotune.backends.outputs import compared
from autotune.backends.protocol import Backend, Versions
from autotune.backends.undo import UndoLog
from autotune.errors import AutotuneError, UnsuitableCallError, quoted
from autotune.job.adaptive.ledger import Account, AdaptiveStats, Ledger
from autotune.job.stats import StatsRecorder
from autotune.workload.arguments import Arguments

_log = logging.getLogger("autotune")


class WrongOutputsError(AutotuneError):
    """A version computes something else than the eager model."""


@dataclass(frozen=True)
class Compilation:
    """A model with a config applied, but for its compiler. `untuned` can be called whether the changes stand or not."""

    backend: Backend
    versions: Versions
    untuned: Callable[..., Any]
    changes: UndoLog


@dataclass(eq=False)
class _Running:
    """A compiled version in use."""

    account: Account
    version: Callable[..., Any]
    is_timed: bool = True


class AdaptiveModel:
    """A callable: what the job's calls go to."""

    def __init__(
        self,
        adapted: Compilation,
        ledger: Ledger,
        journal: StatsRecorder,
        *,
        tolerance: float | None = None,
        raises: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`tolerance`: largest relative error of a version's first outputs against the eager ones; None: they are not
        compared. `raises`: what a version fails with is raised."""
        self._backend = adapted.backend
        self._versions = adapted.versions
        self._key = adapted.versions.key
        self._eager = adapted.versions.eager
        self._untuned = adapted.untuned
        self._changes = adapted.changes
        self._ledger = ledger
        self._journal = journal
        self._tolerance = tolerance
        self._raises = raises
        self._clock = clock
        self._lock = threading.RLock()
        self._running: dict[Hashable, _Running] = {}
        self._is_compiling = False
        self._is_over = False
        self._worker = ThreadPoolExecutor(1, "autotune-compile") if ledger.limits.background else None
        journal.state = "adaptive"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            key = self._key(args, kwargs)
            running = self._running.get(key)
        except Exception:  # Inputs that no key can be made of: a tensor of a kind that has no strides.
            return self._untuned(*args, **kwargs) if self._is_over else self._eagerly(args, kwargs)
        if running is None:
            return self._uncompiled(key, args, kwargs)
        self._ledger.run(running.account)
        try:
            if running.is_timed:
                return self._timed_version(key, running, args, kwargs)
            return running.version(*args, **kwargs)
        except UnsuitableCallError as error:
            return self._unsuitable(error, args, kwargs)
        except Exception as error:
            return self._repeated(key, running, error, args, kwargs)

    def stats(self) -> AdaptiveStats:
        """What was decided until now."""
        with self._lock:
            return self._ledger.stats()

    def release(self) -> None:
        """Undo everything, once what is being compiled is done: from now on calls go to the untuned model."""
        with self._lock:
            self._is_over = True
        if self._worker is not None:
            self._worker.shutdown()
        with self._lock:
            self._drop_all()
            self._changes.undo()
            self._journal.state = "untuned"

    def _uncompiled(self, key: Hashable, args: _Args, kwargs: _Kwargs) -> Any:
        if self._is_over:
            return self._untuned(*args, **kwargs)
        with self._lock:
            account = self._ledger.open(key, lambda: self._text(args, kwargs))
            starts = not self._is_compiling and self._ledger.is_due(account)
            if starts:
                self._is_compiling = True
                self._ledger.start(account)
        if not starts:
            return self._paid(account, args, kwargs)
        return self._compiled(_Work(key, account), args, kwargs)

    def _paid(self, account: Account, args: _Args, kwargs: _Kwargs) -> Any:
        """An eager call, on the shape's account."""
        seconds = None
        if self._ledger.is_timed(account):
            result, seconds = self._timed(self._eagerly, args, kwargs)
        else:
            result = self._eagerly(args, kwargs)
        with self._lock:
            self._ledger.pay(account, seconds)
        return result

    def _compiled(self, work: _Work, args: _Args, kwargs: _Kwargs) -> Any:
        """A call with which a shape is compiled: by the call itself, or behind it."""
        try:
            work.version = self._versions.new()
            rehearsals = None if self._worker is None else self._rehearsals(work.version, args, kwargs)
            if rehearsals is not None:
                return self._compiled_behind(work, rehearsals, args, kwargs)
            result = self._built(work, partial(work.version, *args, **kwargs), partial(self._eager, *args, **kwargs))
            self._ledger.run(work.account)
            return result
        except UnsuitableCallError as error:
            return self._unsuitable(error, args, kwargs)
        except Exception as error:
            if self._raises or work.is_paid:
                raise
            result = self._paid(work.account, args, kwargs)  # What fails here too is the job's own error.
            self._lost(work, error)
            return result
        finally:
            if not work.is_behind:
                self._end(work.account)

    def _compiled_behind(self, work: _Work, rehearsals: _Rehearsals, args: _Args, kwargs: _Kwargs) -> Any:
        """The call is eager. A model that keeps something from it would keep it twice: it is compiled by calls only."""
        before = self._versions.state()
        work.is_paid = True
        result = self._paid(work.account, args, kwargs)
        if self._versions.state() == before:
            self._hand_over(work, *rehearsals)
        else:
            self._worker = None
        return result

    def _rehearsals(self, version: _Call, args: _Args, kwargs: _Kwargs) -> _Rehearsals | None:
        """The version's first call and an eager one, on copies of the inputs, for the worker's thread."""
        call, eager = (self._versions.rehearsal(each, args, kwargs) for each in (version, self._eager))
        return None if call is None or eager is None else (call, eager)

    def _hand_over(self, work: _Work, call: Callable[[], Any], eager: Callable[[], Any]) -> None:
        def build() -> None:
            try:
                self._built(work, call, eager)
            except Exception as error:
                self._lost(work, error)
            finally:
                self._end(work.account)

        with self._lock:
            if self._worker is not None and not self._is_over:
                self._worker.submit(build)
                work.is_behind = True

    def _built(self, work: _Work, call: Callable[[], Any], eager: Callable[[], Any]) -> Any:
        """What the version's first call gives; from now on the shape's calls go to it. Raises what that raises."""
        start = self._clock()
        self._versions.warm()
        warm = self._clock()
        held_bytes = self._held_bytes()
        try:
            result = call()
            self._backend.synchronise()
        finally:
            work.seconds = self._clock() - warm
        if self._tolerance is not None:
            self._compare(result, eager, self._tolerance)
        grown_bytes = max(self._held_bytes() - held_bytes, 0)
        with self._lock:
            if self._is_over:
                return result
            evicted = self._ledger.finish(work.account, work.seconds, grown_bytes, warm - start)
            assert work.version is not None
            self._running[work.key] = _Running(work.account, work.version)
            if evicted is not None:
                self._drop(evicted)
        return result

    def _compare(self, result: Any, eager: Callable[[], Any], tolerance: float) -> None:
        _, error = compared(self._backend, result, eager)
        # None: random numbers.
        if error is not None and error > tolerance:
            raise WrongOutputsError(f"wrong outputs: relative error {error:.3g}, tolerance {tolerance:g}")

    def _lost(self, work: _Work, error: Exception) -> None:
        with self._lock:
            if work.version is not None:
                self._versions.drop(work.version)
            self._fail(work.account, error, work.seconds)

    def _end(self, account: Account) -> None:
        with self._lock:
            self._is_compiling = False
            self._ledger.cancel(account)

    def _repeated(self, key: Hashable, running: _Running, error: Exception, args: _Args, kwargs: _Kwargs) -> Any:
        """A version's failed call once more, eagerly: what fails there too is the job's own error, and it stays."""
        if self._raises:
            raise error
        result = self._eagerly(args, kwargs)
        with self._lock:
            if self._running.get(key) is running:
                self._drop(running.account)
                self._fail(running.account, error)
        return result

    def _unsuitable(self, error: UnsuitableCallError, args: _Args, kwargs: _Kwargs) -> Any:
        """A call that a version refused before it did anything; where all later ones are like it, nothing is compiled
        from now on."""
        if self._raises:
            raise error
        why = "; ".join(filter(None, [str(error), error.tip]))
        with self._lock:
            if error.lasting and not self._is_over:
                self._end_it(f"{why}; back to the untuned model")
            elif not error.lasting:
                self._journal.note_once("mismatch", f"{why}: such calls are made untuned")
        return self._untuned(*args, **kwargs)

    def _end_it(self, why: str) -> None:
        self._is_over = True
        self._drop_all()
        self._changes.undo()
        self._journal.note("fallback", why)
        self._journal.state = "untuned"

    def _fail(self, account: Account, error: Exception, seconds: float = 0.0) -> None:
        why = str(error) if isinstance(error, AutotuneError) else quoted(error)
        self._ledger.fail(account, why, seconds)
        self._journal.note("version", f"{account.text}, compiled for itself: {why}; this shape stays eager")
        if self._ledger.is_given_up:
            self._journal.note("fallback", f"{self._ledger.stopped}; what is compiled stays, all else is eager")

    def _eagerly(self, args: _Args, kwargs: _Kwargs) -> Any:
        try:
            return self._eager(*args, **kwargs)
        except Exception as error:
            return self._without_config(error, args, kwargs)

    def _without_config(self, error: Exception, args: _Args, kwargs: _Kwargs) -> Any:
        """A failed eager call once more, untuned: if that works, it is the config's settings that fail."""
        if self._raises:
            raise error
        try:
            result = self._untuned(*args, **kwargs)
        except Exception as own:
            raise own from None
        with self._lock:
            if not self._is_over:
                self._end_it(f"the model under its config failed: {quoted(error)}; back to the untuned")
        return result

    def _timed_version(self, key: Hashable, running: _Running, args: _Args, kwargs: _Kwargs) -> Any:
        result, seconds = self._timed(lambda args, kwargs: running.version(*args, **kwargs), args, kwargs)
        with self._lock:
            if self._running.get(key) is running:
                if not self._ledger.time(running.account, seconds):
                    self._drop(running.account)
                running.is_timed = self._ledger.is_timed(running.account)
        return result

    def _timed(self, call: Callable[[_Args, _Kwargs], Any], args: _Args, kwargs: _Kwargs) -> tuple[Any, float]:
        self._backend.synchronise()
        start = self._clock()
        result = call(args, kwargs)
        self._backend.synchronise()
        return result, self._clock() - start

    def _drop(self, account: Account) -> None:
        """Its version goes; a call of it that is under way is not hurt."""
        key = next(key for key, each in self._running.items() if each.account is account)
        held_bytes = self._held_bytes()
        self._versions.drop(self._running.pop(key).version)
        self._ledger.give_back(held_bytes - self._held_bytes())

    def _drop_all(self) -> None:
        for running in list(self._running.values()):
            self._drop(running.account)

    def _held_bytes(self) -> int:
        held = self._versions.memory_bytes()
        return int(psutil.Process().memory_info().rss) if held is None else held

    def _text(self, args: _Args, kwargs: _Kwargs) -> str:
        """The tensors of a call, for people."""
        specs = (self._backend.spec(leaf) for leaf in Arguments(args, kwargs).leaves())
        return ", ".join(f"{each.dtype.lower()}{list(each.shape)}" for each in specs if each) or "no tensors"


@dataclass(eq=False)
class _Work:
    """A version that is being compiled."""

    key: Hashable
    account: Account
    version: _Call | None = None
    seconds: float = 0.0
    is_paid: bool = False
    """The job's call is an eager one, whatever becomes of the version."""
    is_behind: bool = False
    """In the worker's hands."""


_Call = Callable[..., Any]
_Rehearsals = tuple[Callable[[], Any], Callable[[], Any]]
_Args = tuple[Any, ...]
_Kwargs = dict[str, Any]
