"""Components of a pipeline by their paths: which config each gets, and what is tried."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from autotune.config import Config
from autotune.errors import InputError, InvalidConfigError
from autotune.workload.build import build
from autotune.workload.components import configs_of, held_at, put_at, regions_of


def config(**knobs):
    return Config({"execution": "compile", **knobs})


@pytest.mark.parametrize(
    ("region", "expected"),
    [
        ("unet", {"unet": {}}),
        ("unet, vae.decoder", {"unet": {}, "vae.decoder": {}}),
        ("unet.blocks.*, vae.decoder", {"unet": {"region": "blocks.*"}, "vae.decoder": {}}),
        ("unet.blocks.*, unet.mid.*", {"unet": {"region": "blocks.*, mid.*"}}),
        ("whole", {"unet": {}, "vae": {}}),
    ],
)
def test_each_component_gets_the_settings_and_its_own_part_of_the_region(region, expected):
    """Without a region all parts do."""
    found = configs_of(config(region=region), ["unet", "vae"])
    assert found == {path: config(**knobs) for path, knobs in expected.items()}
    with pytest.raises(InvalidConfigError, match="this is a pipeline"):
        configs_of(config(region="whole but unet"), ["unet"])


def test_regions_to_try_grow_by_what_takes_most_of_the_time():
    """What takes hardly any is left, and so is what comes fourth."""
    shares = {"text": 0.1, "unet": 0.7, "safety": 0.004, "vae.decoder": 0.15}
    assert regions_of(shares) == ("unet", "unet, vae.decoder", "unet, vae.decoder, text")
    assert regions_of({**shares, "fourth": 0.02})[-1] == "unet, vae.decoder, text"
    assert regions_of({"text": 0.001}) == ("text",)


@pytest.mark.parametrize("make", [dict, SimpleNamespace])
def test_a_place_is_found_and_filled(make):
    """In an object, and in a dict."""
    vae = SimpleNamespace(decoder="plain")
    holder = make(unet="plain", vae=vae)
    for path in ("unet", "vae.decoder"):
        assert held_at(holder, path) == "plain"
        put_at(holder, path, "tuned")
        assert held_at(holder, path) == "tuned"
    assert vae.decoder == "tuned"
    with pytest.raises(InvalidConfigError, match=r"no component 'vae\.encoder'"):
        held_at(holder, "vae.encoder")


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ("{'components': [], 'call': print}", "components that are no dict of models by name"),
        ("{'components': {'a': print}}", "no call of its components"),
        ("{'pipeline': print, 'call': 3}", "no call of its components"),
        (
            "{'components': {'a': print}, 'call': print, 'reset': print}",
            "'reset' that .* returned cannot be used, since it is for one model",
        ),
        ("{'components': {'a': print}, 'call': print, 'parts': 3}", "a mapping with 'parts'"),
    ],
)
def test_what_is_no_pipeline_is_refused(tmp_path, workload, returned, told):
    """With what was meant."""
    path = tmp_path / "pipe.py"
    path.write_text(f"def build():\n    return {returned}\n")
    with pytest.raises(InputError, match=told):
        build(workload.model_copy(update={"reference": f"{path}:build"}))
    with pytest.raises(InputError, match=r"pipeline|components|mapping"):
        build(workload.model_copy(update={"reference": f"{path}:build", "task": "train"}))
