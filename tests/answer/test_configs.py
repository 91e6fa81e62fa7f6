"""A config in a table shows what differs from the untuned model."""

from __future__ import annotations

import pytest
import yaml

from autotune.answer.configs import config_text
from autotune.config import Config
from autotune.space.load import Circumstances, load_space


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"execution": "eager", "latency_ms": 8}, "untuned"),
        ({"execution": "eager", "latency_ms": 6}, "latency_ms=6"),
        ({"execution": "compile", "behaviour": "right", "latency_ms": 8}, "compile"),
        ({"execution": "compile", "behaviour": "breaks", "latency_ms": 8}, "compile behaviour=breaks"),
    ],
)
def test_only_what_differs_from_the_untuned_model_is_shown(space, settings, shown):
    """A knob that the untuned model does not have is left out at its default."""
    assert config_text(Config(settings), space) == shown


def test_a_switch_is_a_sign_and_a_value_has_its_knobs_name(space_file):
    """`compile +freezing -fusion mode=fast`: how the model is executed stands alone."""
    knobs = yaml.safe_load(space_file.read_text())
    for name, values in {"freezing": [False, True], "fusion": [True, False], "mode": ["usual", "fast"]}.items():
        knobs["knobs"][name] = {"doc": "https://example.org/x", "values": values, "default": values[0]}
    space_file.write_text(yaml.safe_dump(knobs, sort_keys=False))
    space = load_space(space_file, framework="fake", circumstances=Circumstances(version="0", device="cpu"))
    config = {"execution": "compile", "behaviour": "right", "latency_ms": 8}
    tuned = Config({**config, "freezing": True, "fusion": False, "mode": "fast"})
    assert config_text(tuned, space) == "compile +freezing -fusion mode=fast"
