"""What is said of an exception of the user's own code: where it was raised, and from what it comes."""

from __future__ import annotations

import pytest

from autotune.bench.local import LocalBench
from autotune.measure.measurement import Failure, Reason, Stage
from autotune.trial.folder import TrialFolder

CHAINED = """
def inner():
    raise OSError("no such operator: nms")

def tiny():
    try:
        inner()
    except OSError as error:
        raise RuntimeError("could not import the model") from error
"""
HIDDEN = CHAINED.replace("from error", "from None")
IN_A_CALL = """
import numpy as np

def tiny():
    def model(x):
        return x["nothing"]
    return model, np.ones(3)
"""


@pytest.mark.parametrize(
    ("content", "stage", "words"),
    [
        (
            CHAINED,
            Stage.BUILD,
            "could not import the model; it comes from OSError: no such operator: nms [tiny_model.py, line 3]",
        ),
        (HIDDEN, Stage.BUILD, "could not import the model [tiny_model.py, line 9]"),
        (IN_A_CALL, Stage.COMPILE, "[tiny_model.py, line 6]"),
    ],
    ids=["the innermost exception", "one that its author hides", "the line of a call"],
)
def test_the_cause_and_the_line_are_named(tmp_path, make_request, model_file, content, stage, words):
    model_file.write_text(content)
    with LocalBench({}, preload=True, log=tmp_path / "log") as bench:
        outcome = bench.run(TrialFolder(tmp_path / "trial"), make_request())
    assert isinstance(outcome, Failure)
    assert (outcome.reason, outcome.stage) in {(Reason.SETUP, stage), (Reason.RUN_ERROR, stage)}
    assert outcome.error.endswith(words)
