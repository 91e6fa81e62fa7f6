"""Calls that are compared now and then: what goes wrong after the first calls, and what comparing may take."""

from __future__ import annotations

import logging
import time

import numpy as np
import pytest
import yaml

import autotune
from autotune.errors import InputError
from autotune.job.later_calls import Pace
from autotune_fake.behaviours import BEHAVIOURS
from tests.conftest import REPOSITORY

INPUT = np.ones((4, 8))
UNTUNED_S, TUNED_S = 0.005, 0.001


class Slept:
    """Stands in for `time.sleep`."""

    def __init__(self):
        self.total_s = self.last_s = 0.0

    def __call__(self, seconds):
        self.last_s = seconds
        self.total_s += seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Time passes while somebody sleeps."""
    slept = Slept()
    monkeypatch.setattr(time, "sleep", slept)
    monkeypatch.setattr(time, "perf_counter", lambda: slept.total_s)


@pytest.fixture(scope="module")
def exported():
    """An export of the fake framework, of this machine."""
    content = yaml.safe_load((REPOSITORY / "tests" / "best.yaml").read_text())
    content["config"] = {"execution": "compile", "latency_ms": 1e3 * TUNED_S, "behaviour": "wrong"}
    content["environment"]["device"] = "fake"
    return content


class Model:
    """A callable that counts its calls, of which `disturb` is told."""

    def __init__(self, disturb=lambda model: None):
        self.disturb = disturb

    def __call__(self, x):
        COUNTS["model"] += 1
        self.disturb(self)
        time.sleep(UNTUNED_S)
        return x * 2


COUNTS = {"model": 0, "tuned": 0}
"""Calls, where no comparison sees them change."""


@pytest.fixture(autouse=True)
def wrong_from(monkeypatch):
    """`wrong_from(number)`: the config's output is another one from this tuned call on."""
    COUNTS.update(model=0, tuned=0)

    def start(number):
        def late(output):
            COUNTS["tuned"] += 1
            return output + (COUNTS["tuned"] >= number)

        monkeypatch.setitem(BEHAVIOURS, "wrong", late)

    start(1_000_000)
    return start


def lines(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.fast_cases("True-300-4", "0.05-60-400", "check2-300-4", "False-None-4")
@pytest.mark.parametrize("number", [4, 400])
@pytest.mark.parametrize(("check", "most"), [(True, 300), (0.05, 60), ({"output": 1e-3}, 300), (False, None)])
def test_a_fault_of_later_calls(write, caplog, wrong_from, check, most, number):
    """It is found within the calls that a share of the time pays for; that call and all that follow are answered by the
    untuned model, and one line names the call and the part."""
    wrong_from(number)
    model = autotune.load(write()).apply(Model(), check=check, margin=None)
    wrong = [place for place in range(1, 1001) if not (model(INPUT) == INPUT * 2).all()]
    if most is None:
        assert (wrong[-1], lines(caplog)) == (1000, [])
        return
    assert wrong == list(range(number, wrong[-1] + 1))
    assert len(wrong) < most
    assert autotune.stats(model).state == "untuned"
    (said,) = lines(caplog)
    assert f"the outputs of call {wrong[-1] + 1:,} are wrong: output: " in said
    assert said.endswith("back to the untuned model")


@pytest.mark.parametrize(("check", "share"), [(True, 0.01), (0.05, 0.05), (1.0, 1.0)])
def test_what_comparing_takes(write, check, share):
    """No more than its share of the time of the calls, and not much less."""
    model = autotune.load(write()).apply(Model(), check=check, margin=None)
    model(INPUT)
    num_before, num_calls = COUNTS["model"], 10_000
    for _ in range(num_calls):
        model(INPUT)
    checks_s = (COUNTS["model"] - num_before - num_calls) * UNTUNED_S
    assert min(0.6 * share, 0.4) < checks_s / (num_calls * (UNTUNED_S + TUNED_S)) <= share
    assert autotune.stats(model).state == "tuned"


def test_a_check_that_takes_long_is_rare():
    """One of a hundred seconds beside calls of a millisecond is paid for by as many calls."""
    pace = Pace(0.01)
    pace.note(1e-3, 100.0)
    assert pace.num_apart == pytest.approx(1.25e6, rel=0.3)


def changes_its_state(model):
    if COUNTS["model"] > 50:
        model.value = np.array(COUNTS["model"])


def draws(model):
    np.random.rand()


def fails_untuned(model):
    if COUNTS["model"] > 50 and time.sleep.last_s != TUNED_S:
        raise ValueError("not twice")


@pytest.mark.parametrize(("disturb", "said"), [
    (changes_its_state, "a call changes the model's inputs or its state: later outputs cannot be checked"),
    (draws, "the model draws random numbers: the first outputs cannot be checked"),
    (fails_untuned, "the untuned call failed (ValueError: not twice): later outputs cannot be checked"),
])  # fmt: skip
def test_what_cannot_be_compared_stands(write, caplog, disturb, said):
    """As for a first call: the job gets what the tuned call gave, once, and a line says why later ones are not
    compared."""
    model = autotune.load(write()).apply(Model(disturb), check=0.5, margin=None)
    for _ in range(200):
        assert (model(INPUT) == INPUT * 2).all()
    assert [said in line for line in lines(caplog)] == [True]
    assert autotune.stats(model).state == "tuned"


@pytest.mark.parametrize("share", [0.0, -0.1, 1.5, float("nan")])
def test_a_share_that_is_none(write, share):
    """One sentence."""
    with pytest.raises(InputError, match=r"check=.*is no share of the time"):
        autotune.load(write()).apply(Model(), check=share)
