"""`tune(model, inputs)`: a live model is written into the study, so that other processes can load it."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path

import pytest

import autotune
from autotune.api import given_model
from autotune.api.given_model import named_model
from autotune.errors import InputError
from autotune.question.question import Question
from autotune.tuning.events import ModelSaved
from tests.conftest import QUICK_BUDGET, TORCH_SPACE

NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.bias = 1.5

    def forward(self, x, scale=1.0):
        return torch.relu(self.inner(x)) * scale + self.bias
"""


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def net(torch, tmp_path, monkeypatch):
    """A model of a module in the current folder, in the mode in which it is called."""
    (tmp_path / "live_net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield importlib.import_module("live_net").Net().eval()
    sys.modules.pop("live_net")


def saved(model, inputs, heard=None, **settings):
    """The text that stands for the model."""
    request = Question.of({"device": "cpu", **settings})
    live = None if inputs is None else [inputs]
    with named_model(model, live, request, Path("studies"), (heard if heard is not None else []).append) as named:
        return named.build, named


@pytest.mark.torch
def test_a_saved_model_computes_the_same(torch, net):
    """Weights, attributes, mode and inputs come back in another process's `build`; the caller hears where they are."""
    inputs = {"x": torch.randn(2, 4), "scale": 2.0}
    heard = []
    text, named = saved(net, inputs, heard)
    assert (named.framework, named.study) == ("torch", "Net-torch-cpu")
    file, _, function = text.partition(":")
    model, again = runpy.run_path(file)[function]()
    assert not model.training
    assert set(again) == {"x", "scale"}
    assert torch.equal(model(**again), net(**inputs))
    (event,) = heard
    assert event == ModelSaved(file.removesuffix(".py") + ".pt", Path(event.path).stat().st_size)


@pytest.mark.torch
def test_the_same_model_is_the_same_file(torch, net):
    """So the same call finds its study again, and a changed attribute makes another one."""
    x = torch.ones(2, 4)
    first, _ = saved(net, x)
    assert saved(net, x)[0] == first
    net.bias = 2.5
    assert saved(net, x)[0] != first
    assert not list(Path("studies/Net-torch-cpu").glob(".saved_model*"))


@pytest.mark.torch
def test_what_another_process_could_not_load(torch, net, monkeypatch):
    """Refused at once, with the way out, and nothing is left behind."""
    x = torch.ones(2, 4)
    file, _, function = saved(torch.compile(net), x, study="wrapped")[0].partition(":")
    assert type(runpy.run_path(file)[function]()[0]) is type(net), "of the compiled wrapper the model itself is saved"
    net.hook = lambda: None
    with pytest.raises(InputError, match="cannot be saved") as refused:
        saved(net, x)
    assert "tune(build)" in refused.value.tip

    class Cell(torch.nn.Module):
        __module__, __qualname__ = "__main__", "Cell"

    monkeypatch.setattr(sys.modules["__main__"], "Cell", Cell, raising=False)
    with pytest.raises(InputError, match="Cell is defined in this notebook or script"):
        saved(torch.nn.Sequential(Cell()), x)
    with pytest.raises(InputError, match="a live model needs example inputs"):
        saved(net, None)
    with pytest.raises(InputError, match="the model is one of torch"):
        saved(net, x, framework="mindspore")
    assert [each.name for each in Path("studies").glob("*")] == ["wrapped"]


def test_a_framework_without_a_way_to_save(monkeypatch, tmp_path):
    """A MindSpore model is given as a function that builds it."""
    monkeypatch.setattr(given_model, "framework_of", lambda model: "mindspore")
    with pytest.raises(InputError, match="a live mindspore model cannot be written") as refused:
        saved(object(), (1,))
    assert "tune(build)" in refused.value.tip


@pytest.mark.slow
@pytest.mark.torch
def test_a_live_model_is_tuned(torch, net, no_toolchain, tmp_path):
    """Trials in other processes measure it; the live object takes the result, and the study goes on without it."""
    (tmp_path / "space.yaml").write_text(TORCH_SPACE)
    x = torch.randn(2, 4)
    given = {"device": "cpu", "space": "space.yaml", "budget": QUICK_BUDGET}
    result = autotune.tune(net, (x,), trials=1, **given)
    assert result.study == "Net-torch-cpu"
    again = autotune.resume("Net-torch-cpu", trials=2)
    assert [row["state"] for row in again.trials()] == ["measured"] * 2
    assert torch.equal(again.apply(net)(x), net(x))
    heard = []
    diagnosis = autotune.diagnose(net, x, callbacks=heard.append)
    assert (diagnosis.framework, diagnosis.findings) == ("torch", ())
    assert [type(each).__name__ for each in heard] == ["ModelSaved", "DiagnosisStep", "DiagnosisStep"]
