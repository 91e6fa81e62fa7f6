"""What is wanted of a measurement, said in plain words by the operator."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from autotune.errors import InputError
from autotune.measurement import Diagnosis, GraphBreak, Measurement, Recompile
from autotune.objective import QUANTITIES, UNITS, Constraint, Objective
from tests.test_measurement import measured

SAMPLES = tuple(float(n) for n in range(1, 102))
"""Median 51 s, 90th percentile 91 s, 99th 100 s."""


def measurement(**overrides: Any) -> Measurement:
    diagnosis = Diagnosis(
        compiled=True,
        graph_breaks=(GraphBreak(reason="x", count=3),),
        recompiles=(Recompile(reason="y"), Recompile(reason="z")),
    )
    fields = {"compile_s": 7.0, "peak_memory_bytes": 2**20, "relative_error": 1e-4, "diagnosis": diagnosis}
    return measured(*SAMPLES, **{**fields, **overrides})


@pytest.mark.parametrize(("quantity", "expected"), [("latency", 51), ("p90", 91), ("p99", 100)])
def test_the_objective_is_a_percentile_in_seconds(quantity: Any, expected: float) -> None:
    """What is minimised is the median latency, or the percentile asked for, in seconds."""
    assert Objective(quantity=quantity).value(measurement()) == pytest.approx(expected)


def test_the_objective_is_the_median_unless_said_otherwise() -> None:
    """Without a word from the operator the median is minimised; other words are refused."""
    assert Objective().value(measurement()) == pytest.approx(51)
    with pytest.raises(ValidationError):
        Objective(quantity="mean")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "quantity", "exact", "bound"),
    [
        ("latency <= 5ms", "latency", False, 0.005),
        ("latency<=5 ms", "latency", False, 0.005),
        ("  p90   <=   2.5e-3 s ", "p90", False, 0.0025),
        ("p99 <= 300us", "p99", False, 0.0003),
        ("compile <= 2min", "compile", False, 120),
        ("compile <= 2 m", "compile", False, 120),
        ("peak_memory <= 2GiB", "peak_memory", False, 2 * 2**30),
        ("peak_memory <= 1.5 MiB", "peak_memory", False, 1.5 * 2**20),
        ("peak_memory <= 3KiB", "peak_memory", False, 3072),
        ("peak_memory <= 2GB", "peak_memory", False, 2e9),
        ("peak_memory <= 2MB", "peak_memory", False, 2e6),
        ("peak_memory <= 2KB", "peak_memory", False, 2e3),
        ("peak_memory <= 512B", "peak_memory", False, 512),
        ("graph_breaks == 0", "graph_breaks", True, 0),
        ("graph_breaks = 0", "graph_breaks", True, 0),
        ("recompiles <= 2", "recompiles", False, 2),
        ("error <= 1e-4", "error", False, 1e-4),
    ],
)
def test_plain_words_are_understood(text: str, quantity: str, exact: bool, bound: float) -> None:
    """QUANTITY <= NUMBER UNIT, blanks as one likes, becomes a bound in seconds, bytes or counts."""
    constraint = Constraint.parse(text)
    assert (constraint.quantity, constraint.exact) == (quantity, exact)
    assert constraint.bound == pytest.approx(bound, rel=1e-12)


def test_the_text_is_kept_as_the_operator_wrote_it() -> None:
    """Reports quote the operator's own words, blanks tidied."""
    assert Constraint.parse("  peak_memory   <= 2GiB ").text == "peak_memory <= 2GiB"


@pytest.mark.parametrize(
    ("text", "message", "tip"),
    [
        ("", "not understood", "graph_breaks == 0"),
        ("latency", "not understood", "peak_memory <= 2GiB"),
        ("latency >= 5ms", "not understood", "<="),
        ("graph_breaks < 1", "not understood", "<="),
        ("latency <= fast", "not understood", "<="),
        ("latency <= -5ms", "not understood", "<="),
        ("latency <= 5ms or so", "not understood", "<="),
        ("5ms >= latency", "not understood", "<="),
        ("speed <= 5ms", "unknown quantity 'speed'", "latency, p90, p99, peak_memory"),
        ("latency <= 5", "latency is not given in ''", "s, ms, us"),
        ("latency <= 5MiB", "latency is not given in 'MiB'", "s, ms, us"),
        ("peak_memory <= 2gib", "peak_memory is not given in 'gib'", "GiB"),
        ("peak_memory <= 2s", "peak_memory is not given in 's'", "MiB"),
        ("graph_breaks == 0s", "graph_breaks is not given in 's'", "no unit"),
    ],
)
def test_what_is_not_understood_is_refused_with_what_to_write(text: str, message: str, tip: str) -> None:
    """A constraint that cannot be read quotes itself, says why, and its tip shows what would be understood."""
    with pytest.raises(InputError) as caught:
        Constraint.parse(text)
    assert f"--constraint {text!r}" in str(caught.value)
    assert message in str(caught.value)
    assert tip in str(caught.value.tip)


@pytest.mark.parametrize("number", ["1.2.3", ".", ".."])
def test_a_number_is_a_number(number: str) -> None:
    """Digits and dots that are no number are refused, quoted as written."""
    with pytest.raises(InputError, match=r"is not a number") as caught:
        Constraint.parse(f"latency <= {number}ms")
    assert f"'{number}'" in str(caught.value)


def test_a_bound_is_finite() -> None:
    """A bound too large for a number is refused: in the manifest's JSON it would become null."""
    with pytest.raises(InputError):
        Constraint.parse("latency <= 1e999s")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("latency <= 50s", 1),
        ("latency <= 51s", 0),
        ("latency <= 60s", -9),
        ("p90 <= 90s", 1),
        ("p99 <= 99s", 1),
        ("compile <= 5s", 2),
        ("peak_memory <= 1MiB", 0),
        ("peak_memory <= 1000KiB", 24 * 1024),
        ("graph_breaks <= 5", -2),
        ("graph_breaks == 3", 0),
        ("graph_breaks == 0", 3),
        ("graph_breaks == 5", 2),
        ("recompiles <= 1", 1),
        ("error <= 1e-3", -9e-4),
    ],
)
def test_how_far_a_bound_is_missed(text: str, expected: float) -> None:
    """A violation is the excess in the quantity's unit, 0 or less where the bound is kept; == is missed either way."""
    assert Constraint.parse(text).violation(measurement()) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        ("peak_memory <= 100GiB", {"peak_memory_bytes": None}),
        ("graph_breaks <= 100", {"diagnosis": Diagnosis(compiled=True)}),
        ("recompiles == 0", {"diagnosis": Diagnosis(compiled=True)}),
    ],
)
def test_what_cannot_be_measured_keeps_no_promise(text: str, overrides: dict[str, Any]) -> None:
    """A bound on something that the framework does not tell counts as violated."""
    assert Constraint.parse(text).violation(measurement(**overrides)) == 1


def test_the_reference_has_no_error() -> None:
    """The untuned run, which made the reference outputs, keeps every bound on the error."""
    assert Constraint.parse("error <= 1e-9").violation(measurement(relative_error=None)) <= 0


def test_zero_is_a_measured_value() -> None:
    """No recompiles and no breaks are counts of 0, not unknowns."""
    clean = measurement(diagnosis=Diagnosis(compiled=True, graph_breaks=(), recompiles=()))
    assert Constraint.parse("graph_breaks == 0").violation(clean) == 0
    assert Constraint.parse("recompiles == 0").violation(clean) == 0


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_every_quantity_can_be_bounded_and_measured(quantity: str) -> None:
    """Each name in the table is read from a measurement and takes each unit of its kind."""
    for unit in UNITS[QUANTITIES[quantity][0]]:
        constraint = Constraint.parse(f"{quantity} <= 1e12{unit}")
        assert constraint.violation(measurement()) < 0


def test_a_constraint_survives_json() -> None:
    """A constraint in a study's manifest is read back as the same bound."""
    constraint = Constraint.parse("peak_memory <= 2GiB")
    assert Constraint.model_validate_json(constraint.model_dump_json()) == constraint
