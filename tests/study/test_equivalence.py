"""Classes of trials by program: pure rules on records."""

from __future__ import annotations

import itertools

import pytest

from autotune.config import Config
from autotune.measure.measurement import Failure
from autotune.study.equivalence import (
    equivalence_classes,
    representative_of,
    representatives,
    run_same_program,
    simplest,
)
from tests.conftest import fake_space, trial_record, with_latency

SPACE = """
  execution: {doc: "https://e.org", values: [eager, compile], untuned: eager, default: compile}
  backend: {doc: "https://e.org", when: {execution: compile}, values: [x, y], default: x}
  mode: {doc: "https://e.org", when: {backend: x}, values: [a, b, c], default: a}
  flag: {doc: "https://e.org", values: [false, true], default: false}
  fixed: {doc: "https://e.org", values: [only], default: only}
"""
FAILURE = Failure(reason="compile_error", stage="compile", error="no")


@pytest.fixture
def space():
    return fake_space(SPACE)


def config(execution="compile", **settings):
    order = ("execution", "backend", "mode", "flag", "fixed")
    given = {"execution": execution, "flag": False, "fixed": "only", **settings}
    if execution == "compile":
        given = {"backend": "x", **given}
        if given["backend"] == "x":
            given = {"mode": "a", **given}
    return Config({name: given[name] for name in order if name in given})


UNTUNED, DEFAULT = config("eager"), config()


@pytest.fixture
def record(measurement):
    numbers = itertools.count()

    def make(config, program, *, ended_by="precision", steady=True, latency_s=1.0, **overrides):
        outcome = FAILURE
        if program != "fails":
            outcome = with_latency(measurement, latency_s, program=program, **overrides)
            samples = outcome.samples.model_copy(update={"ended_by": ended_by, "steady": steady})
            outcome = outcome.model_copy(update={"samples": samples})
        return trial_record(outcome, next(numbers), config)

    return make


class TestClasses:
    """Who is one with whom."""

    def test_trials_with_the_same_program_are_one(self, record):
        """By the program alone, however their configs differ; in the order of each class's first."""
        one, other, again = record(UNTUNED, "p"), record(DEFAULT, "q"), record(config(mode="b"), "p")
        assert equivalence_classes([one, other, again]) == [[one, again], [other]]
        assert run_same_program(one, again)
        assert not run_same_program(one, other)

    def test_where_the_framework_does_not_tell_each_trial_is_its_own(self, record):
        """Two unknown programs are not the same program. Of a failure nothing ran to the end: it is in no class."""
        failed = record(DEFAULT, "fails")
        assert equivalence_classes([failed]) == []
        assert not run_same_program(failed, failed)
        one, other = record(DEFAULT, None), record(config(mode="b"), None)
        assert equivalence_classes([one, other]) == [[one], [other]]
        assert not run_same_program(one, other)

    def test_the_simplest_name(self, record, space):
        """The untuned model first; then fewest knobs away from the default; then the cheapest to compile."""
        far = record(config(mode="b", flag=True), "p", compile_s=0.1)
        dear, cheap = record(config(mode="b"), "p", compile_s=9), record(config(mode="c"), "p", compile_s=1)
        untuned = record(UNTUNED, "p", compile_s=99)
        assert simplest([far, dear], space) == dear
        assert simplest([far, dear, cheap], space) == cheap
        near_default = record(DEFAULT, "p", compile_s=99)
        assert simplest([far, cheap, near_default], space) == near_default
        assert simplest([near_default, untuned], space) == untuned


class TestAsOne:
    """A class stands for itself with its best evidence."""

    def test_a_classmate_s_where_its_own_never_settled(self, record, space):
        """A classmate whose samples did says how fast the program is."""
        default = record(DEFAULT, "p", latency_s=9.0, compile_s=7.0, steady=False)
        stopped = record(config(mode="b"), "p", latency_s=8.0, steady=False)
        whole = record(config(mode="c"), "p", latency_s=1.0)
        one = representative_of([default, stopped, whole], space)
        assert (one.number, one.config) == (default.number, DEFAULT)
        assert one.measurement.latency.p50 == 1.0
        assert one.measurement.compile_s == 7.0
        assert representative_of([default, stopped], space) == default

    def test_one_trial_for_each_class(self, record, space):
        """The simplest name's own samples as they are, however lucky those of a classmate were."""
        far, near = record(config(mode="b"), "p", latency_s=0.9), record(DEFAULT, "p", latency_s=1.0)
        other = record(config(mode="c"), "q", latency_s=2.0)
        assert representatives([far, other, near], space) == [near, other]
        assert representative_of([far, near], space) is near
