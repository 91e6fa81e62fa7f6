"""`Config`: equal configs are one config, in whatever order and in whatever process they were made."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from pydantic import ValidationError

from autotune.config import Config

LOOKALIKES: list[Any] = [1, True, 1.0, "1", "True", "true", None, "None", "null", ""]


def test_order_of_knobs_does_not_matter() -> None:
    """The same settings in another order are the same config: equal, same hash, same fingerprint."""
    one, other = Config({"mode": "default", "dynamic": None}), Config({"dynamic": None, "mode": "default"})
    assert one == other
    assert hash(one) == hash(other)
    assert one.fingerprint == other.fingerprint


def test_canonical_form_is_pinned() -> None:
    """The canonical form is JSON with sorted keys and no spaces; studies on disk were deduplicated by it."""
    config = Config({"b": [None, "x"][1], "a": 1, "d": None, "c": True, "e": 0.5})
    assert config.canonical() == '{"a":1,"b":"x","c":true,"d":null,"e":0.5}'
    assert config.fingerprint == hashlib.sha256(config.canonical().encode()).hexdigest()[:12]


def test_values_of_another_type_make_another_config() -> None:
    """1, True, 1.0 and '1' mean different things to a compiler, so they never share a fingerprint."""
    assert len({Config({"knob": value}).fingerprint for value in LOOKALIKES}) == len(LOOKALIKES)


@pytest.mark.parametrize(
    ("one", "other"), [({"level": 1}, {"level": True}), ({"level": None}, {})], ids=["type", "null"]
)
def test_equality_agrees_with_the_fingerprint(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Knobs that make two configs unequal are named. Null is a setting; a knob that is left out is inactive."""
    assert Config(one) != Config(other)
    assert Config(one).fingerprint != Config(other).fingerprint
    assert Config(one).differing(Config(other)) == {"level"}


def test_a_config_does_not_change() -> None:
    """A config is immutable: its content cannot be replaced, so a fingerprint stays true."""
    config = Config({"a": 1})
    with pytest.raises(ValidationError):
        config.root = {"a": 2}


@pytest.mark.parametrize("value", [[1], (1, 2), {"x": 1}, b"x", 1j, object()], ids=lambda v: type(v).__name__)
def test_a_value_is_text_number_boolean_or_null(value: object) -> None:
    """A knob's value is one plain scalar, nothing that JSON or YAML would change on the way."""
    with pytest.raises(ValidationError):
        Config.model_validate({"knob": value})


@pytest.mark.parametrize("value", LOOKALIKES, ids=repr)
def test_json_keeps_value_and_type(value: Any) -> None:
    """What the parent writes into a request is what the child reads: value, type and fingerprint."""
    config = Config({"knob": value, "other": 0})
    read = Config.model_validate_json(config.model_dump_json())
    assert type(read["knob"]) is type(value)
    assert read == config
    assert read.fingerprint == config.fingerprint


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ({}, True),
        ({"mode": "default"}, True),
        ({"mode": "lite"}, False),
        ({"mode": ["lite", "default"]}, True),
        ({"mode": ("lite", "default")}, True),
        ({"mode": ["lite", "max"]}, False),
        ({"mode": "default", "level": 1}, True),
        ({"mode": "default", "level": 2}, False),
        ({"mode": "lite", "level": 1}, False),
        ({"level": True}, False),
        ({"level": 1.0}, False),
        ({"level": [True, "1"]}, False),
        ({"dynamic": None}, True),
        ({"absent": None}, False),
        ({"absent": [None, 1]}, False),
    ],
    ids=str,
)
def test_matching_a_pattern(pattern: dict[str, object], expected: bool) -> None:
    """A pattern fits if every knob of it is active and has its value, or one of its list, of the same type."""
    assert Config({"mode": "default", "level": 1, "dynamic": None}).matches(pattern) is expected


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({"mode": "default", "level": 1}, set()),
        ({"level": 1, "mode": "default"}, set()),
        ({"mode": "lite", "level": 1}, {"mode"}),
        ({"mode": "default"}, {"level"}),
        ({"mode": "default", "level": 1, "extra": None}, {"extra"}),
        ({}, {"mode", "level"}),
    ],
    ids=lambda value: str(sorted(value)),
)
def test_which_knobs_differ(other: dict[str, Any], expected: set[str]) -> None:
    """Knobs set differently and knobs that only one of two configs has are named, whichever is asked."""
    config = Config({"mode": "default", "level": 1})
    assert config.differing(Config(other)) == expected
    assert Config(other).differing(config) == expected


def test_reading_a_config() -> None:
    """Knobs are read by name, in the order of the space; a missing one raises, or gives the stated default."""
    config = Config({"z": 1, "a": None})
    assert list(config.knobs()) == ["z", "a"]
    assert config["z"] == 1
    assert config.get("a", "unused") is None
    assert config.get("missing") is None
    assert config.get("missing", 3) == 3
    with pytest.raises(KeyError):
        config["missing"]


def test_a_config_reads_as_name_value_pairs() -> None:
    """People read `name=value`, with values as the YAML file spells them."""
    assert str(Config({"mode": "default", "dynamic": None, "full": True, "n": 3})) == (
        "mode=default dynamic=null full=true n=3"
    )
