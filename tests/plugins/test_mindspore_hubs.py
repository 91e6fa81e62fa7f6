"""`mindone:NAME` and `mindyolo:FILE`: models of two libraries for MindSpore, as far as these are installed."""

from __future__ import annotations

import importlib
import os

os.environ.setdefault("GLOG_v", "3")  # Read when mindspore is imported.

import numpy as np
import pytest

from autotune.backends.outputs import output_arrays
from autotune.backends.registry import load_backend
from autotune.errors import InputError
from autotune.planning.models import make_workload
from autotune.plugins.hubs import hubs
from autotune.workload.arguments import Arguments

ms = pytest.importorskip("mindspore")
pytestmark = pytest.mark.mindspore

CONFIG = """
__BASE__: [base.yaml]
network:
  width_multiple: 0.25
"""
BASE = """
img_size: 64
network:
  model_name: yolov8
  nc: 3
  reg_max: 16
  depth_multiple: 0.33
  width_multiple: 1.0
  max_channels: 64
  stride: [8, 16, 32]
  backbone:
    - [-1, 1, ConvNormAct, [16, 3, 2]]
    - [-1, 1, ConvNormAct, [32, 3, 2]]
    - [-1, 1, ConvNormAct, [32, 3, 2]]
    - [-1, 1, ConvNormAct, [64, 3, 2]]
    - [-1, 1, ConvNormAct, [64, 3, 2]]
  head:
    - [[2, 3, 4], 1, YOLOv8Head, [nc, reg_max, stride]]
"""


@pytest.fixture
def one():
    """The builder for MindOne."""
    pytest.importorskip("mindone")
    return importlib.import_module("autotune.plugins.hubs.mindspore.mindone_models").build


@pytest.fixture
def yolo():
    """The builder for MindYOLO."""
    pytest.importorskip("mindyolo")
    return importlib.import_module("autotune.plugins.hubs.mindspore.mindyolo_models").build


@pytest.fixture
def config(tmp_path):
    """A configuration file that adds to another."""
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    return tmp_path / "tiny.yaml"


def outputs(model, inputs):
    """As a trial sees them."""
    return output_arrays(load_backend("mindspore"), Arguments.of(inputs).call(model))


@pytest.mark.parametrize(
    ("name", "arguments", "shape"),
    [
        ("bert", {"batch": 2, "seq": 8}, (2, 8, 64)),
        ("bert", {"head": "classification", "num_labels": 5}, (1, 5)),
        ("bert", {"head": "masked", "vocab_size": 50}, (1, 32, 50)),
        ("t5", {"seq": 8}, (1, 8, 64)),
        ("t5", {"head": "seq2seq", "seq": 8}, (1, 8, 1000)),
        ("gemma", {"head": "causal", "seq": 8}, (1, 8, 1000)),
        ("UNet2DConditionModel", {}, (1, 4, 32, 32)),
        ("UNet2DModel", {"image_size": 16}, (1, 3, 16, 16)),
        ("AutoencoderKL", {"batch": 2}, (2, 3, 32, 32)),
    ],
)
def test_a_model_of_mindone_runs(one, name, arguments, shape):
    """By type or by class, tiny, in evaluation mode, on this device; the seed determines it."""
    model, inputs = one(name, **arguments)
    assert not model.training
    first = outputs(model, inputs)[0]
    assert first.shape == shape
    assert np.isfinite(first).all()
    np.testing.assert_array_equal(outputs(*one(name, **arguments))[0], first)


@pytest.mark.parametrize(
    ("name", "arguments", "words", "tip"),
    [
        ("berd", {}, "mindone:berd': mindone .* has no such model", "did you mean bert"),
        ("bert", {"head": "seq2seq"}, "has no such model with head=seq2seq", "head=none or classification"),
        ("bert", {"head": "big"}, "'big'}: unknown", "none, classification"),
        ("bert", {"depth": 3}, "arguments depth: mindone:bert has no such field", ""),
        ("UNet2DModel", {"wide": 3}, "mindone:UNet2DModel': .*wide", ""),
        ("bert", {"batch": 0}, "must be a whole number above zero", ""),
    ],
)
def test_a_mistake_with_mindone_is_a_sentence(one, name, arguments, words, tip):
    """What MindOne does not have or take is said, with what there is."""
    with pytest.raises(InputError, match=words) as caught:
        one(name, **arguments)
    assert tip in (caught.value.tip or "")


def test_a_configuration_file_of_mindyolo_is_a_model(yolo, config):
    """What it says goes over what the files say that it adds to; numbers of the network may be given."""
    model, image = yolo(str(config), batch=2)
    assert image.shape == (2, 3, 64, 64)
    assert not model.training
    first, *_ = outputs(model, image)
    assert first.shape[0] == 2
    assert first.shape[-1] == 4 + 3
    again, *_ = outputs(*yolo(str(config), batch=2))
    np.testing.assert_array_equal(again, first)
    wide, _ = yolo(str(config), width_multiple=1.0)
    assert sum(p.size for p in wide.get_parameters()) > sum(p.size for p in model.get_parameters())


@pytest.mark.parametrize(
    ("name", "arguments", "words", "tip"),
    [
        ("yolov8n", {}, "mindyolo:yolov8n': is no configuration file", "configs/yolov8/yolov8n.yaml"),
        ("base", {"depth": 3}, "arguments depth: .* has no such number in its network", "depth_multiple"),
        ("no_network", {}, "has no network with a model_name", ""),
        ("lost", {}, "gone.yaml': is no configuration file", "clone"),
    ],
)
def test_a_mistake_with_mindyolo_is_a_sentence(config, name, arguments, words, tip):
    """Found before the library is imported."""
    build = importlib.import_module("autotune.plugins.hubs.mindspore.mindyolo_models").build
    (config.parent / "no_network.yaml").write_text("img_size: 64\n")
    (config.parent / "lost.yaml").write_text("__BASE__: [gone.yaml]\n")
    path = config.parent / f"{name}.yaml"
    with pytest.raises(InputError, match=words) as caught:
        build(str(path) if path.is_file() else name, **arguments)
    assert tip in (caught.value.tip or "")


def test_a_file_is_seen_from_where_the_user_stands(config):
    """A trial runs in a folder of its own."""
    assert hubs.MINDYOLO_HUB.name_of("tiny.yaml", config.parent) == str(config.resolve())
    assert hubs.MINDONE_HUB.name_of("bert", config.parent) == "bert"


@pytest.mark.parametrize(("model", "install"), [("mindone:bert", "mindone==0.3.0"), ("mindyolo:a.yaml", "pycocotools")])
def test_what_is_missing_is_said(monkeypatch, model, install):
    """How to install it, and that there is no training by these names."""
    monkeypatch.setattr(hubs, "package_version", lambda _: None)
    with pytest.raises(Exception, match="is not installed") as caught:
        make_workload(model, {}, "mindspore", "cpu", 0)
    assert install in str(caught.value.tip)
    with pytest.raises(InputError, match="come without a loss by name"):
        make_workload(model, {}, "mindspore", "cpu", 0, task="train")
