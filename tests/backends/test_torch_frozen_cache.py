"""Code of frozen graphs that is found in inductor's cache: for other weights too, and never with the former ones."""

import copy

import pytest

torch = pytest.importorskip("torch")

from autotune.backends.torch import frozen_graph  # noqa: E402
from autotune.backends.torch.apply import apply  # noqa: E402
from autotune.backends.torch.frozen import takes_constant_weights  # noqa: E402
from autotune.backends.undo import UndoLog  # noqa: E402
from autotune.config import Config  # noqa: E402

pytestmark = pytest.mark.torch

IS_CACHED = len(frozen_graph.cache_entries()) > 1
"""False: each model is compiled, and what is cached is not looked at."""
FROZEN = {"execution": "compile", "backend": "inductor", "freezing": True}
X = torch.linspace(-1, 1, 512).reshape(4, 2, 64)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()


def check(models, found, **settings):
    """Asserts whether the code of each is found in the cache, and that all answer as the plain models, the first ones
    also once the others are compiled."""
    from torch._dynamo.utils import counters

    tuned_models = []
    for model, is_found in zip(models, found, strict=True):
        counters.clear()
        model.eval().requires_grad_(False)
        tuned_models.append(apply(model, Config({**FROZEN, **settings}), UndoLog()))
        for each, tuned in zip(models, tuned_models, strict=False):
            torch.testing.assert_close(tuned(X), each(X), rtol=1e-4, atol=1e-4)
        seen = [counters["inductor"][f"fxgraph_cache_{each}"] for each in ("hit", "miss")]
        assert seen == ([int(is_found), int(not is_found)] if IS_CACHED else [0, 0])


class Layers(torch.nn.Module):
    """Weights that are packed for oneDNN."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv1d(2, 12, 3)
        self.linear = torch.nn.Linear(62, 16)
        self.norm = torch.nn.LayerNorm(16)

    def forward(self, x):
        return self.norm(self.linear(self.conv(x))).relu()


class Scaled(torch.nn.Module):
    """A number as its weight, and another one that is computed from weights alone."""

    def __init__(self, scale):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(scale))
        self.weight = torch.nn.Parameter(torch.full((64, 64), scale))
        self.norm = torch.nn.LayerNorm(64)

    def forward(self, x):
        return self.norm(x) * self.scale + self.weight.mean()


class Shared(torch.nn.Module):
    """Two weights, which may be the same memory."""

    def __init__(self, *, shares):
        super().__init__()
        self.first = torch.nn.Parameter(torch.rand(2, 64))
        self.second = torch.nn.Parameter(torch.rand(2, 64))
        if shares:
            self.second.data = self.first.data

    def forward(self, x):
        return (x * self.first).tanh() * self.second


class Packed(torch.nn.Module):
    """A weight that max-autotune's template for it packs while the code is written."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(64, 32)

    def forward(self, x):
        return self.linear(x)


@pytest.mark.fast_cases("python")
@pytest.mark.parametrize("wrapper", [False, True], ids=["python", "cpp_wrapper"])
def test_code_is_found_again_with_other_weights(wrapper):
    check([Layers(), Layers(), Layers()], [False, True, True], cpp_wrapper=wrapper)


def test_a_number_in_the_code_is_that_of_the_model():
    check([Scaled(2.0), Scaled(3.0), Scaled(2.0)], [False, False, True])


def test_weights_that_share_memory_have_code_of_their_own():
    models = [Shared(shares=each) for each in (True, False, True, False)]
    check(models, [False, False, True, True])


@pytest.mark.skipif(not IS_CACHED, reason="nothing is cached, and g++ 12 refuses the template of torch 2.6")
def test_weights_that_were_packed_into_the_code_are_found_again_by_the_same_weights_alone():
    settings = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "CPP"}
    model = Packed()
    trained = copy.deepcopy(model)
    with torch.no_grad():
        trained.linear.weight[0, 0] += 1
    check([model, trained, copy.deepcopy(model), copy.deepcopy(trained)], [False, False, True, True], **settings)


def test_weights_whose_values_cannot_be_read_are_compiled_anew(monkeypatch):
    """A key without them would find code of other weights."""
    monkeypatch.setattr(frozen_graph, "_digest", lambda _: None)
    model = Packed()
    settings = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "CPP"}
    check([model, copy.deepcopy(model)], [False, False], **settings)


def test_a_release_whose_cache_is_made_otherwise_is_not_trusted(monkeypatch):
    monkeypatch.setitem(frozen_graph._KNOWN, "FxGraphCache", ("what a later release calls it",))
    entries = frozen_graph.cache_entries.__wrapped__()
    assert [each[1:] for each in entries] == [("fx_graph_cache", False)]


@pytest.mark.parametrize(
    ("make", "constant"),
    [
        (torch.Tensor.clone, True),
        (torch.Tensor.to_sparse, True),
        (torch.Tensor.to_sparse_csr, False),
        (torch.Tensor.to_sparse_csc, False),
        (torch.Tensor.to_mkldnn, False),
        (torch.Tensor.log, False),
    ],
    ids=["dense", "COO", "CSR", "CSC", "oneDNN's", "NaN"],
)
def test_weights_of_any_layout_can_be_asked_about(make, constant):
    """Where PyTorch does not look for NaN, they become no constants, and the model is tuned."""
    model = torch.nn.Linear(2, 2).eval()
    model.register_buffer("adjacency", make(-torch.eye(2)))
    assert takes_constant_weights(model) is constant
