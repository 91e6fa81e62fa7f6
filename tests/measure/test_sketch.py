"""What is kept of a large tensor in place of all of it, and how it is seen that one was changed."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from autotune.backends.outputs import Observed
from autotune.backends.registry import load_backend
from autotune.measure import sketch
from autotune.measure.agreement import rms_of
from autotune.measure.parts import AuthorsWord, Part
from autotune.trial.worker.accuracy_check import OutputGate, Seen, WrongResultError
from autotune.trial.worker.calls.step_gate import StepGate, StepsTaken

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


def test_gradients_that_were_written_whole_are_still_compared(small):
    """Without the names of what is kept of each; none is one without elements."""
    array = np.random.default_rng(0).standard_normal(SHAPE, np.float32)
    kept = [{part.name: part.array for part in Part("", "", array).kept()}, {}]
    now = StepsTaken(np.ones(5), kept, kept, np.ones(2), left=[])
    steps = StepGate("model")
    (heading, *left), figures, *_ = steps.packed(now)
    earlier = {name: value for name, value in json.loads(str(heading)).items() if name != "gradients"}
    whole = [array, np.zeros(0)]
    read = steps.unpacked([[np.asarray(json.dumps(earlier)), *left], figures, whole, whole])
    assert [list(each) for each in read.gradients] == [list(each) for each in kept]
    assert steps.errors(read, now, 1e-3) == (0, 0)
    with pytest.raises(WrongResultError, match="gradient 1 of 2"):
        steps.errors(read, replace(now, gradients=[{end: -each for end, each in kept[0].items()}, {}]), 1e-3)


@pytest.mark.torch
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "complex64"])
def test_a_framework_computes_the_same_of_a_weight_where_it_lies(monkeypatch, dtype):
    """How far it is from a copy, and its size, be it a sparse gradient: piece by piece, as NumPy does of all of it."""
    import torch

    from autotune.backends.torch import tensors, training

    monkeypatch.setattr(tensors, "_ELEMENTS_AT_ONCE", 100)
    one, other = torch.randn(2, 30, 20, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    arrays = [load_backend("torch").to_array(each).astype(np.complex128) for each in (one, other)]
    assert training.rms(one.T, other.T) == pytest.approx(rms_of(arrays[0] - arrays[1]))
    assert training.rms(one) == pytest.approx(rms_of(arrays[0]))
    assert training.rms(one.to_sparse()) == pytest.approx(rms_of(arrays[0]))
    assert training.rms(one[:0]) == 0
