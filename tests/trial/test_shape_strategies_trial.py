"""Shape strategies in trials: real processes of the fake framework, whose compiler compiles for each new shape."""

from __future__ import annotations

import pytest

from autotune.bench.local import LocalBench
from autotune.config import Config
from autotune.measure.measurement import Measurement, Reason
from autotune.measure.objective import Objective
from autotune.planning.models import make_workload
from autotune.planning.shapes import with_shapes
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.workload.traffic import parse_shapes
from tests.conftest import QUICK

MODEL = """
import numpy as np

def rows(rows=8):
    inputs = np.arange(4.0 * rows).reshape(rows, 4)
    return {"model": lambda x: (x * 2, x.sum(1)), "inputs": inputs, "padding": {"rows": 7}}

def mixed(rows=8):
    return {"model": lambda x: x - x.mean(0), "inputs": np.arange(4.0 * rows).reshape(rows, 4), "padding": {"rows": 7}}

def undeclared(rows=8):
    return lambda x: x * 2, np.arange(4.0 * rows).reshape(rows, 4)
"""
STATIC = {"execution": "compile", "most_graphs": 99, "latency_ms": 0.1}
SIXTEEN_CALLS = Objective.parse("total:16")
BUCKETED = {**STATIC, "shapes": "bucketed", "num_buckets": 2}


@pytest.fixture
def trial(tmp_path, monkeypatch):
    """The outcome of a model's trial under knobs and a traffic of 1 to 8 rows, after one of the untuned model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(MODEL)
    traffic = parse_shapes(("rows=1..8",))

    def run(model, **knobs):
        workload = with_shapes(make_workload(f"net.py:{model}", {}, "fake", "cpu", 0), traffic, SIXTEEN_CALLS)
        with LocalBench({}, preload=True, log=tmp_path / "log.txt") as runner:
            for name, config in (("untuned", {"execution": "eager"}), ("tuned", knobs)):
                outcome = runner.run(
                    TrialFolder(tmp_path / name),
                    TrialRequest(
                        number=0,
                        workload=workload,
                        config=Config(config),
                        untuned=name == "untuned",
                        tolerance=1e-6,
                        reference=str(tmp_path / "reference.npz"),
                        cache=str(tmp_path / name / "cache"),
                        cold=True,
                        sampling=QUICK,
                    ),
                )
        return outcome

    return run


@pytest.mark.parametrize(
    ("knobs", "num_graphs"),
    [
        (STATIC, 8),
        (BUCKETED, 2),
    ],
    ids=str,
)
def test_a_trial_compiles_what_its_strategy_means_to(trial, knobs, num_graphs):
    """The stream is replayed through the strategy, and every checked shape gives the untuned model's outputs."""
    outcome = trial("rows", **knobs)
    assert isinstance(outcome, Measurement), outcome
    assert outcome.relative_error == 0
    assert outcome.replay.num_compilations == num_graphs


def test_a_wrong_declaration_fails_its_trial(trial):
    """What is appended changes the rows that were there: the outputs are compared with those of unpadded calls."""
    outcome = trial("mixed", **BUCKETED)
    assert outcome.reason is Reason.WRONG_RESULT


def test_what_nobody_declared_is_not_padded(trial):
    """The trial ends as invalid where the strategy is made, in a sentence."""
    outcome = trial("undeclared", **BUCKETED)
    assert (outcome.reason, outcome.stage) == (Reason.INVALID, "compile")
    assert "the model declares none" in outcome.error
