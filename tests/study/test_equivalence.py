"""Classes of trials by program, and what they say about knobs: pure rules on records."""

from __future__ import annotations

import itertools

import pytest

from autotune.config import Config
from autotune.measure.measurement import Failure
from autotune.space.load import Circumstances, load_space
from autotune.study.equivalence import (
    equivalence_classes,
    representative_of,
    representatives,
    run_same_program,
    simplest,
)
from autotune.study.knob_effects import Effect, effects_of
from autotune.study.records import TrialRecord
from tests.conftest import with_latency

SPACE = """
schema: 1
framework: fake
knobs:
  execution: {doc: "https://e.org", values: [eager, compile], untuned: eager, default: compile}
  backend: {doc: "https://e.org", when: {execution: compile}, values: [x, y], default: x}
  mode: {doc: "https://e.org", when: {backend: x}, values: [a, b, c], default: a}
  flag: {doc: "https://e.org", values: [false, true], default: false}
  fixed: {doc: "https://e.org", values: [only], default: only}
"""
FAILURE = Failure(reason="compile_error", stage="compile", error="no")


@pytest.fixture
def space(tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text(SPACE)
    return load_space(path, framework="fake", circumstances=Circumstances(version="0", device="cpu"))


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
        return TrialRecord(
            number=next(numbers), config=config, outcome=outcome, violations={}, started=None, ended=None,
            running=False,
        )  # fmt: skip

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
        """Two unknown programs are not the same program."""
        one, other = record(DEFAULT, None), record(config(mode="b"), None)
        assert equivalence_classes([one, other]) == [[one], [other]]
        assert not run_same_program(one, other)

    def test_a_failure_is_in_no_class(self, record):
        """Nothing ran to the end, so nothing can be the same."""
        failed = record(DEFAULT, "fails")
        assert equivalence_classes([failed]) == []
        assert not run_same_program(failed, failed)

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

    def test_its_own_samples_if_they_are_whole(self, record, space):
        """The simplest name as it is."""
        default = record(DEFAULT, "p", latency_s=2.0)
        assert representative_of([record(config(mode="b"), "p"), default], space) is default

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
        """The simplest name's own samples, however lucky those of a classmate were."""
        far, near = record(config(mode="b"), "p", latency_s=0.9), record(DEFAULT, "p", latency_s=1.0)
        other = record(config(mode="c"), "q", latency_s=2.0)
        assert representatives([far, other, near], space) == [near, other]


class TestEffects:
    """What the programs say about each knob."""

    def effects(self, space, *records):
        return {each.knob: each for each in effects_of(records, space)}

    def test_same_program_in_pairs_that_differ_in_one_knob(self, record, space):
        """Three modes, one program: three pairs, no effect."""
        found = self.effects(space, *(record(config(mode=mode), "p") for mode in "abc"))
        assert found["mode"] == Effect("mode", num_same=3, num_different=0, num_classes=1)
        assert found["mode"].verdict == "no effect"
        assert found["mode"].in_words() == "no effect: same program in 3 pairs"

    def test_one_pair_with_two_programs_is_an_effect(self, record, space):
        """However many others are alike."""
        programs = {"a": "p", "b": "p", "c": "q"}
        found = self.effects(space, *(record(config(mode=mode), program) for mode, program in programs.items()))
        assert found["mode"].verdict == "changes the program"
        assert found["mode"].in_words() == "changes the program in 2 of 3 pairs"

    def test_knobs_that_change_together_prove_no_effect_of_either(self, record, space):
        """Two programs and two knobs: nobody knows which of them it was."""
        found = self.effects(space, record(DEFAULT, "p"), record(config(mode="b", flag=True), "q"))
        assert found["mode"].verdict == found["flag"].verdict == "not compared"
        assert found["mode"].in_words() == "not compared"

    def test_knobs_that_change_together_and_change_nothing_had_no_effect(self, record, space):
        """One program under both: neither of them did anything."""
        found = self.effects(space, record(DEFAULT, "p"), record(config(mode="b", flag=True), "p"))
        assert found["mode"].verdict == found["flag"].verdict == "no effect"
        assert found["mode"].in_words() == "no effect: several values in 1 class of one program"

    def test_inactive_knobs_count_as_their_default(self, record, space):
        """`backend: y` has no mode: it is compared with `backend: x` under the default mode, and with no other."""
        records = [record(DEFAULT, "p"), record(config(mode="b"), "q"), record(config(backend="y"), "r")]
        found = self.effects(space, *records)
        assert found["backend"] == Effect("backend", num_same=0, num_different=1, num_classes=0)
        assert found["mode"].num_different == 1

    def test_untuned_against_the_default(self, record, space):
        """A capture that compiles nothing: `execution` had no effect."""
        found = self.effects(space, record(UNTUNED, "p"), record(DEFAULT, "p"))
        assert found["execution"].in_words() == "no effect: same program in 1 pair"

    def test_what_tells_no_program_says_nothing(self, record, space):
        """Failures, and frameworks that do not tell."""
        found = self.effects(space, record(DEFAULT, "fails"), record(config(mode="b"), None), record(UNTUNED, None))
        assert {each.verdict for each in found.values()} == {"not compared"}

    def test_a_knob_with_one_value_is_not_listed(self, record, space):
        """Nobody could set it otherwise."""
        assert set(self.effects(space)) == {"execution", "backend", "mode", "flag"}

    def test_true_and_one_are_two_values(self, record, space):
        """A pair that differs in type alone differs in two knobs when another one differs too."""
        one, other = config(flag=True), Config({**config(mode="b").root, "flag": 1})
        assert self.effects(space, record(one, "p"), record(other, "q"))["mode"].verdict == "not compared"
