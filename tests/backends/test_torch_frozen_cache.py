"""Code of frozen graphs that is found in inductor's cache: for other weights too, and never with the former ones."""

import pytest

torch = pytest.importorskip("torch")

from autotune.backends.torch import frozen_cache  # noqa: E402
from autotune.backends.torch.apply import apply  # noqa: E402
from autotune.backends.undo import UndoLog  # noqa: E402
from autotune.config import Config  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif(len(frozen_cache.cache_entries()) == 1, reason="this release caches no frozen graph"),
]

FROZEN = {"execution": "compile", "backend": "inductor", "freezing": True}
X = torch.linspace(-1, 1, 512).reshape(4, 2, 64)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))


def compiled_anew(model, **settings):
    """Asserts that the tuned model answers as the plain one. Returns whether its code was found in the cache."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    model.eval().requires_grad_(False)
    tuned = apply(model, Config({**FROZEN, **settings}), UndoLog())
    torch.testing.assert_close(tuned(X), model(X), rtol=1e-4, atol=1e-4)
    found = counters["inductor"]
    assert found["fxgraph_cache_hit"] + found["fxgraph_cache_miss"] == 1, "not looked for"
    return found["fxgraph_cache_hit"] == 1


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


@pytest.mark.parametrize("wrapper", [False, True], ids=["python", "cpp_wrapper"])
def test_code_is_found_again_with_other_weights(wrapper):
    assert [compiled_anew(Layers(), cpp_wrapper=wrapper) for _ in range(3)] == [False, True, True]


def test_a_number_in_the_code_is_that_of_the_model():
    assert [compiled_anew(Scaled(each)) for each in (2.0, 3.0, 2.0)] == [False, False, True]


def test_weights_that_share_memory_have_code_of_their_own():
    assert [compiled_anew(Shared(shares=each)) for each in (True, False, True, False)] == [False, False, True, True]


def test_weights_that_were_packed_into_the_code_are_not_found_again():
    settings = {"max_autotune_gemm": True, "max_autotune_gemm_backends": "CPP"}
    assert [compiled_anew(Packed(), **settings) for _ in range(2)] == [False, False]


def test_a_release_whose_cache_is_made_otherwise_is_not_trusted(monkeypatch):
    monkeypatch.setattr(frozen_cache, "_KNOWN", ("what a later release calls it",))
    entries = frozen_cache.cache_entries.__wrapped__()
    assert [each[1:] for each in entries] == [("fx_graph_cache", False)]
