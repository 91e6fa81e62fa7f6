"""A config in a table shows what differs from the untuned model."""

from __future__ import annotations

import pytest

from autotune.config import Config
from autotune.report.configs import config_text
from autotune.space.combined import join_spaces


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"execution": "eager", "latency_ms": 8}, "untuned"),
        ({"execution": "eager", "latency_ms": 6}, "latency_ms=6"),
        ({"execution": "compile", "behaviour": "right", "latency_ms": 8}, "execution=compile"),
        ({"execution": "compile", "behaviour": "breaks", "latency_ms": 8}, "execution=compile behaviour=breaks"),
    ],
)
def test_only_what_differs_from_the_untuned_model_is_shown(space, settings, shown):
    """A knob that the untuned model does not have is left out at its default."""
    assert config_text(Config(settings), space) == shown


def test_all_settings_are_shown_in_full(space):
    """`--full` leaves nothing out."""
    assert config_text(space.untuned(), space, full=True) == "execution=eager latency_ms=8"


def test_a_study_of_several_frameworks_names_the_framework(space):
    """Two untuned models, one of each framework, are told apart."""
    both = join_spaces([space, space.model_copy(update={"framework": "sham"})])
    assert config_text(both.untuned("sham"), both) == "framework=sham"
    assert config_text(both.default("fake"), both) == "framework=fake execution=compile latency_ms=6"
