"""What a guard does about calls that leave something behind, and about calls that are not timed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autotune.backends.undo import UndoLog
from autotune.job.admission import Admission
from autotune.job.fallback import Fallback, MismatchError
from autotune.job.guard import Guard, GuardTerms
from autotune.job.latency_check import MAX_LEFT_OUT, Promise
from autotune.job.stats import StatsRecorder
from autotune_fake.backend import FakeBackend


class Model:
    """An untuned call appends to `left` as often as `num_left` says; a tuned one as `tuned_leaves` says."""

    def __init__(self, num_left: int, *, tuned_leaves: bool = False) -> None:
        self.num_left = num_left
        self.tuned_leaves = tuned_leaves
        self.left: list[str] = []
        self.calls: list[str] = []

    def untuned(self, x: Any) -> Any:
        self.calls.append("untuned")
        if self.calls.count("untuned") <= self.num_left:
            self.left.append("untuned")
        return x

    def tuned(self, x: Any) -> Any:
        self.calls.append("tuned")
        if self.tuned_leaves:
            self.left.append("tuned")
        return x

    def effects(self, args: Any, kwargs: Any) -> Seen:
        return Seen(self)


class Seen:
    def __init__(self, model: Model) -> None:
        self.model = model
        self.num_before = len(model.left)

    def found(self) -> str | None:
        return "left" if len(self.model.left) > self.num_before else None


@pytest.fixture
def guarded() -> Callable[..., tuple[Guard, StatsRecorder]]:
    def guarded(model: Model, *, raises: bool = False, **terms: Any) -> tuple[Guard, StatsRecorder]:
        recorder = StatsRecorder()
        fallback = Fallback(model.untuned, UndoLog(), recorder, raises=raises)
        agreed = GuardTerms(
            **{"admission": Admission(lambda _: None), "hint_of_misfits": "", "check": None, "num_compiled": None}
            | {"promise": None, "effects": model.effects}
            | terms
        )
        return Guard(FakeBackend(), model.tuned, fallback, agreed, recorder), recorder

    return guarded


def test_a_model_that_leaves_nothing_behind_is_tuned_from_the_second_call_on(guarded):
    """The first call is the model's own, and looked at."""
    model = Model(num_left=0)
    guard, recorder = guarded(model)
    assert [guard(n) for n in range(4)] == [0, 1, 2, 3]
    assert model.calls == ["untuned", "tuned", "tuned", "tuned"]
    assert recorder.events == []


def test_a_table_that_the_first_call_fills_is_no_reason(guarded):
    """What is left behind once is left behind by the untuned call."""
    model = Model(num_left=1)
    guard, recorder = guarded(model)
    for n in range(4):
        guard(n)
    assert model.calls == ["untuned", "untuned", "tuned", "tuned"]
    assert recorder.state == "tuned"


def test_a_model_whose_calls_leave_something_behind_goes_untuned(guarded):
    """No call is made twice, none is lost, and one warning says what changes."""
    model = Model(num_left=99)
    guard, recorder = guarded(model)
    for n in range(4):
        guard(n)
    assert model.calls == ["untuned"] * 4 == model.left
    assert [each.message for each in recorder.events] == [
        "each call of the model changes left, which a compiled call does not; back to the untuned model"
    ]


def test_a_tuned_call_that_writes_where_the_model_does_not(guarded):
    """It is the only one."""
    model = Model(num_left=0, tuned_leaves=True)
    guard, recorder = guarded(model)
    for n in range(4):
        guard(n)
    assert model.calls == ["untuned", "tuned", "untuned", "untuned"]
    assert "a compiled call changed left" in recorder.events[0].message


def test_a_job_that_asks_for_exceptions_gets_one(guarded):
    """As for any other reason to go back."""
    guard, _ = guarded(Model(num_left=99), raises=True)
    guard(0)
    with pytest.raises(MismatchError, match="each call of the model changes left"):
        guard(1)


def test_nothing_is_looked_at_where_no_effect_can_be_lost(guarded):
    """The first call is tuned."""
    model = Model(num_left=99)
    guard, _ = guarded(model, effects=None)
    guard(0)
    assert model.calls == ["tuned"]


def test_a_job_of_other_inputs_settles(guarded):
    """After the first fitting call come only others: they are not timed, and at some point nothing waits for more."""
    model = Model(num_left=0)
    guard, recorder = guarded(
        model,
        effects=None,
        promise=Promise(latency_s=1.0, margin=1.5, page_faults=None, keeping_memory=None, hint=""),
        admission=Admission(lambda arguments: None if arguments.leaves()[0] == 0 else "other", keeps_misfits=False),
    )
    guard(0)
    for _ in range(MAX_LEFT_OUT - 1):
        guard("another")
    assert recorder.state == "settling"
    guard("another")
    assert recorder.state == "tuned"
