"""`Loaded`: what `autotune.load` gives a job: a tuned config, or why there is none, and its use on a model.

    model = autotune.load("best.yaml").apply(model)

A job must not die of its speed-up: unless it asks for exceptions, it goes on with the untuned model, and one line in
the log of `autotune` says why. `apply` goes through the same backend method that the trials used: what was measured is
what is deployed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from os import PathLike, fspath
from typing import Any, Literal, get_args

import psutil

from autotune.backends import Backend, load_backend
from autotune.changes import Changes
from autotune.errors import AutotuneError, InputError
from autotune.guard import Applied, Guard, MismatchError, Terms
from autotune.journal import CallTimes, Journal, keep_for
from autotune.mismatch import differences, inputs_differ, retune_command
from autotune.numerics import default_tolerance
from autotune.tuned import TunedConfig, load_tuned
from autotune.workload import Arguments

OnMismatch = Literal["retune-hint", "untuned", "apply", "raise"]
MARGIN = 1.5
"""Times the recorded latency that the first calls may take before the untuned model is tried."""


@dataclass(frozen=True)
class Policy:
    """How a job wants its tuned model. See `Loaded.apply`."""

    on_mismatch: OnMismatch = "retune-hint"
    check: bool = False
    margin: float | None = MARGIN
    monitor: bool = False

    def __post_init__(self) -> None:
        if self.on_mismatch not in get_args(OnMismatch):
            raise InputError(
                f"on_mismatch={self.on_mismatch!r}: unknown", tip=f"choose one of: {', '.join(get_args(OnMismatch))}"
            )


@dataclass(frozen=True)
class Loaded:
    """The answer in a file. `answer` is None where the file cannot be used; `problem` then says why."""

    path: str
    answer: TunedConfig | None
    problem: InputError | None = None

    def apply(
        self,
        model: Any,
        *,
        on_mismatch: OnMismatch = "retune-hint",
        check: bool = False,
        margin: float | None = MARGIN,
        monitor: bool = False,
    ) -> Any:
        """The model compiled as it was measured; the very same model if nothing was faster than leaving it.

        `model` is a `torch.nn.Module` or a `mindspore.nn.Cell`, on its device and in the mode (eval or train) in which
        it will be called. What comes back is of its class and has its parameters; compilation happens at the first
        call. Settings that a framework keeps for the whole process are set now; `applied` takes them back.

        `on_mismatch`: what to do where release, device, driver, model or the first call's inputs are not those of the
        measurement, or the file cannot be read. `retune-hint`: stay untuned, with a warning that says how to tune here;
        `untuned`: the same without the advice; `apply`: compile all the same, with a warning; `raise`: MismatchError,
        or the error itself, here or at a call. `check`: compare the first outputs with the untuned model's, which is
        called for it. `margin`: if the first calls take longer than so many times the recorded latency, and longer
        than the untuned model, the untuned model stays; None: do not look. `monitor`: count and time the calls, for
        `autotune.stats(model)`.

        Never raises but for `on_mismatch="raise"`. A config that does not compile, or fails at a call that the untuned
        model takes, is given up: one warning, and the untuned model from then on.
        """
        given, _ = _Application(self, model, Policy(on_mismatch, check, margin, monitor)).given()
        return given

    @contextmanager
    def applied(self, model: Any, **policy: Any) -> Iterator[Any]:
        """`apply` for as long as the `with` block lasts; then the process and the model are as they were before.

        Takes what `apply` takes. What MindSpore or the system take only once in a process stays.
        """
        given, release = _Application(self, model, Policy(**policy)).given()
        try:
            yield given
        finally:
            release()


def load(path: str | PathLike[str]) -> Loaded:
    """The tuned config in a YAML file. Never raises: what is wrong with the file is for `apply` to deal with."""
    try:
        return Loaded(fspath(path), load_tuned(path))
    except InputError as problem:
        return Loaded(fspath(path), None, problem)


class _Application:
    """One model under one policy."""

    def __init__(self, loaded: Loaded, model: Any, policy: Policy) -> None:
        self._loaded = loaded
        self._model = model
        self._policy = policy
        self._journal = Journal()
        self._changes = Changes()
        self._backend: Backend | None = None

    def given(self) -> tuple[Any, Callable[[], None]]:
        """What the job holds from now on, and how to undo it all."""
        try:
            given, release = self._tuned_or_untouched()
        except Exception as error:
            if self._policy.on_mismatch == "raise":
                raise
            self._changes.undo()
            self._note_refusal(error)
            given, release = self._untouched()
        for each in (self._model, given):
            keep_for(each, self._journal)
        return given, release

    def _tuned_or_untouched(self) -> tuple[Any, Callable[[], None]]:
        if self._loaded.problem is not None:
            raise self._loaded.problem
        tuned = self._loaded.answer
        assert tuned is not None
        if tuned.is_untuned and not self._policy.monitor:
            return self._untouched()
        backend = self._backend = load_backend(tuned.framework)
        problem = backend.check_model(self._model)
        if problem is not None:
            raise MismatchError(f"this config was tuned for {tuned.tuned_for}; apply() was given {problem}")
        backend.adopt(self._model)
        self._watch(backend)
        return self._untouched() if tuned.is_untuned else self._compiled(tuned, backend)

    def _compiled(self, tuned: TunedConfig, backend: Backend) -> tuple[Any, Callable[[], None]]:
        differing = differences(tuned, backend, self._model)
        if differing:
            self._meet(tuned, differing)
        # Before the model is changed: a cast would widen the tolerance.
        terms = self._terms(tuned, backend, fits=not differing)
        untuned = backend.direct(self._model)
        step = backend.compile(self._model, tuned.config, self._changes)
        guard = Guard(Applied(backend, backend.direct(step), untuned, self._changes), terms, self._journal)
        self._journal.diagnose = partial(backend.diagnose, self._model, tuned.config)
        holding = Changes()
        given = backend.stand_in(self._model, step, self._monitored(guard), holding)

        def release() -> None:
            holding.undo()
            guard.release()

        return given, release

    def _meet(self, tuned: TunedConfig, differing: list[str]) -> None:
        """Policy: an exception ends the application, a return goes on with it."""
        found = f"{self._loaded.path} was tuned for {'; '.join(differing)}"
        if self._policy.on_mismatch != "apply":
            raise MismatchError(found, tip=_hint(tuned))
        self._journal.note("mismatch", f"{found}: applied all the same, the speed-up is not proven here")

    def _terms(self, tuned: TunedConfig, backend: Backend, *, fits: bool) -> Terms:
        # A training step's figures are not those of the model's call in it.
        is_comparable = fits and tuned.workload.task == "infer" and self._policy.margin is not None
        return Terms(
            misfit=partial(self._misfit, tuned, backend) if tuned.workload.task == "infer" else lambda _: None,
            apply_to_misfits=self._policy.on_mismatch == "apply",
            raises=self._policy.on_mismatch == "raise",
            hint=_hint(tuned) if self._policy.on_mismatch != "untuned" else "",
            tolerance=_tolerance(tuned, backend, self._model) if self._policy.check else None,
            latency_s=tuned.evidence.best.latency_s.p50 if is_comparable else None,
            margin=self._policy.margin or MARGIN,
        )

    def _misfit(self, tuned: TunedConfig, backend: Backend, arguments: Arguments) -> str | None:
        found = inputs_differ(tuned, backend, arguments)
        return None if found is None else f"{self._loaded.path} was tuned for {found}"

    def _note_refusal(self, error: Exception) -> None:
        """One line: what is wrong, that the model stays as it is, what to do."""
        what = str(error) if isinstance(error, AutotuneError) else f"{type(error).__name__}: {error}"
        tip = getattr(error, "tip", None) if self._policy.on_mismatch != "untuned" else None
        kind: Literal["mismatch", "fallback"] = "mismatch" if isinstance(error, AutotuneError) else "fallback"
        self._journal.note(kind, "; ".join(filter(None, [what, "the model stays untuned", tip])))

    def _untouched(self) -> tuple[Any, Callable[[], None]]:
        self._journal.state = "untuned"
        if not self._policy.monitor or self._backend is None:
            return self._model, lambda: None
        holding = Changes()
        call = self._monitored(self._backend.direct(self._model))
        return self._backend.stand_in(self._model, self._model, call, holding), holding.undo

    def _watch(self, backend: Backend) -> None:
        self._journal.memory_bytes = lambda: backend.peak_memory_bytes() or psutil.Process().memory_info().rss
        if self._policy.monitor:
            is_synchronous = backend.device_name().lower() == "cpu"
            self._journal.calls = CallTimes(None if is_synchronous else backend.synchronise)

    def _monitored(self, call: Callable[..., Any]) -> Callable[..., Any]:
        return call if self._journal.calls is None else self._journal.calls.around(call)


def _hint(tuned: TunedConfig) -> str:
    return f"to tune here: {retune_command(tuned.workload, tuned.framework)}"


def _tolerance(tuned: TunedConfig, backend: Backend, model: Any) -> float:
    """As in the trials: what the user allowed, else by the types of parameters and inputs."""
    if tuned.workload.tolerance is not None:
        return tuned.workload.tolerance
    specs = [*(spec for _, spec in backend.parameters(model)), *tuned.workload.signature.inputs]
    return default_tolerance(spec.dtype for spec in specs)
