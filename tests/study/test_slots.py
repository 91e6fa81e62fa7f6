"""Typed values that are stored with a study."""

from __future__ import annotations

import pytest

from autotune.answer.result import EXPORTED_CACHE
from autotune.config import Config
from autotune.errors import StoreError
from autotune.study.records import DriftCheck, StopReason
from autotune.study.slots import ListSlot, Slot
from autotune.study.study import Study


class Attributes(dict):
    """What a study stores, in memory."""

    read_attribute = dict.get
    write_attribute = dict.__setitem__


def test_the_names_are_those_of_studies_on_disk():
    """A slot under another name would not find what was stored."""
    slots = [each for each in vars(Study).values() if isinstance(each, Slot | ListSlot)]
    assert {each.name for each in (*slots, EXPORTED_CACHE)} == {
        "artifact", "budget", "confirmation", "early_stop", "noise_floor", "queue", "sentinels", "stop",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("slot", "value", "stored"),
    [
        (Slot("x", StopReason), StopReason.TIME, "time"),
        (Slot("x", DriftCheck), DriftCheck(after=4, latency_s=0.5), {"after": 4, "latency_s": 0.5}),
        (ListSlot("x", DriftCheck), [DriftCheck(after=4, latency_s=0.5)], [{"after": 4, "latency_s": 0.5}]),
        (ListSlot("x", Config), [Config({"a": 1, "b": None})], [{"a": 1, "b": None}]),
    ],
)
def test_a_value_is_stored_as_plain_data(slot, value, stored):
    """In the JSON form that studies on disk have."""
    study = Attributes()
    slot.write(study, value)
    assert study == {"x": stored}
    assert slot.read(study) == value


def test_nothing_is_there_before_it_is_written():
    """None for one value, an empty list for several; None can be written too."""
    study = Attributes()
    assert Slot("x", StopReason).read(study) is None
    assert ListSlot("x", Config).read(study) == []
    Slot("x", StopReason).write(study, None)
    assert Slot("x", StopReason).read(study) is None


def test_a_list_grows():
    """`add` keeps what is there."""
    study, slot = Attributes(), ListSlot("x", Config)
    slot.add(study, Config({"a": 1}))
    slot.add(study, Config({"a": 2}), Config({"a": 3}))
    assert [each["a"] for each in slot.read(study)] == [1, 2, 3]


def test_a_form_of_another_version_is_an_error_with_a_way_out():
    """Not a traceback: the key is named, and what to do."""
    with pytest.raises(StoreError, match=r"the study's x\.latency_s is stored in a form") as caught:
        Slot("x", DriftCheck).read(Attributes(x={"after": 1, "latency_s": "soon"}))
    assert "version of autotune" in caught.value.tip


def test_a_slot_of_a_study_is_an_attribute(make_study):
    """It is assigned and read like any other, and another process reads it."""
    study = make_study()
    assert study.stop_reason is None
    study.stop_reason = StopReason.TIME
    assert study.stop_reason is StopReason.TIME
    assert study.read_attribute("stop") == "time"
    study.close()
