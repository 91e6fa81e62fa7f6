"""Processes of a trial beside its own: what one of them failed with is the trial's failure."""

from __future__ import annotations

import pytest

from autotune.errors import InvalidConfigError, SetupError
from autotune.measure.measurement import Reason, Stage
from autotune.trial.worker.accuracy_check import WrongResultError
from autotune.trial.worker.further import error_of
from autotune.trial.worker.main import failure_of


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (WrongResultError("the loss is 3", 0.0), Reason.WRONG_RESULT),
        (InvalidConfigError("no such knob"), Reason.INVALID),
        (SetupError("no disk"), Reason.SETUP),
        (MemoryError("too little"), Reason.OUT_OF_MEMORY),
        (ValueError("the third step fails"), Reason.RUN_ERROR),
    ],
)
def test_what_another_process_failed_with_fails_this_one_alike(make_request, error, reason):
    """The same reason and figure, and its kind is named once, whatever process says it."""
    there = failure_of(error, Stage.RUN, make_request(), None, evidence="there")
    here = failure_of(error_of(there, "instance 1: "), Stage.RUN, make_request(), None, evidence="here")
    assert (there.reason, here.reason, here.relative_error) == (reason, reason, there.relative_error)
    assert f"instance 1: {there.error if reason is Reason.RUN_ERROR else error}" in here.error
    assert here.error.count(type(error).__name__) == there.error.count(type(error).__name__)
