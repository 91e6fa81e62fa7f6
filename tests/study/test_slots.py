"""Typed values that are stored with a study."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from autotune.config import Config
from autotune.errors import StoreError
from autotune.study.records import DriftCheck, StopReason
from autotune.study.slots import list_slot, value_slot


class Attributes(dict):
    """What a study stores, in memory."""

    manifest = SimpleNamespace(written="written by a test")
    read_attribute = dict.get
    write_attribute = dict.__setitem__


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
