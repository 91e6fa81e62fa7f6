"""Plain functions as models for PyTorch, in trials and in a job; both kinds of inputs; a dataclass as the output."""

from __future__ import annotations

import functools
import importlib
import pickle
import sys
from dataclasses import dataclass

import pytest

import autotune
from tests.conftest import QUICK_BUDGET, TORCH_SPACE
from tests.stand_ins.exports import export

torch = pytest.importorskip("torch")

from autotune.backends.call_state import CallState  # noqa: E402
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


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_was_made_of_a_module_is_refused_with_a_way_back():
    """Scripts and traces, which no compiler takes, and programs, which cannot be called."""
    backend, linear, x = TorchBackend(), torch.nn.Linear(4, 4).eval(), torch.ones(2, 4)
    for made in (torch.jit.script(linear), torch.jit.trace(linear, x)):
        assert "return the module that was scripted or traced" in backend.check_model(backend.as_model(made))
    program = torch.export.export(linear, (x,))
    assert backend.check_model(backend.as_model(program)).endswith("return its .module()")
    assert backend.check_model(backend.as_model(program.module())) is None


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


class Coder(torch.nn.Module):
    """One whose methods are called, as those of an autoencoder are."""

    def __init__(self):
        super().__init__()
        self.wide, self.narrow = torch.nn.Linear(4, 8), torch.nn.Linear(8, 4)

    def encode(self, x):
        return torch.tanh(self.wide(x))

    def decode(self, z):
        return self.narrow(z) * 2

    def forward(self, x):
        return self.decode(self.encode(x))


@pytest.fixture
def decoding(tmp_path):
    """A model and a file that was made for its method `decode`."""
    torch.manual_seed(0)
    coder, config = Coder().eval(), {"execution": "compile", "backend": "aot_eager"}
    model = TorchBackend().as_model(coder.decode)
    path = export(tmp_path / "best.yaml", "torch", config, model, [torch.ones(2, 8)], method="decode")
    counters.clear()
    return coder, autotune.load(path)


@torch.no_grad()
def test_a_method_is_put_back_where_it_came_from(decoding):
    """`apply` of the model gives one whose method is tuned, also where its other methods call it."""
    (coder, loaded), x = decoding, torch.ones(2, 4)
    expected = coder(x)
    tuned = loaded.apply(coder, on_mismatch="raise", check=True, monitor=True)
    assert torch.allclose(tuned(x), expected)
    assert torch.allclose(tuned.decode(tuned.encode(x)), expected)
    stats = autotune.stats(tuned)
    assert (stats.num_calls, stats.num_compiles) == (2, 1)
    assert type(tuned) is not Coder
    assert isinstance(tuned, Coder)
    assert type(tuned).decode is Coder.decode
    assert [*tuned.state_dict()] == [*coder.state_dict()]
    assert coder.decode.__func__ is Coder.decode, "the job's own is as it was"
    assert type(pickle.loads(pickle.dumps(tuned))) is Coder


@torch.no_grad()
def test_a_tuned_method_can_be_set_in_its_model(decoding):
    """It is a function, and makes the model no part of itself."""
    (coder, loaded), x = decoding, torch.ones(2, 4)
    expected, names = coder(x), [*coder.state_dict()]
    coder.decode = loaded.apply(coder.decode, on_mismatch="raise")
    assert torch.allclose(coder(x), expected)
    assert autotune.stats(coder.decode).num_compiles == 1
    assert [*coder.train().eval().state_dict()] == names
    assert loaded.apply(coder.decode, on_mismatch="raise").__wrapped__.__func__ is Coder.decode, "not tuned twice"


def test_a_model_without_the_method_stays_untuned(decoding, caplog):
    _, loaded = decoding
    other = torch.nn.Linear(8, 4)
    assert loaded.apply(other) is other
    assert "tuned for the method decode, which a Linear lacks" in caplog.text


def test_the_method_that_a_model_is_called_by_is_the_model():
    linear = torch.nn.Linear(4, 4)
    assert TorchBackend().as_model(linear.__call__) is linear


def test_a_method_keeps_the_modes_of_the_parts_of_its_model():
    """A part that is in evaluation mode stays there."""
    coder = Coder()
    coder.wide.eval()
    TorchBackend().as_model(coder.decode)
    assert (coder.training, coder.wide.training) == (True, False)


class Dropping(torch.nn.Module):
    """One whose code reads its mode, as those of libraries do."""

    def forward(self, x):
        return torch.nn.functional.dropout(x, 0.5, self.training)


def test_what_acts_as_in_training():
    """Within a model, the model of a method, and around a function; not what only has the flag."""
    backend = TorchBackend()
    coder = Coder()
    coder.wide, coder.drop, coder.off = torch.nn.BatchNorm1d(4), Dropping(), torch.nn.Dropout(0.0)
    acting = ["BatchNorm1d 'wide'", "Dropping 'drop'"]
    assert backend.acting_in_training(coder) == acting
    assert backend.acting_in_training(backend.as_model(lambda x: coder(x) * 2)) == acting
    named = backend.acting_in_training(backend.as_model(coder.decode))
    assert named == [each.replace("'", "'owner.", 1) for each in acting]
    around = torch.nn.Sequential(coder.eval())
    exported = torch.export.export(Coder().eval(), (torch.ones(2, 4),)).module()
    for model in (around, backend.as_model(torch.sin), exported):
        assert model.training
        assert not backend.acting_in_training(model)


def test_what_the_compiler_sets_in_classes_is_no_state(monkeypatch):
    """It turns the checks of all distributions off, also of one that a policy keeps."""
    policy, backend = torch.nn.Linear(4, 4), TorchBackend()
    policy.last = torch.distributions.Normal(torch.zeros(3), torch.ones(3))
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
    before = CallState(backend, {"model": policy})
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", False)
    assert CallState(backend, {"model": policy}) == before
    policy.last.loc.add_(1)
    assert CallState(backend, {"model": policy}) != before


def test_weights_without_data():
    """As loaders of large models leave them."""
    with torch.device("meta"):
        model = Coder()
    said = TorchBackend().check_model(model)
    assert said == "a Coder without data in its weights (wide.weight is on the meta device); load them first"


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_a_sparse_buffer_has_a_fingerprint():
    """It has no strides."""
    model = torch.nn.Linear(4, 4).eval()
    model.register_buffer("adjacency", torch.eye(4).to_sparse_csr())
    assert TorchBackend().program(model, Config({"execution": "eager"}))


@pytest.mark.slow
def test_a_function_is_tuned(scoring, no_toolchain, tmp_path):
    """Trials measure it as any model, and compare all that its dataclass holds."""
    (tmp_path / "space.yaml").write_text(TORCH_SPACE)
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
