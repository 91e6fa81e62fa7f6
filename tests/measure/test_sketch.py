"""What is kept of a large tensor in place of all of it, and how it is seen that one was changed."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.backends.outputs import Observed
from autotune.backends.registry import load_backend
from autotune.measure import sketch
from autotune.measure.parts import AuthorsWord, Part
from autotune.trial.worker.accuracy_check import OutputGate, Seen

SHAPE = (3, 40, 70)


@pytest.fixture
def small(monkeypatch):
    """Of 70 columns 4 are sampled, and 7 sums take their place; 3 sums take that of 40 rows."""
    for name, value in {"MOST_WHOLE": 1000, "NUM_SUMS": 840, "NUM_SAMPLED": 480}.items():
        monkeypatch.setattr(sketch, name, value)


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "float64", "complex64", "int32", "uint8", "bool"])
def test_a_framework_makes_the_same_of_a_tensor_where_it_lies(small, dtype):
    """As NumPy does of its copy, to the last bit: a reference of one is compared with what the other makes."""
    import torch

    backend, kind = load_backend("torch"), getattr(torch, dtype)
    tensor = torch.randn(SHAPE, generator=torch.Generator().manual_seed(0)).mul(100).to(kind)
    if kind.is_floating_point:
        tensor[0, 3, 60], tensor[1, 1, 1], tensor[2, 2, 2] = float("inf"), -float("inf"), float("nan")
    found, expected = backend.sketch(tensor), sketch.sketch_of(backend.to_array(tensor))
    assert found.keys() == expected.keys()
    assert (sketch.PLACES in found) == kind.is_floating_point
    for end, array in expected.items():
        np.testing.assert_array_equal(found[end], array)
        assert found[end].dtype == array.dtype
        assert array.size < tensor.numel() / 2


@pytest.mark.parametrize("shape", [(5000,), (2, 4, 300), SHAPE, (13, 13, 13), (2,) * 11])
def test_what_is_kept_is_small_whatever_the_shape(small, shape):
    found = sketch.sketch_of(np.ones(shape, np.float32))
    assert all(array.ndim == len(shape) and array.size <= max(2 * 840, 2**11) for array in found.values())


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "int64", "bool"])
def test_any_changed_bit_of_a_large_tensor_shows(dtype):
    """And all signs at once, which cancel in sums of whole words; not where it lies, nor in which order."""
    import torch

    content = load_backend("torch").content
    tensor = torch.randn(1100, 1001, generator=torch.Generator().manual_seed(0)).mul(9).to(getattr(torch, dtype))
    before = content(tensor)
    octets = tensor.view(torch.uint8).view(-1)
    generator = np.random.default_rng(0)
    for place in (0, octets.numel() - 1, *generator.integers(0, octets.numel(), 6)):
        bit = 1 << int(generator.integers(8))
        octets[place] ^= bit
        assert content(tensor) != before
        octets[place] ^= bit
    assert content(tensor.clone()) == before
    assert content(tensor.T) == content(tensor.T.contiguous()) != before
    assert content(tensor.reshape(-1)[1:]) == content(tensor.reshape(-1)[1:].clone())
    assert content(~tensor if dtype == "bool" else -tensor) != before


def gate(authors=None):
    return OutputGate("model", lambda _: None, authors)


def test_a_reference_that_was_written_whole_is_still_compared(small):
    """Only what an author has a word of is kept whole."""
    array = np.random.default_rng(0).standard_normal(SHAPE, np.float32)
    whole = Seen([Observed([Part("output", "float32", array)])], [Part("state", "float32", array)])
    read = gate().unpacked(gate().packed(whole))
    kept = Part("output", "float32", array).kept()
    assert [part.name for part in read.calls[0].parts] == [part.name for part in kept]
    now = Seen([Observed(kept)], Part("state", "float32", array).kept())
    assert gate().errors(read, now, 1e-3) == (0.0,) * len(kept)
    again = gate().unpacked(gate().packed(now))
    assert [part.name for part in again.calls[0].parts] == [part.name for part in kept]
    word = gate(AuthorsWord.of({"output": 0.1}))
    assert [part.name for part in word.unpacked(word.packed(whole)).calls[0].parts] == ["output"]
