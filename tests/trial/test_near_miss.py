"""A config that rounds and misses the tolerance by little: it stays wrong, and what it would give is known."""

from __future__ import annotations

import pytest

from autotune.bench.local import LocalBench
from autotune.config import Config
from autotune.measure.measurement import Failure, Measurement, Reason, Stage
from autotune.trial.folder import TrialFolder
from autotune.trial.request import TrialRequest
from autotune.trial.worker.accuracy_check import WrongResultError
from autotune.trial.worker.near_miss import Near, NearMissError, _rounded_above
from autotune.workload.workload import Workload
from tests.conftest import QUICK

MODEL = """
import torch


def linear():
    torch.manual_seed(0)
    return torch.nn.Linear(256, 64), torch.randn(32, 256)
"""
ROUNDED = Config({"execution": "eager", "precision": "bf16_autocast"})


@pytest.fixture
def trial(tmp_path):
    """The outcome of the rounding config of a small linear layer, in a process, held to a tolerance."""
    (tmp_path / "linear.py").write_text(MODEL)
    reference = f"{tmp_path / 'linear.py'}:linear"
    workload = Workload(
        model=reference, reference=reference, framework="torch", device="cpu", search_path=str(tmp_path)
    )

    def request(config, tolerance, **more):
        return TrialRequest(
            number=1, workload=workload, config=config, tolerance=tolerance, reference=str(tmp_path / "reference.npz"),
            cache=str(tmp_path / "cache"), cold=True, sampling=QUICK, **{"untuned": False, **more},
        )  # fmt: skip

    with LocalBench({}, preload=True, log=tmp_path / "supervisor.log") as bench:
        untuned = bench.run(
            TrialFolder(tmp_path / "untuned"), request(Config({"execution": "eager"}), 1e-3, untuned=True)
        )
        assert isinstance(untuned, Measurement)
        yield lambda tolerance, *, rounds=True: bench.run(
            TrialFolder(tmp_path / "trial"), request(ROUNDED, tolerance, rounds=rounds)
        )


def test_bfloat16_that_misses_by_little_is_timed_and_stays_wrong(trial):
    """In a real process: within four tolerances it has a time and the tolerance that takes it; beyond, or where no
    setting is said to round, it has none."""
    right = trial(0.1)
    assert isinstance(right, Measurement)
    off = right.relative_error
    near = trial(0.7 * off)
    assert isinstance(near, Failure)
    assert (near.reason, near.stage) == (Reason.WRONG_RESULT, Stage.CHECK)
    assert near.error.startswith("WrongResultError: on input ")
    assert near.near.measurement.relative_error == pytest.approx(off)
    smaller = [each for each in _rounded_above(0.7 * off) if each < near.near.tolerance]
    assert isinstance(trial(near.near.tolerance), Measurement)
    assert not any(isinstance(trial(each), Measurement) for each in smaller)
    assert len(near.near.measurement.samples.latency_s) >= QUICK.min_samples
    for outcome in (trial(off / 10), trial(0.7 * off, rounds=False)):
        assert (outcome.reason, outcome.near) == (Reason.WRONG_RESULT, None)


@pytest.mark.parametrize(
    ("tolerance", "rounded"), [(1e-3, [2e-3, 5e-3]), (2e-3, [5e-3, 0.01]), (3e-2, [0.05, 0.1, 0.2]), (0.7, [1, 2, 5])]
)
def test_the_tolerance_that_is_named_is_a_round_number(tolerance, rounded):
    """1, 2 or 5 times a power of ten, and one of them takes whatever four tolerances take."""
    assert list(_rounded_above(tolerance)) == rounded


def test_a_process_that_ends_in_its_timed_calls_was_wrong(tmp_path, measurement):
    """Its failure is written before, and an error of the calls leaves it as it is."""
    folder = TrialFolder(tmp_path / "trial")
    folder.path.mkdir()
    failure = Failure(reason=Reason.WRONG_RESULT, stage=Stage.CHECK, error="off by 2e-3")

    def fails():
        assert folder.read_outcome() == failure
        raise MemoryError

    near = Near(WrongResultError("off by 2e-3", 2e-3), 2e-3, measurement)
    assert NearMissError(near, fails).timed(failure, folder) == failure
