"""A config taken apart: what goes to the backend, to the model's variants and to the shape strategy."""

from __future__ import annotations

import pytest

from autotune.apply.config_parts import ConfigParts
from autotune.config import Config

CONFIG = Config(
    {
        "execution": "compile",
        "shapes": "bucketed",
        "num_buckets": 4,
        "region": "blocks.*",
        "variant.activation": "fused",
        "variant.attention": "math",
    }
)


def test_each_knob_is_in_one_part() -> None:
    """The backend gets what the framework knows, `shapes` among it; variants have their own names."""
    parts = ConfigParts.of(CONFIG)
    assert parts.settings == Config({"execution": "compile", "shapes": "bucketed", "region": "blocks.*"})
    assert parts.variants == {"activation": "fused", "attention": "math"}
    assert parts.strategy_numbers == {"num_buckets": 4}
    assert parts.has_region


def test_what_decides_about_new_shapes() -> None:
    """The strategy with its numbers, and the limit of compilations."""
    parts = ConfigParts.of(Config({**CONFIG.root, "recompile_limit": 64}))
    assert parts.new_shapes == {"shapes": "bucketed", "num_buckets": 4, "recompile_limit": 64}


def test_a_config_of_settings_alone() -> None:
    """Most configs: all of it goes to the backend."""
    plain = Config({"execution": "compile", "mode": "default"})
    parts = ConfigParts.of(plain)
    assert (parts.settings, parts.variants, parts.new_shapes, parts.has_region) == (plain, {}, {}, False)


@pytest.mark.parametrize(("region", "expected"), [("whole", False), ("whole but head", True), ("blocks.*", True)])
def test_a_model_in_one_piece_has_no_region(region: str, expected: bool) -> None:
    """Nothing is rewritten then, and no copy of the modules has to be kept up to date at each call."""
    assert ConfigParts.of(Config({"execution": "compile", "region": region})).has_region is expected


def test_variables_and_options_are_told_apart() -> None:
    """A variable of the environment is for the process, an option for the backend; null asks for nothing."""
    parts = ConfigParts.of(
        Config({"execution": "compile", "inductor.dce": True, "env.KMP_BLOCKTIME": 0, "env.OMP_DYNAMIC": None})
    )
    assert parts.settings == Config({"execution": "compile", "inductor.dce": True})
    assert parts.options == ("inductor.dce",)
    assert parts.start.variables == {"KMP_BLOCKTIME": "0"}
