"""The Pareto front: who is beaten in every respect is left out."""

from __future__ import annotations

import pytest

from autotune.config import Config
from autotune.measure.constraint import Constraint
from autotune.measure.measurement import Failure
from autotune.measure.objective import Objective
from autotune.study.records import TrialRecord, dominates, front
from tests.conftest import with_latency


@pytest.fixture
def numbers(measurement):
    """Numbers of the trials on the front of (ms a call, MiB); None: it failed. `infeasible` are numbers as well."""

    def of(*outcomes, infeasible=()):
        constraint = Constraint.parse("compile <= 1us")
        records = []
        for number, each in enumerate(outcomes):
            failure = Failure(reason="crash", stage="compile", error="gone")
            outcome = failure if each is None else with_latency(measurement, each[0] / 1e3, peak_memory_bytes=each[1])
            violations = {constraint.text: constraint.miss(outcome)} if number in infeasible else {}
            records.append(
                TrialRecord(
                    number=number, config=Config({"a": number}), outcome=outcome, violations=violations, started=None,
                    ended=None, running=False,
                )
            )  # fmt: skip
        objectives = Objective(), Objective.parse("memory")
        return [each.number for each in front(records, lambda m: tuple(o.value(m) for o in objectives))]

    return of


MIB = 2**20


def test_who_is_beaten_in_every_respect_is_left_out(numbers):
    """Faster and smaller than trial 0; trials 1 and 3 are the best of one objective each; ordered by the first."""
    assert numbers((10, 9 * MIB), (4, 8 * MIB), (5, 8 * MIB), (8, 2 * MIB), (6, 5 * MIB)) == [1, 4, 3]


def test_a_single_winner_is_the_whole_front(numbers):
    """The best in everything leaves nothing to choose."""
    assert numbers((10, 9 * MIB), (4, 2 * MIB), (5, 8 * MIB)) == [1]


def test_equal_in_one_and_worse_in_the_other_is_beaten(numbers):
    """Nobody would take it."""
    assert numbers((4, 8 * MIB), (4, 9 * MIB), (5, 8 * MIB)) == [0]


def test_of_the_very_same_values_the_first_given_stands_for_all(numbers):
    """Two names of one program are one answer; the caller gives the simplest first."""
    assert numbers((4, 8 * MIB), (4, 8 * MIB), (3, 9 * MIB), (3, 9 * MIB)) == [2, 0]


def test_infeasible_and_failed_trials_are_no_answer(numbers):
    """However fast they are, and whoever they would beat."""
    assert numbers((10, 9 * MIB), (1, MIB), None, (5, 8 * MIB), infeasible=[1]) == [3]
    assert numbers((1, MIB), None, infeasible=[0]) == []


def test_what_cannot_be_measured_is_no_answer(numbers):
    """A trial of unknown memory may be anything."""
    assert numbers((10, 9 * MIB), (1, None)) == [0]


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [((1, 2), (1, 3), True), ((1, 2), (2, 1), False), ((1, 2), (1, 2), False), ((1, 2), (0, 2), False)],
)
def test_dominates(one, other, expected):
    """As good in each value and better in one; nothing dominates its equal."""
    assert dominates(one, other) is expected
