"""`UseOfText`: a model whose `generate` runs under a config, and `GuardedGeneration`, which answers for it.

The first call of each program, a prefill or a decode step of yet another form, is made a second time, untuned, on a
copy of its cache, and the logits are compared: they have to agree within the tolerance of the study. Where they do not,
or the tuned call fails, the untuned call's result goes on with its own cache, and the config is given up. Later calls
are trusted. A step that fails then is made again untuned, once its cache is what it was.

How long a call takes is not watched: a decode step takes longer with each token, no two calls of `generate` are alike,
and an untuned step on the config's cache is not what an untuned model would take.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from autotune.apply.config_parts import ConfigParts
from autotune.backends.call_state import CallState
from autotune.backends.capabilities import Generating, Phase, require
from autotune.backends.outputs import observed
from autotune.backends.protocol import Backend
from autotune.backends.undo import UndoLog
from autotune.errors import UnsuitableCallError
from autotune.job.fallback import Fallback, MismatchError, raise_interruption
from autotune.job.output_check import MOST_OPEN, MOVED
from autotune.job.stats import GenerationStats, StatsRecorder, expect_calls, weakly
from autotune.job.uses.calls import UseOfCalls
from autotune.job.uses.use import Held, releasing, tolerance_of
from autotune.measure.parts import DisagreementError, Strictness, errors
from autotune.workload.kinds.text import Text

CACHE = "past_key_values"
"""The argument that a call changes."""


class UseOfText(UseOfCalls):
    """See the module."""

    kind = Text
    takes_shapes = False

    def tuned(self, backend: Backend, *, fits: bool) -> Held:
        del fits  # How long a call takes is not watched.
        applying, tuned = self._applying, self._applying.tuned
        generates = require(backend.generates, "generation of text")
        if tuned.texts is None:
            raise MismatchError(
                f"{applying.loaded.path} does not say what texts it was tuned for", tip="export it again"
            )
        if applying.pact is not None:
            raise MismatchError(
                f"{applying.loaded.path} was tuned to generate text in one process, here are several ranks"
            )
        fallback = applying.fallback_to(backend.proxies.direct(self.model), repeats=True)
        tolerance = tolerance_of(tuned, backend, self.model)
        guard = GuardedGeneration(backend, self.model, fallback, applying.recorder, tolerance)
        settings = ConfigParts.of(tuned.config).settings
        generating = generates(self.model, settings, applying.changes, longest=tuned.texts.longest, guard=guard)
        fallback.leave_tuned = generating.leave
        applying.recorder.generation = weakly(_stats_of, generating)
        self._diagnose(backend)
        applying.recorder.note_first_call = expect_calls(applying.loaded.path)
        holding = UndoLog()
        given = generating.stand_in(applying.monitored(generating.call), holding)
        return given, releasing(holding, fallback)


class GuardedGeneration:
    """See `GenerationGuard`."""

    def __init__(
        self, backend: Backend, model: Any, fallback: Fallback, recorder: StatsRecorder, tolerance: float
    ) -> None:
        """`tolerance`: largest relative error of logits."""
        self._backend = backend
        self._model = model
        self._num_open = 0
        self._fallback = fallback
        self._recorder = recorder
        self._tolerance = tolerance
        recorder.state = "settling"

    def refused(self, error: UnsuitableCallError, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The model's own call. The cache goes on, whatever kind it is."""
        self._recorder.note_first_call()
        return self._fallback.result_after(error, "", args, kwargs)

    def first(self, phase: Phase, tuned: Callable[[], Any], kwargs: dict[str, Any]) -> tuple[Any, bool]:
        """The tuned call's result, if it agrees with the model's own. Where weights were changed meanwhile, two that do
        not say nothing."""
        self._recorder.note_first_call()
        again = {**kwargs, CACHE: copy.deepcopy(kwargs[CACHE])}
        before = self._state()
        try:
            result = tuned()
        except UnsuitableCallError:
            raise
        except Exception as error:
            return self._fallback.result_after(error, f"the tuned {phase}", (), again), True
        expected = self._fallback.untuned(**again)
        wrong = self._what_is_wrong(expected, result)
        if wrong is not None and before is not None and self._are_other_weights(before):
            self._num_open += 1
            if self._num_open > MOST_OPEN:
                self._fallback.give_up(MOVED)
            return expected, False
        if wrong is not None:
            self._fallback.give_up(f"the tuned {phase} does not agree with the untuned model: {wrong}")
            return expected, True
        if phase == "decode" and not self._fallback.is_over:
            self._recorder.state = "tuned"
        return result, True

    def after(self, error: Exception, phase: Phase, kwargs: dict[str, Any]) -> Any:
        """The model's own call in place of one that failed."""
        return self._fallback.result_after(error, f"the tuned {phase}", (), kwargs)

    def _state(self) -> CallState | None:
        """None for a model that holds what cannot be compared."""
        try:
            return CallState(self._backend, {"model": self._model})
        except Exception as error:
            raise_interruption(error)
            return None

    def _are_other_weights(self, before: CallState) -> bool:
        now = self._state()
        return now is not None and now.has_other_weights_than(before)

    def _what_is_wrong(self, expected: Any, result: Any) -> str | None:
        wanted, given = (observed(self._backend, {"logits": each["logits"]}).parts for each in (expected, result))
        try:
            errors(wanted, given, Strictness(self._tolerance))
        except DisagreementError as error:
            return str(error)
        return None


def _stats_of(generating: Generating | None) -> GenerationStats | None:
    """Where its calls went; None once the model is gone."""
    if generating is None:
        return None
    counts = generating.num_calls
    return GenerationStats(counts["prefill"], counts["decode"], counts["untuned"])
