"""Versions of a real PyTorch model: each compiled for one shape, apart from the others."""

from __future__ import annotations

import inspect

import pytest

torch = pytest.importorskip("torch")

from autotune.backends.torch import counters  # noqa: E402
from autotune.backends.torch.backend import TorchBackend  # noqa: E402
from autotune.backends.undo import UndoLog  # noqa: E402
from autotune.config import Config  # noqa: E402

AOT = {"execution": "compile", "backend": "aot_eager"}


class Small(torch.nn.Module):
    """A layer, and a break in the graph if it is told so."""

    def __init__(self, breaks=False):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.breaks = breaks

    def forward(self, x):
        if self.breaks:
            torch._dynamo.graph_break()
        return self.layer(x).relu()


@pytest.fixture(autouse=True)
def empty_books():
    counters.clear()
    yield
    counters.clear()


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Small().eval()


@pytest.fixture
def changes():
    made = UndoLog()
    yield made
    made.undo()


def of(num_rows: int):
    return torch.linspace(-1, 1, 4 * num_rows).reshape(num_rows, 4)


def versions_of(model, changes, **settings):
    return TorchBackend().versions(model, Config({**AOT, **settings}), changes)


def num_entries(versions) -> list[int]:
    """Of each version, what dynamo holds under its code."""
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    return [len(_debug_get_cache_entry_list(code)) for code in versions._codes.values()]


def test_each_version_has_its_own_entry(model, changes):
    """Twelve shapes, past dynamo's limit of 8: one entry each, static, and no recompile ever."""
    versions = versions_of(model, changes)
    made = {num_rows: versions.new() for num_rows in range(1, 13)}
    for _ in range(2):
        for num_rows, version in made.items():
            assert torch.equal(version(of(num_rows)), model(of(num_rows)))
    assert num_entries(versions) == [1] * 12
    found = counters.diagnosis()
    assert (found.num_graphs, found.num_recompiles) == (12, 0)


def test_where_the_graph_breaks(changes):
    """Functions that dynamo compiles on their own are kept apart as well, where this release can."""
    if "isolate_recompiles" not in inspect.signature(torch.compile).parameters:
        pytest.skip("this release cannot")
    model = Small(breaks=True).eval()
    versions = versions_of(model, changes)
    made = {num_rows: versions.new() for num_rows in range(1, 13)}
    for num_rows, version in made.items():
        assert torch.equal(version(of(num_rows)), model(of(num_rows)))
    assert counters.diagnosis().num_graphs == 12


def test_a_dropped_version_leaves_no_entry(model, changes):
    """Nothing is left under its code once the next one has gone, and the others work on."""
    from torch._dynamo.eval_frame import _debug_get_cache_entry_list

    versions = versions_of(model, changes)
    first, second, third = (versions.new() for _ in range(3))
    for number, version in enumerate((first, second, third), 1):
        version(of(number))
    code = versions._codes[first]
    versions.drop(first)
    versions.drop(second)
    assert _debug_get_cache_entry_list(code) == []
    assert torch.equal(third(of(3)), model(of(3)))
    assert num_entries(versions) == [1]


def test_what_makes_another_version(model, changes):
    """Shape, type, strides, gradients, and the model's mode; not the values."""
    versions = versions_of(model, changes)

    def key(x):
        return versions.key((x,), {})

    x = of(4)
    assert key(x) == key(x + 1)
    assert len({key(x), key(of(2)), key(x.double()), key(x.t()), key(x.clone().requires_grad_())}) == 5
    before = key(x)
    with torch.no_grad():
        assert key(x) != before
    model.train()
    assert key(x) != before
    assert versions.key((x, [x, 1], {"a": x}), {"flag": True}) == versions.key((x, [x, 1], {"a": x}), {"flag": True})
    assert versions.key((x,), {"flag": True}) != versions.key((x,), {"flag": False})


def test_the_eager_call_has_the_configs_settings(model, changes):
    """Precision is as in a version; only the compiler is not there."""
    versions = versions_of(model, changes, precision="bf16_autocast")
    given = versions.eager(of(2))
    assert given.dtype is torch.float32
    assert torch.equal(given, given.bfloat16().float())
    assert counters.diagnosis().num_graphs == 0
    changes.undo()
    assert model.layer.weight.dtype == torch.float32


def test_what_cannot_be_kept_apart(model, changes):
    """Modules compiled in place serve all calls, and an eager config compiles nothing; nothing was set."""
    assert versions_of(model, changes, region="layer", matmul_precision="medium") is None
    assert TorchBackend().versions(model, Config({"execution": "eager"}), changes) is None
    assert torch.get_float32_matmul_precision() == "highest"
