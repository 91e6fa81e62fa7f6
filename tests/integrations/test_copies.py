"""Callbacks and trainers that are copied: by pickle, as strategies that spawn processes and searches do, and by copy.
The libraries are stood in for."""

from __future__ import annotations

import copy
import pickle
import sys
from types import ModuleType, SimpleNamespace

import pytest

from autotune.integrations import hugging_face, lightning, mindspore

WAYS = {"pickle": lambda value: pickle.loads(pickle.dumps(value)), "deepcopy": copy.deepcopy}


@pytest.fixture
def libraries(monkeypatch):
    """Both libraries, as far as a callback needs one."""
    for name in ("pytorch_lightning", "mindspore.train"):
        module = ModuleType(name)
        module.Callback = type("Callback", (), {})
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, "mindspore", ModuleType("mindspore"))
    monkeypatch.delitem(sys.modules, "lightning.pytorch", raising=False)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("of", [lightning, mindspore], ids=["lightning", "mindspore"])
def test_a_callback(tmp_path, monkeypatch, libraries, of, way):
    """The copy is made for the same file and policy, wherever the process stands, and has begun nothing."""
    monkeypatch.chdir(tmp_path)
    callback = of.tuned_callback("best.yaml", monitor=True)
    made, begun = [], []
    monkeypatch.setattr(of, "load", made.append)
    monkeypatch.setattr(of, "_Fitting" if of is lightning else "_Training", lambda *given: begun.append(given))
    copied = WAYS[way](callback)
    assert type(copied).__name__ == type(callback).__name__
    assert made == [str(tmp_path / "best.yaml")]
    assert begun[0][-1] == {"monitor": True}


class Trainer:
    """As much of Hugging Face's as is asked for."""

    def __init__(self):
        self.accelerator = SimpleNamespace(
            state=SimpleNamespace(dynamo_plugin=SimpleNamespace(backend=SimpleNamespace(value="no")))
        )
        self.model_init = dict
        self.place_model_on_device = False

    def call_model_init(self, trial=None):
        return self.model_init(trial=trial)


@pytest.mark.parametrize("way", WAYS)
def test_a_trainer_that_makes_its_models(tmp_path, way):
    """As a search over several processes has it: the copy's models are the copy's own, under the same config."""
    trainer = hugging_face.use_tuned(Trainer(), tmp_path / "best.yaml")
    copied = WAYS[way](trainer)
    assert copied.call_model_init(3) == {"trial": 3}
    assert copied.call_model_init._trainer is copied
