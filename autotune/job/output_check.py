"""`OutputCheck`: whether a tuned call gave what the untuned model gives. It is asked at a job's first calls, at those
in which something is compiled, and at one now and then (`LaterCalls`).

Outputs are compared as in a trial (`measure.parts`), except that nothing is known here of what rounding does to them.

The comparison makes the call a second time, untuned. That is right only where the first one changed nothing: a model
that writes to its inputs, as to a cache of keys and values, or to its own buffers or attributes would start from what
the tuned call left behind. Such a call is not made again, and what the tuned one returned stands
(docs/decisions/0018-results-first.md). Where somebody else changes weights meanwhile, as a job does that loads others,
two results that differ say nothing: the next call is compared.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from autotune.backends.call_state import CallState
from autotune.backends.outputs import Observed, observed
from autotune.backends.protocol import Backend
from autotune.errors import quoted
from autotune.job.fallback import raise_interruption
from autotune.measure.parts import AuthorsWord, DisagreementError, Strictness, errors
from autotune.workload.arguments import Arguments


@dataclass(frozen=True)
class CheckedCall:
    """What one tuned call came to."""

    result: Any
    """What the job gets."""
    wrong: str | None = None
    """What is wrong with the tuned call; `result` is then the untuned model's."""
    unchecked: str | None = None
    """Why the call was not compared."""
    is_open: bool = False
    """Weights were changed while the two calls were made: it says nothing, and the next call is to be compared."""


MOST_OPEN = 8
"""Comparisons of one model that come to nothing, since its weights are changed meanwhile."""
MOVED = f"the weights were changed during each of {MOST_OPEN + 1} calls that were to be compared"


@dataclass
class OutputCheck:
    """For the calls of one model. `tolerance`: largest relative error of the outputs; `authors`: how the model's author
    has its outputs compared."""

    backend: Backend
    model: Any
    tolerance: float
    authors: AuthorsWord | None = None
    num_open: int = 0

    def begin(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, is_alone: bool = True) -> CallCheck:
        """Before the tuned call. Not `is_alone`: other threads may call the model meanwhile."""
        return CallCheck(self, args, kwargs, is_alone=is_alone)

    def finding_after(
        self, result: Any, tuned: Callable[..., Any], untuned: Callable[..., Any], given: Arguments
    ) -> CheckedCall:
        """After a tuned call, which returned `result`, of a model whose first one changed nothing. Further calls are
        made with copies of the inputs: where the untuned one changes these or the model, it cannot be compared."""
        if self.backend.acting_in_training(self.model):
            return CheckedCall(result, unchecked="the model is in training mode")
        try:
            copies = given.with_leaves([self._copied(leaf) for leaf in given.leaves()])
        except Exception as error:
            return CheckedCall(result, unchecked=_incomparable(error))
        args, kwargs = copies.positional, dict(copies.keyword or {})
        finding = CallCheck(self, args, kwargs, given).finding(result, lambda: copies.call(untuned))
        if finding.wrong is None and not finding.is_open:
            return finding
        # Weights may have been changed since the tuned call began: both are made once more.
        check = CallCheck(self, args, kwargs)
        again = check.finding(copies.call(tuned), lambda: copies.call(untuned))
        return CheckedCall(finding.result, wrong=again.wrong)

    def _copied(self, leaf: Any) -> Any:
        return leaf if self.backend.spec(leaf) is None else copy.deepcopy(leaf)


class CallCheck:
    """The check of one call."""

    def __init__(
        self,
        check: OutputCheck,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        given: Arguments | None = None,
        *,
        is_alone: bool = True,
    ) -> None:
        """`given`: what the tuned call was made with, before this; None: it is still to be made, with the same."""
        self._check = check
        self._given = given
        self._is_alone = is_alone
        self._arguments = Arguments(args, kwargs)
        self._roots = {"model": check.model, "positional": args, "keyword": kwargs}
        self._before: CallState | None = None
        self._problem: str | None = None
        if not is_alone and check.backend.acting_in_training(check.model):
            self._problem = "the model is in training mode"
        elif not is_alone and check.backend.records_gradients(check.model, args, kwargs):
            self._problem = "the call records gradients"
        try:
            self._before = self._state() if self._problem is None else None
        except Exception as error:
            self._problem = _incomparable(error)

    def finding(self, result: Any, reference: Callable[[], Any]) -> CheckedCall:
        """After the tuned call, which returned `result`. `reference` makes the same call untuned; what it raises is the
        model's own error, except that two results may not fit into memory."""
        backend = self._check.backend
        try:
            problem = self._problem
            if problem is None and self._is_other(now := self._state()) and not self._is_moved(now):
                problem = "a call changes the model's inputs or its state"
            outputs = Observed() if problem else self._observed(result, self._given or self._arguments)
            random_state = backend.random_state()
        except Exception as error:
            problem = _incomparable(error)
        if problem is not None:
            return CheckedCall(result, unchecked=problem)
        try:
            expected = reference()
        except Exception as error:
            raise_interruption(error)
            if self._is_alone and backend.classify(error) is None:
                raise
            return CheckedCall(result, unchecked=f"the untuned call failed ({quoted(error)})")
        try:
            problem = self._why_incomparable(random_state)
            return CheckedCall(result, unchecked=problem) if problem else self._compared(result, expected, outputs)
        except Exception as error:
            return CheckedCall(result, unchecked=_incomparable(error))

    def _compared(self, result: Any, expected: Any, outputs: Observed) -> CheckedCall:
        wrong, now = self._disagreement(self._observed(expected, self._arguments), outputs), self._state()
        if wrong is not None and self._is_moved(now):
            return self._open(expected)
        if not self._is_alone and self._is_other(now):
            return CheckedCall(result, unchecked="inputs or state were changed meanwhile")
        if wrong is None and self._is_other(now) and not self._is_moved(now):
            wrong = "the untuned model changes its inputs or its state, and the tuned call did not"
        if wrong is not None:
            return CheckedCall(expected, wrong=wrong)
        unchecked = f"{', '.join(outputs.not_compared)} cannot be compared" if outputs.not_compared else None
        return CheckedCall(result, unchecked=unchecked)

    def _open(self, expected: Any) -> CheckedCall:
        self._check.num_open += 1
        is_last = self._check.num_open > MOST_OPEN
        return CheckedCall(expected, unchecked=MOVED if is_last else None, is_open=not is_last)

    def _why_incomparable(self, random_state: bytes) -> str | None:
        """After both calls."""
        if self._check.backend.random_state() != random_state:
            return "the model draws random numbers"
        is_changed = self._given is not None and self._is_other(now := self._state()) and not self._is_moved(now)
        return "a call changes the model's inputs or its state" if is_changed else None

    def _disagreement(self, expected: Observed, outputs: Observed) -> str | None:
        terms = Strictness(self._check.tolerance, authors=self._check.authors)
        try:
            errors(expected.parts, outputs.parts, terms)
        except DisagreementError as error:
            return str(error)
        return None

    def _is_other(self, now: CallState) -> bool:
        return now != self._before

    def _is_moved(self, now: CallState) -> bool:
        return self._before is not None and now.has_other_weights_than(self._before)

    def _observed(self, result: Any, inputs: Arguments) -> Observed:
        return observed(self._check.backend, result, inputs=inputs, whole=self._check.authors is not None)

    def _state(self) -> CallState:
        return CallState(self._check.backend, self._roots)


def _incomparable(error: Exception) -> str:
    raise_interruption(error)
    return f"the model's inputs, state or outputs cannot be compared ({quoted(error)})"
