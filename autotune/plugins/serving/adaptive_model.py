"""`AdaptiveModel`: stands between a job's calls and a model whose shapes are compiled one by one, as they pay off.

`ledger` decides, this module does it: it times calls, compiles with a call of the job's own, and holds what was
compiled. A version that fails costs its shape the compiling, never the job a call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil

from autotune.backends.capabilities import Versions
from autotune.backends.contracts.compiler import EffectsOf
from autotune.backends.protocol import Backend
from autotune.errors import AutotuneError, UnsuitableCallError, quoted
from autotune.job.admission import Admission, Refusal
from autotune.job.fallback import Fallback, raise_interruption
from autotune.job.guard import GuardTerms, Watch
from autotune.job.output_check import CheckedCall, OutputCheck
from autotune.job.stats import AdaptiveStats, StatsRecorder, weakly
from autotune.plugins.serving.ledger import Expected, Ledger, ShapeAccount
from autotune.tuned.tuned_config import AdaptivePolicy, TunedConfig
from autotune.workload.arguments import Arguments


class WrongOutputsError(AutotuneError):
    """A version computes something else than the eager model, which gave `expected` for the same call."""

    def __init__(self, what: str, expected: Any) -> None:
        super().__init__(what)
        self.expected = expected


@dataclass(eq=False)
class _Running:
    """A compiled version in use."""

    account: ShapeAccount
    version: Callable[..., Any]
    is_timed: bool = True


class AdaptiveModel:
    """A callable: what the job's calls go to."""

    def __init__(
        self,
        backend: Backend,
        versions: Versions,
        ledger: Ledger,
        fallback: Fallback,
        recorder: StatsRecorder,
        *,
        admission: Admission | None = None,
        check: OutputCheck | None = None,
        effects: EffectsOf | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """`admission`: says which whole numbers are for versions; None: all are. `check` compares a version's first
        outputs with the eager ones; None: they are not compared. `effects` looks at what eager calls leave behind: see
        `GuardTerms`."""
        self._backend = backend
        self._versions = versions
        self._key = versions.key
        self._eager = versions.eager if effects is None else partial(Watch(effects, fallback).call, versions.eager)
        self._ledger = ledger
        self._fallback = fallback
        self._recorder = recorder
        self._refusal = None if admission is None else admission.refusal_of_numbers
        self._check = check
        self._clock = clock
        self._running: dict[Hashable, _Running] = {}
        self._is_compiling = False
        fallback.leave_tuned = self._drop_all
        recorder.state = "adaptive"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            key = self._key(args, kwargs)
            running = self._running.get(key)
        except Exception:  # Inputs that no key can be made of: a tensor of a kind that has no strides.
            return self._fallback.untuned(*args, **kwargs) if self._fallback.is_over else self._eagerly(args, kwargs)
        refusal = None if self._refusal is None or self._fallback.is_over else self._refusal(args, kwargs)
        if running is None or refusal is not None:
            return self._without_version(key, refusal, args, kwargs)
        self._ledger.add_compiled_call(running.account)
        try:
            if running.is_timed:
                return self._timed_version(key, running, args, kwargs)
            return running.version(*args, **kwargs)
        except UnsuitableCallError as error:
            return self._result_after(error, args, kwargs)
        except Exception as error:
            return self._eager_after(error, key, running, args, kwargs)

    def stats(self) -> AdaptiveStats:
        """What was decided until now."""
        with self._fallback.lock:
            return self._ledger.stats()

    def _without_version(self, key: Hashable, refusal: Refusal | None, args: _Args, kwargs: _Kwargs) -> Any:
        self._recorder.note_first_call()
        if self._fallback.is_over:
            return self._fallback.untuned(*args, **kwargs)
        with self._fallback.lock:
            account = self._ledger.account_of(key, lambda: self._text(args, kwargs))
            starts = refusal is None and not self._is_compiling and self._ledger.is_due(account)
            if starts:
                self._is_compiling = True
                self._ledger.start(account)
        if not starts:
            result = self._eager_counted(account, args, kwargs)
            if refusal is not None:
                refusal.learn()
            return result
        return self._compile_with(key, account, args, kwargs)

    def _eager_counted(self, account: ShapeAccount, args: _Args, kwargs: _Kwargs) -> Any:
        """An eager call, on the shape's account."""
        seconds = None
        if self._ledger.is_timed(account):
            result, seconds = self._timed(self._eagerly, args, kwargs)
        else:
            result = self._eagerly(args, kwargs)
        with self._fallback.lock:
            self._ledger.add_eager_call(account, seconds)
        return result

    def _compile_with(self, key: Hashable, account: ShapeAccount, args: _Args, kwargs: _Kwargs) -> Any:
        """The result of the call with which a shape is compiled."""
        attempt = _Attempt()
        try:
            return self._first_call(key, account, attempt, args, kwargs)
        except UnsuitableCallError as error:
            with self._fallback.lock:
                self._ledger.refuse(account, str(error))
            return self._result_after(error, args, kwargs)
        except WrongOutputsError as error:
            if self._fallback.raises:
                raise
            with self._fallback.lock:
                self._ledger.add_eager_call(account, None)
                self._fail(account, error, attempt.seconds)
            return error.expected
        except Exception as error:
            raise_interruption(error)
            if self._fallback.raises:
                raise
            result = self._eager_counted(account, args, kwargs)  # What fails here too is the job's own error.
            with self._fallback.lock:
                self._fail(account, error, attempt.seconds)
            return result
        finally:
            with self._fallback.lock:
                self._is_compiling = False
                self._ledger.cancel(account)
                if attempt.unused is not None:
                    self._free(attempt.unused)

    def _first_call(self, key: Hashable, account: ShapeAccount, attempt: _Attempt, args: _Args, kwargs: _Kwargs) -> Any:
        """What a new version returns; from now on the shape's calls go to it. Raises what the version raises."""
        check = None if self._check is None else self._check.begin(args, kwargs)
        version = attempt.unused = self._versions.new()
        start = self._clock()
        self._versions.warm()
        warm = self._clock()
        held_bytes = self._held_bytes()
        try:
            result = version(*args, **kwargs)
            self._backend.synchronise()
        finally:
            attempt.seconds = self._clock() - warm
        if check is not None:
            finding = check.finding(result, partial(self._eager, *args, **kwargs))
            if finding.is_open:
                return finding.result  # The version goes, and a later call makes another.
            self._require_right(finding)
        grown_bytes = max(self._held_bytes() - held_bytes, 0)
        with self._fallback.lock:
            if not self._fallback.is_over:
                evicted = self._ledger.finish(account, attempt.seconds, grown_bytes, warm - start)
                self._running[key], attempt.unused = _Running(account, version), None
                if evicted is not None:
                    self._drop(evicted)
            self._ledger.add_compiled_call(account)
        return result

    def _require_right(self, finding: CheckedCall) -> None:
        if finding.unchecked is not None:
            with self._fallback.lock:
                what = "the first outputs of what is compiled cannot be checked"
                self._recorder.note_once("mismatch", f"{finding.unchecked}: {what}")
        if finding.wrong is not None:
            raise WrongOutputsError(f"wrong outputs: {finding.wrong}", finding.result)

    def _eager_after(self, error: Exception, key: Hashable, running: _Running, args: _Args, kwargs: _Kwargs) -> Any:
        """The eager result of a call at which a version failed. What fails eagerly too is the job's own error, and the
        version stays."""
        raise_interruption(error)
        if self._fallback.raises:
            raise error
        result = self._eagerly(args, kwargs)
        with self._fallback.lock:
            if self._running.get(key) is running:
                self._drop(running.account)
                self._fail(running.account, error)
        return result

    def _fail(self, account: ShapeAccount, error: Exception, seconds: float = 0.0) -> None:
        why = str(error) if isinstance(error, AutotuneError) else quoted(error)
        self._ledger.fail(account, why, seconds)
        self._recorder.note("version", f"{account.text}, compiled for itself: {why}; this shape stays eager")
        if self._ledger.is_given_up:
            self._recorder.note("fallback", f"{self._ledger.stopped}; what is compiled stays, all else is eager")

    def _eagerly(self, args: _Args, kwargs: _Kwargs) -> Any:
        try:
            return self._eager(*args, **kwargs)
        except Exception as error:
            return self._result_after(error, args, kwargs)

    def _result_after(self, error: Exception, args: _Args, kwargs: _Kwargs) -> Any:
        """Untuned: if that works where an eager call failed, it is the config's settings that fail."""
        return self._fallback.result_after(error, "the model under its config", args, kwargs)

    def _timed_version(self, key: Hashable, running: _Running, args: _Args, kwargs: _Kwargs) -> Any:
        result, seconds = self._timed(lambda args, kwargs: running.version(*args, **kwargs), args, kwargs)
        with self._fallback.lock:
            if self._running.get(key) is running:
                if not self._ledger.add_compiled_time(running.account, seconds):
                    self._drop(running.account)
                running.is_timed = self._ledger.is_timed(running.account)
        return result

    def _timed(self, call: Callable[[_Args, _Kwargs], Any], args: _Args, kwargs: _Kwargs) -> tuple[Any, float]:
        self._backend.synchronise()
        start = self._clock()
        result = call(args, kwargs)
        self._backend.synchronise()
        return result, self._clock() - start

    def _drop(self, account: ShapeAccount) -> None:
        """Its version goes; a call of it that is under way is not hurt."""
        key = next(key for key, running in self._running.items() if running.account is account)
        held_bytes = self._held_bytes()
        self._free(self._running.pop(key).version)
        self._ledger.subtract_memory(held_bytes - self._held_bytes())

    def _free(self, version: Callable[..., Any]) -> None:
        """A version that the framework does not let go of is no failure of a call."""
        try:
            self._versions.drop(version)
        except Exception as error:
            raise_interruption(error)
            self._recorder.note("version", f"a compiled version could not be freed: {quoted(error)}")

    def _drop_all(self) -> None:
        for running in list(self._running.values()):
            self._drop(running.account)

    def _held_bytes(self) -> int:
        held = self._versions.memory_bytes()
        try:
            return int(psutil.Process().memory_info().rss) if held is None else held
        except (psutil.Error, OSError):  # A sandbox without /proc.
            return 0

    def _text(self, args: _Args, kwargs: _Kwargs) -> str:
        """The tensors of a call, for people."""
        try:
            specs = [self._backend.spec(leaf) for leaf in Arguments(args, kwargs).leaves()]
        except Exception as error:  # A nested tensor has no sizes.
            raise_interruption(error)
            return "inputs that cannot be described"
        return ", ".join(f"{spec.dtype.lower()}{list(spec.shape)}" for spec in specs if spec) or "no tensors"


@dataclass(eq=False)
class _Attempt:
    """To compile a shape."""

    unused: Callable[..., Any] | None = None
    """A version that calls do not go to."""
    seconds: float = 0.0


_Args = tuple[Any, ...]
_Kwargs = dict[str, Any]


def adaptive_model(
    limits: AdaptivePolicy,
    tuned: TunedConfig,
    versions: Versions,
    backend: Backend,
    *,
    recorder: StatsRecorder,
    fallback: Fallback,
    terms: GuardTerms,
    check: OutputCheck | None,
) -> AdaptiveModel:
    """What decides for each shape on its own, by what the file promises."""
    ledger = Ledger(limits, expected_of(tuned), warmup_calls=backend.warmup_calls, evicts=versions.gives_back)
    adaptive = AdaptiveModel(
        backend, versions, ledger, fallback, recorder, admission=terms.admission, check=check, effects=terms.effects
    )
    recorder.adaptive = weakly(partial(_decisions, ledger), fallback)
    return adaptive


def _decisions(ledger: Ledger, fallback: Fallback | None) -> AdaptiveStats:
    """What an adaptive model decided, also one that is gone: nothing changes it any more."""
    with nullcontext() if fallback is None else fallback.lock:
        return ledger.stats()


def expected_of(tuned: TunedConfig) -> Expected:
    """What the evidence promises of any shape: nobody has measured another one than the study's."""
    evidence = tuned.evidence
    ratio = evidence.best.latency_s.p50 / evidence.untuned.latency_s.p50
    if evidence.speedup is not None and tuned.workload.objective == "latency":
        ratio = 1 / evidence.speedup.median
    cold_s = evidence.best.compile_cold_s
    warm_s = cold_s / 2 if evidence.compile_warm_s is None else min(evidence.compile_warm_s, cold_s)
    # Some of what caches spare is made once as well, such as precompiled headers (up to 80 %, measured): half of it is
    # taken for the shape's own.
    return Expected(compile_s=cold_s, ratio=ratio, fixed_s=(cold_s + warm_s) / 2)
