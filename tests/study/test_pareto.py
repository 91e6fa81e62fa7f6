"""The Pareto front: who is beaten in every respect is left out."""

from __future__ import annotations

import pytest

from autotune.config import Config
from autotune.measure.constraint import Constraint
from autotune.measure.measurement import Failure
from autotune.measure.objective import Objective
from autotune.study.records import dominates, front
from tests.conftest import trial_record, with_latency


@pytest.fixture
def numbers(measurement):
    """Numbers of the trials on the front of (ms a call, MiB); None: it failed. `infeasible` are numbers as well."""

    def of(*outcomes, infeasible=()):
        constraint = Constraint.parse("compile <= 1us")
        records = []
        for number, values in enumerate(outcomes):
            outcome = Failure(reason="crash", stage="compile", error="gone")
            if values is not None:
                outcome = with_latency(measurement, values[0] / 1e3, peak_memory_bytes=values[1] and values[1] * 2**20)
            violations = {constraint.text: constraint.miss(outcome)} if number in infeasible else {}
            records.append(trial_record(outcome, number, Config({"a": number}), violations=violations))
        objectives = Objective(), Objective.parse("memory")
        return [each.number for each in front(records, lambda m: tuple(o.value(m) for o in objectives))]

    return of


FRONTS = {
    "ordered by the first": ([(10, 9), (4, 8), (5, 8), (8, 2), (6, 5)], [], [1, 4, 3]),
    "a single winner is the whole front": ([(10, 9), (4, 2), (5, 8)], [], [1]),
    "equal in one and worse in the other is beaten": ([(4, 8), (4, 9), (5, 8)], [], [0]),
    "the first given of the same values stands for all": ([(4, 8), (4, 8), (3, 9), (3, 9)], [], [2, 0]),
    "infeasible and failed are no answer": ([(10, 9), (1, 1), None, (5, 8)], [1], [3]),
    "nothing is left": ([(1, 1), None], [0], []),
    "unknown memory is no answer": ([(10, 9), (1, None)], [], [0]),
}


@pytest.mark.parametrize(("outcomes", "infeasible", "expected"), FRONTS.values(), ids=FRONTS)
def test_who_is_beaten_in_every_respect_is_left_out(numbers, outcomes, infeasible, expected):
    """By other trials that keep every constraint and whose values are all known."""
    assert numbers(*outcomes, infeasible=infeasible) == expected


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [((1, 2), (1, 3), True), ((1, 2), (2, 1), False), ((1, 2), (1, 2), False), ((1, 2), (0, 2), False)],
)
def test_dominates(one, other, expected):
    """As good in each value and better in one; nothing dominates its equal."""
    assert dominates(one, other) is expected
