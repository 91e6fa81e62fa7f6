"""Amounts with a unit, as they are written in options: one form for times, memory, rates and plain numbers."""

from __future__ import annotations

import pytest

from autotune.measure.units import UNITS, Amount, seconds_of


@pytest.mark.parametrize(
    ("text", "number", "unit"),
    [
        ("5", 5, ""), ("5ms", 5, "ms"), (" 1.5 h ", 1.5, "h"), (".5s", 0.5, "s"), ("2.", 2, ""), ("1e3/s", 1000, "/s"),
        ("2.5e-3 s", 0.0025, "s"), ("2GiB", 2, "GiB"), ("7 parsecs", 7, "parsecs"),
    ],
)  # fmt: skip
def test_a_number_and_its_unit(text: str, number: float, unit: str) -> None:
    """Blanks and the way to write a number are free."""
    assert Amount.parse(text) == (number, unit)


@pytest.mark.parametrize("text", ["", "ms", "-5s", "+5s", "1.2.3s", ".", "5 s m", "5s.yaml", "nan", "inf", "1e999"])
def test_what_is_no_amount(text: str) -> None:
    """Signs, words, two units and what is not finite."""
    assert Amount.parse(text) is None


def test_a_unit_belongs_to_its_dimension() -> None:
    """Each unit is understood where it belongs, and nowhere else."""
    for dimension, factors in UNITS.items():
        for unit, factor in factors.items():
            assert Amount(3, unit).to_base(dimension) == 3 * factor
    assert Amount(3, "GiB").to_base("s") is None
    assert Amount(3, "").to_base("s") is None
    assert Amount(1e308, "h").to_base("s") is None


def test_a_time() -> None:
    """A number without a unit is a time only where the option says of what."""
    assert seconds_of("1.5h") == 5400
    assert seconds_of("600") is None
    assert seconds_of("600", bare="s") == 600
    assert seconds_of("2GiB") is None
