"""`timm:NAME`: any model of PyTorch Image Models by name, with random weights."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from autotune.errors import InputError, MissingFrameworkError
from autotune.planning.models import make_workload
from autotune.plugins.hubs import hubs
from autotune.workload.build import build as build_workload

SMALL = "test_resnet"
"""timm has tiny models for tests."""


@pytest.fixture
def build():
    pytest.importorskip("timm", reason="the extra timm is not installed")
    return importlib.import_module("autotune.plugins.hubs.torch.timm_models").build


@pytest.mark.parametrize(
    ("model", "framework", "package", "install"),
    [
        ("timm:resnet50", "torch", "timm", "[timm]'"),
        ("hf:vit", "torch", "transformers", "[hf]'"),
        ("mindcv:resnet50", "mindspore", "mindcv", "pip install mindcv"),
    ],
)
def test_without_the_package_it_is_said_how_to_install_it(monkeypatch, model, framework, package, install):
    """The package is an extra, and no import fails for want of it."""
    monkeypatch.setattr(hubs, "package_version", lambda _: None)
    with pytest.raises(MissingFrameworkError, match=f"the package {package} is not installed") as caught:
        make_workload(model, {}, framework, "cpu", 0)
    assert install in str(caught.value.tip)


@pytest.mark.parametrize(
    ("model", "framework", "words"),
    [
        ("timm:", "torch", "timm:': names no model"),
        ("timm:vgg11", "mindspore", "its models are written in torch"),
        ("mindcv:resnet50", "torch", "written in mindspore, and this is a study of torch"),
        ("hf:", "torch", "hf:': names no model"),
        ("hf:vit", "mindspore", "written in torch, and this is a study of mind"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_a_trial(model, framework, words):
    """An empty name and another framework are mistakes of the command, found without a child."""
    with pytest.raises(InputError, match=words):
        make_workload(model, {}, framework, "cpu", 0)


def test_a_name_becomes_a_workload(build):
    """The name stands among the arguments; the image has the size of the model's data configuration."""
    made = make_workload(f"timm:{SMALL}", {"batch": 2}, "torch", "cpu", 3)
    assert made.arguments == {"batch": 2, "name": SMALL}
    (image,) = build_workload(made).inputs.positional
    assert image.shape[:2] == (2, 3)
    assert image.shape[2] == image.shape[3] >= 96


def test_arguments_set_the_model_and_its_input(build):
    """Those of `timm.create_model` pass through; a ViT is made for the image size that is asked for."""
    model, image = build("test_vit", image_size=64, num_classes=5, in_chans=1)
    assert image.shape == (1, 1, 64, 64)
    assert model(image).shape == (1, 5)
    _, image = build(SMALL, image_size=64)  # Takes any size.
    assert image.shape == (1, 3, 64, 64)


def test_the_seed_determines_weights_and_input(build):
    """Two builds from one seed give bitwise equal outputs, another seed different ones, none of them zero."""
    outputs = []
    for seed in (3, 3, 4):
        model, image = build(SMALL, image_size=64, seed=seed)
        assert not model.training
        outputs.append(model(image).detach().numpy())
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert np.abs(outputs[0]).max() > 1e-3
    assert np.abs(outputs[2] - outputs[0]).max() > 0.05 * np.abs(outputs[0]).max()


@pytest.mark.parametrize(
    ("name", "arguments", "words", "tip"),
    [
        ("resnet5", {}, "timm:resnet5': timm .* has no such model", "did you mean resnet5"),
        (SMALL, {"batch": 0}, "arguments={'batch': 0}: must be a whole number above zero", ""),
        (SMALL, {"wide": 3}, f"timm:{SMALL}': .*'wide'", ""),
    ],
)
def test_a_mistake_is_a_sentence(build, name, arguments, words, tip):
    """What timm does not have or take is said in one sentence."""
    with pytest.raises(InputError, match=words) as caught:
        build(name, **arguments)
    assert tip in (caught.value.tip or "")
