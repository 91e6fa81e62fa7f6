"""`Application`: a tuned config put to use on a job's model, by the job's policy. See `load`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal

from autotune.apply.config_parts import ConfigParts
from autotune.backends.protocol import Backend
from autotune.backends.registry import load_backend
from autotune.errors import AutotuneError, marked
from autotune.job.board import Answer
from autotune.job.fallback import MismatchError, put_back
from autotune.job.launch import lacks, lacks_around, tip_of
from autotune.job.mismatch import differences
from autotune.job.policy import LoadedFile, Policy
from autotune.job.ranks import DECISION_S, Agreement, Content, Pact, draft_of, level_of, pact_for, stays_untuned
from autotune.job.stats import register
from autotune.job.uses import use_of
from autotune.job.uses.use import Applying, Held, Use
from autotune.tuned.tuned_config import TunedConfig

_log = logging.getLogger("autotune")
UseOf = Callable[[Applying, Any], Use]


class Application:
    """One use of one model, under one policy."""

    def __init__(self, loaded: LoadedFile, model: Any, policy: Policy, use: UseOf | None = None) -> None:
        """`use`: what is made of the model; None: what the file was tuned for."""
        self._loaded = loaded
        self._given = model
        self._policy = policy
        self._applying = Applying(loaded, policy)
        self._recorder = self._applying.recorder
        self._use = (use or use_of(loaded.answer))(self._applying, model)
        self._held: Held | None = None
        """What the job is to hold, once all ranks agree, and how to undo it."""

    left_out: Mapping[str, str] = MappingProxyType({})
    """It has no parts."""

    @property
    def raises(self) -> bool:
        """A refusal is the job's to deal with."""
        return self._policy.on_mismatch == "raise"

    def applied(self) -> Held:
        """What the job holds from now on, and how to undo it all."""
        draft = draft_of(self._use.what, self._loaded.path, self._loaded.answer)
        with agreement_on(draft, self._loaded.answer, self._given, self._policy) as agreement:
            refusal = self.begin(agreement.pact)
            if refusal is None or not self.raises:
                refusal = agreement.reached(refusal)
            return self.end(refusal)

    def begin(self, pact: Pact | None) -> Exception | None:
        """Apply the config, and return what keeps this process from it. `end` has to follow."""
        self._applying.pact = pact
        try:
            self._held = self._tuned_or_untouched()
        except BaseException as error:
            put_back(self._applying.changes.undo, self._recorder)
            if not isinstance(error, Exception):
                raise
            return error
        return None

    def end(self, refusal: Exception | None) -> Held:
        """What the job holds, and how to undo it, once it is known what keeps all ranks from the config."""
        if refusal is not None:
            self.withdraw()
            if self.raises:
                raise refusal
            self._note_refusal(refusal)
            self._held = self._untouched()
            refusal = None  # Its traceback leads here, and would keep the model.
        assert self._held is not None
        given, release = self._held
        for held in (self._use.given, self._use.model, given):
            register(held, self._recorder)
        return given, release

    def withdraw(self) -> None:
        """Undo what was begun, if anything was: the job has what it gave."""
        if self._held is not None:
            self._held[1]()
            self._held = None
            self._recorder.note_first_call()
            self._recorder.diagnose = None
            self._recorder.rehearsal = lambda: None

    def _tuned_or_untouched(self) -> Held:
        if self._loaded.problem is not None:
            raise self._loaded.problem
        tuned = self._applying.tuned
        if tuned.is_untuned:
            _log.info("autotune: %s says %s: the model runs as it is", self._loaded.path, tuned.verdict.value)
        if tuned.is_untuned and not self._policy.monitor:
            return self._untouched()
        backend = load_backend(tuned.framework)
        self._use.take(backend)
        self._applying.watch(backend)
        if tuned.is_untuned:
            return self._untouched()
        self._require_allowed(tuned, backend)
        is_started = self._require_started(tuned)
        differing = differences(tuned, backend, self._use.model)
        if differing:
            self._require_accepted(differing)
        return self._use.tuned(backend, fits=is_started and not differing)

    def _untouched(self) -> Held:
        self._recorder.state = "untuned"
        return self._use.untouched()

    def _require_allowed(self, tuned: TunedConfig, backend: Backend) -> None:
        """Raises MismatchError for what only the job, and no file, can decide."""
        if (mode := backend.unfit_mode()) is not None and not self._policy.process_settings:
            raise MismatchError(
                f"{self._loaded.path} was not proven in {mode[0]}, in which this process runs all its models",
                tip=f"leave that before this with {mode[1]}, or allow it with apply(model, process_settings=True)",
            )
        parts = ConfigParts.of(tuned.config)
        knobs = backend.process_settings(parts.settings)
        if knobs and not self._policy.process_settings:
            raise MismatchError(
                f"{self._loaded.path} sets {', '.join(knobs)} for the whole process, other models in it included",
                tip=f"allow it with apply(model, process_settings=True), or tune without {marked('process_settings')}",
            )
        if parts.options and not self._policy.compiler_options:
            raise MismatchError(
                f"{self._loaded.path} sets {', '.join(parts.options)}, for which no bundled search space has a knob",
                tip="allow it with apply(model, compiler_options=True), if you know who made the file",
            )

    def _require_started(self, tuned: TunedConfig) -> bool:
        """Whether this process was started as the config asks: no file can change that now. Raises MismatchError where
        it was not, unless the job takes that."""
        around, lacking = lacks_around(self._loaded.path, tuned), lacks(self._loaded.path, tuned)
        if lacking is not None and self._policy.on_mismatch != "apply":
            raise MismatchError(lacking, tip=tip_of(self._loaded.path, tuned.config))
        if lacking is not None:
            self._recorder.note("mismatch", f"{lacking}: applied anyway, the speed-up is not proven here")
        if around is not None:
            self._recorder.note("mismatch", around)
        return lacking is None

    def _require_accepted(self, differing: list[str]) -> None:
        """Policy: an exception ends the application, a return goes on with it."""
        found = f"{self._loaded.path} was tuned for {'; '.join(differing)}"
        if self._policy.on_mismatch != "apply":
            raise MismatchError(found, tip=self._applying.hint or None)
        self._recorder.note("mismatch", f"{found}: applied anyway, the speed-up is not proven here")

    def _note_refusal(self, error: Exception) -> None:
        """One line: what is wrong, that the model stays as it is, what to do."""
        kind: Literal["mismatch", "fallback"] = "mismatch" if isinstance(error, AutotuneError) else "fallback"
        pact = self._applying.pact
        told = self._policy.told_of(error, stays_untuned("the model stays", pact))
        self._recorder.note(kind, told, level_of(pact))


def agreement_on(draft: Answer, content: Content | None, model: Any, policy: Policy) -> Agreement:
    """What is to be decided about the content of a file that is applied to a model."""
    pact = pact_for(None if content is None else content.framework, model, policy.ranks)
    return Agreement(pact, draft, policy.told_of, DECISION_S)
