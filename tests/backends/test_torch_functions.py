"""Plain functions as models for PyTorch, in trials and in a job; both kinds of inputs; a dataclass as the output."""

from __future__ import annotations

import functools
import importlib
import sys
from dataclasses import dataclass

import pytest

import autotune
from tests.conftest import QUICK_BUDGET
from tests.stand_ins.exports import export

torch = pytest.importorskip("torch")

from autotune.backends.torch import counters  # noqa: E402
from autotune.backends.torch.backend import TorchBackend  # noqa: E402
from autotune.backends.torch.compiled_step import ClonedOutputs  # noqa: E402
from autotune.backends.undo import UndoLog  # noqa: E402
from autotune.config import Config  # noqa: E402
from autotune.errors import UnsuitableCallError  # noqa: E402

pytestmark = pytest.mark.torch

FILE = """
from dataclasses import dataclass

import torch


@dataclass
class Scores:
    total: torch.Tensor
    parts: tuple


def score(x, *, mask, scale=2.0):
    kept = torch.where(mask, x, 0.0) * scale
    return Scores(kept.sum(-1), (kept, scale))


def build():
    return score, ((torch.linspace(-1, 1, 8).reshape(2, 4),), {"mask": torch.ones(2, 4, dtype=torch.bool)})
"""
SPACE = """
schema: 1
framework: torch
knobs:
  execution: {doc: "https://example.org/x", values: [eager, compile], untuned: eager, default: compile}
  backend: {doc: "https://example.org/x", when: {execution: compile}, values: [aot_eager], default: aot_eager}
"""


@dataclass
class Pair:
    first: torch.Tensor
    second: int


@dataclass(frozen=True, slots=True)
class Slotted:
    first: object
    second: int


def test_what_counts_as_a_function():
    """Functions, lambdas, methods, torch's own, and all of these with some arguments given."""
    backend = TorchBackend()
    linear = torch.nn.Linear(4, 4).eval()
    partials = (functools.partial(torch.add, 1), functools.partial(linear), functools.partial(linear.forward))
    for function in (lambda x: x + 1, torch.sin, linear.forward, *partials):
        model = backend.as_model(function)
        assert backend.check_model(model) is None
        assert torch.equal(model(torch.ones(2, 4)), function(torch.ones(2, 4)))
    for function in (linear.forward, *partials[1:]):
        names = [name for name, _ in backend.parameters(backend.as_model(function))]
        assert names == ["owner.weight", "owner.bias"], "a method's module comes along"
    assert not backend.as_model(linear.forward).training
    assert backend.as_model(linear) is linear


def test_an_object_that_can_be_called_is_refused_with_a_way_out():
    """The modules of a pipeline by name."""

    class Pipeline:
        def __init__(self):
            self.unet, self.steps = torch.nn.Linear(4, 4), 50

        def __call__(self, x):
            return self.unet(x)

    backend = TorchBackend()
    why = backend.check_model(backend.as_model(Pipeline()))
    assert "a Pipeline; the torch backend needs a torch.nn.Module or a function" in why
    assert "It holds unet (Linear): return one of them" in why
    assert "pipe.unet = autotune.load(...).apply(pipe.unet)" in why
    assert backend.check_model(backend.as_model(3)).endswith("a function")


@pytest.mark.parametrize("kind", [Pair, Slotted])
def test_a_dataclass_of_a_cuda_graph_is_copied(monkeypatch, kind):
    """Its tensors are the caller's own, whether it has slots or not."""
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: None)
    replayed = torch.ones(2)
    copied = ClonedOutputs(lambda: kind(replayed, 3))()
    assert torch.equal(copied.first, replayed)
    assert copied.first is not replayed
    assert (type(copied), copied.second) == (kind, 3)


@pytest.fixture
def scoring(tmp_path, monkeypatch):
    """The module of a function and its `build`, in the current folder."""
    (tmp_path / "scoring.py").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield importlib.import_module("scoring")
    sys.modules.pop("scoring")


def test_a_job_applies_a_config_to_a_function(scoring, tmp_path, caplog):
    """What it holds is called like the function, compiled and checked; it gets the function itself where the file is
    for something else."""
    _, ((x,), keyword) = scoring.build()
    config, function = {"execution": "compile", "backend": "aot_eager"}, TorchBackend().as_model(scoring.score)
    loaded = autotune.load(export(tmp_path / "best.yaml", "torch", config, function, [x, keyword["mask"]]))
    counters.clear()  # It counts what was compiled in this process, by any model and any test.

    tuned = loaded.apply(scoring.score, on_mismatch="raise", check=True)
    for _ in range(15):
        got = tuned(x, **keyword)
    assert isinstance(got, scoring.Scores)
    assert torch.equal(got.total, scoring.score(x, **keyword).total)
    stats = autotune.stats(tuned)
    assert (stats.state, stats.num_compiles) == ("tuned", 1)
    assert tuned.__name__ == "score"
    assert not [each for each in caplog.records if each.name == "autotune"]
    other = torch.nn.Linear(4, 4).forward
    assert loaded.apply(other) is other
    assert "other parameters" in caplog.text


@pytest.mark.slow
def test_a_function_is_tuned(scoring, no_toolchain, tmp_path):
    """Trials measure it as any model, and compare all that its dataclass holds."""
    (tmp_path / "space.yaml").write_text(SPACE)
    result = autotune.tune(scoring.build, device="cpu", space="space.yaml", budget=QUICK_BUDGET, trials=2)
    assert [(row["state"], row["relative_error"]) for row in result.trials()] == [("measured", None), ("measured", 0.0)]
    assert result.study == "scoring-build-torch-cpu"


def test_weights_around_a_function_get_their_gradients():
    """They are constants of frozen code, though no parameters of the function's model.

    The last test here: all functions share one `forward`, whose compilations are counted above.
    """
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 4).eval()
    backend = TorchBackend()

    def function(x):
        return layer(x)

    model = backend.as_model(function).eval()
    config = Config({"execution": "compile", "backend": "inductor", "mode": "default", "freezing": True})
    step = backend.compile(model, config, UndoLog())
    with torch.no_grad():
        assert torch.allclose(step(torch.ones(2, 4)), layer(torch.ones(2, 4)), atol=1e-6)
    with pytest.raises(UnsuitableCallError, match="records gradients"):
        step(torch.ones(2, 4))
