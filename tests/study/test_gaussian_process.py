"""The Gaussian process: what counts as near, what it learns about knobs, and how sure it is of what."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.config import Config
from autotune.space.space import Knob, SearchSpace
from autotune.study.sampler import gaussian_process
from autotune.study.sampler.acquisition import Forecaster
from autotune.study.sampler.gaussian_process import (
    Encoding,
    GaussianPosterior,
    Kernel,
    KernelPrior,
    expected_improvement,
    fit_kernel,
    prior_kernel,
)


def knob(name, *values, when=None):
    return Knob(name=name, doc="", values=values, when=when or {}, default=values[0], untuned=values[0])


SPACE = SearchSpace(
    framework="fake",
    knobs=(
        knob("mode", "a", "b", "c"),
        knob("threads", 8, 1, 2, when={"mode": ["a", "b"]}),
        knob("flag", 1, True),
    ),
    forbid=(),
)


def distance(space, first, second):
    one, two = Encoding(space).points([Config(first), Config(second)])
    return float(((one - two) ** 2).sum())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 0.0),
        ({"mode": "b"}, 1.0),
        ({"threads": 8}, 1.0),
        ({"threads": 2}, 1 / 3),
        ({"mode": "b", "threads": 8}, 2.0),
        ({"flag": True}, 1.0),
    ],
    ids=["same", "other value", "numbers' ends", "numbers, one step of three", "two knobs", "1 is not true"],
)
def test_distance_counts_the_knobs_that_differ(changes, expected):
    """Each knob adds at most 1, whichever values differ; numbers add by how far their logarithms are apart."""
    settings = {"mode": "a", "threads": 1, "flag": 1}
    assert distance(SPACE, settings, {**settings, **changes}) == pytest.approx(expected)


@pytest.mark.parametrize("threads", [1, 2, 8])
def test_an_inactive_knob_is_as_far_from_each_of_its_values(threads):
    """A knob that is not there is a level of its own, no nearer to one number than to another."""
    assert distance(SPACE, {"mode": "a", "threads": threads, "flag": 1}, {"mode": "a", "flag": 1}) == pytest.approx(1.0)


@pytest.fixture
def table():
    """Twelve knobs of which one matters much and one a little, and 60 random configs with their values."""
    names = [f"k{number}" for number in range(12)]
    space = SearchSpace(framework="fake", knobs=tuple(knob(name, "a", "b") for name in names), forbid=())
    generator = np.random.default_rng(0)
    configs = [Config({name: "ab"[generator.integers(2)] for name in names}) for _ in range(60)]
    values = np.array([2.0 * (c["k0"] == "b") + 0.5 * (c["k1"] == "b") for c in configs])
    values += generator.normal(0, 0.02, len(values))
    return Encoding(space), Encoding(space).points(configs), (values - values.mean()) / values.std()


def test_the_knobs_that_matter_get_the_weight(table):
    """Which knobs matter is learned: the one with the large effect weighs most, then the other, then all inert ones."""
    encoding, points, values = table
    weights = fit_kernel(encoding, points, values, KernelPrior()).weights
    of_knob = [float(weights[encoding.owners == number][0]) for number in range(encoding.num_knobs)]
    assert of_knob[0] > 5 * of_knob[1] > 5 * max(of_knob[2:])


def test_a_learned_kernel_forecasts_better_than_one_that_was_believed(table):
    """Fitted on 40 configs it is nearer to the other 20 than the prior's kernel is."""
    encoding, points, values = table

    def error(kernel):
        mean, _ = GaussianPosterior(kernel, points[:40], values[:40]).predict(points[40:])
        return float(np.abs(mean - values[40:]).mean())

    believed = Kernel(np.full(encoding.num_features, 1.0), 1.0, 0.01)
    assert error(fit_kernel(encoding, points[:40], values[:40], KernelPrior())) < 0.3 * error(believed)


def test_it_knows_what_it_saw_and_doubts_the_rest(table):
    """At a config that was seen the mean is near its value; a config that differs from all of them is less certain."""
    encoding, points, values = table
    posterior = GaussianPosterior(prior_kernel(encoding, KernelPrior(noise=1e-6)), points[:10], values[:10])
    mean, sd = posterior.predict(points)
    assert np.abs(mean[:10] - values[:10]).max() < 0.01
    assert sd[10:].min() > 3 * sd[:10].max()


def test_believing_makes_certain_and_changes_no_mean(table):
    """A trial under way counts as if its mean had come true: others keep their means, near ones become more certain."""
    encoding, points, values = table
    posterior = GaussianPosterior(prior_kernel(encoding, KernelPrior()), points[:5], values[:5])
    before_mean, before_sd = posterior.predict(points)
    after_mean, after_sd = posterior.believing(points[5:8]).predict(points)
    assert after_mean == pytest.approx(before_mean, abs=1e-6)
    assert (after_sd <= before_sd + 1e-9).all()
    assert after_sd[5] < 0.6 * before_sd[5]


def test_expected_improvement_is_what_draws_give():
    """The formula agrees with a million draws, for a mean below the best, at it, and far above."""
    mean, sd = np.array([-0.5, 0.0, 2.0]), np.array([0.2, 1.0, 0.8])
    draws = mean + sd * np.random.default_rng(0).standard_normal((1_000_000, 3))
    drawn = np.maximum(0.0 - draws, 0.0).mean(axis=0)
    assert expected_improvement(mean, sd, best=0.0) == pytest.approx(drawn, abs=2e-3)


@pytest.mark.skipif(not gaussian_process._thread_counts(), reason="linear algebra is not OpenBLAS's")
def test_a_forecast_leaves_the_cores_to_the_trials(monkeypatch):
    """Each BLAS of the process has one thread within, and as many as before behind it."""
    counts = gaussian_process._thread_counts()
    before = [read() for _, read in counts]
    seen = []
    monkeypatch.setattr(Forecaster, "_log_gain", lambda *_: seen.append([read() for _, read in counts]))
    monkeypatch.setattr(Forecaster, "_log_feasible", lambda *_: None)
    monkeypatch.setattr(Forecaster, "_log_seconds", lambda *_: None)
    for change, _ in counts:
        change(2)
    try:
        Forecaster(None).forecast(None, None)
        assert seen == [[1] * len(counts)]
        assert [read() for _, read in counts] == [2] * len(counts)
    finally:
        for (change, _), number in zip(counts, before, strict=True):
            change(number)
