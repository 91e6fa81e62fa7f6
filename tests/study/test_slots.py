"""Typed values that are stored with a study."""

from __future__ import annotations

import pytest

from autotune.answer.result import EXPORTED_CACHE
from autotune.config import Config
from autotune.errors import StoreError
from autotune.study.records import DriftCheck, StopReason
from autotune.study.slots import Slot, list_slot, value_slot
from autotune.study.study import Study


class Attributes(dict):
    """What a study stores, in memory."""

    written = "written by a test"
    read_attribute = dict.get
    write_attribute = dict.__setitem__


def test_the_names_are_those_of_studies_on_disk():
    """A slot under another name would not find what an earlier version stored."""
    slots = [each for each in vars(Study).values() if isinstance(each, Slot)]
    assert {each.name for each in (*slots, EXPORTED_CACHE)} == {
        "answers", "artifact", "blocks", "budget", "confirmation", "early_stop",
        "noise_floor", "portfolio", "queue", "second_baseline", "sentinels", "stop", "uses",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("slot", "value", "stored"),
    [
        (value_slot("x", StopReason), StopReason.TIME, "time"),
        (value_slot("x", DriftCheck), DriftCheck(after=4, latency_s=0.5), {"after": 4, "latency_s": 0.5}),
        (list_slot("x", DriftCheck), [DriftCheck(after=4, latency_s=0.5)], [{"after": 4, "latency_s": 0.5}]),
        (list_slot("x", Config), [Config({"a": 1, "b": None})], [{"a": 1, "b": None}]),
    ],
)
def test_a_value_is_stored_as_plain_data(slot, value, stored):
    """The JSON form is the one that earlier versions wrote and read."""
    study = Attributes()
    slot.write(study, value)
    assert study == {"x": stored}
    assert slot.read(study) == value


def test_nothing_is_there_before_it_is_written():
    """None for one value, an empty list for several; None can be written too."""
    study = Attributes()
    assert value_slot("x", StopReason).read(study) is None
    assert list_slot("x", Config).read(study) == []
    value_slot("x", StopReason).write(study, None)
    assert value_slot("x", StopReason).read(study) is None


def test_a_form_of_another_version_is_an_error_with_a_way_out():
    """Not a traceback: the key is named, and what to do."""
    with pytest.raises(StoreError, match="the study's x cannot be read: key latency_s: ") as caught:
        value_slot("x", DriftCheck).read(Attributes(x={"after": 1, "latency_s": "soon"}))
    assert "version of autotune" in caught.value.tip
