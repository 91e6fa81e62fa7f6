"""Tensors of PyTorch as arrays, and others like them: whatever a model takes, in type, layout and place in memory."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from autotune.backends.torch import tensors  # noqa: E402
from autotune.backends.torch.backend import TorchBackend  # noqa: E402
from autotune.measure.measurement import RAGGED  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


class Tagged(torch.Tensor):
    """With an attribute, as pictures have their format."""


def tagged() -> Any:
    value = torch.randn(4, 3).as_subclass(Tagged)
    value.kind = "XYXY"
    return value


def quantised() -> Any:
    with warnings.catch_warnings(action="ignore"):
        return torch.quantize_per_tensor(torch.randn(3, 3), 0.05, 128, torch.quint8)


def per_channel() -> Any:
    with warnings.catch_warnings(action="ignore"):
        scales, points = torch.tensor([0.1, 0.2, 0.3]), torch.zeros(3).long()
        return torch.quantize_per_channel(torch.randn(3, 3), scales, points, 0, torch.qint8)


def nested(**settings: Any) -> Any:
    return torch.nested.nested_tensor([torch.randn(n, 4) for n in (5, 9, 3)], **settings)


def eye() -> Any:
    return torch.eye(4) * torch.arange(1.0, 5)


TENSORS: dict[str, Callable[[], Any]] = {
    "no dimension": lambda: torch.tensor(0.3),
    "a whole number": lambda: torch.tensor(37),
    "flags": lambda: torch.tensor([True, False]),
    "empty": lambda: torch.randn(0, 3),
    "channels last": lambda: torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last),
    "expanded": lambda: torch.randn(4, 1).expand(4, 5),
    "expanded batch": lambda: torch.randn(1, 5).expand(4, 5),
    "transposed": lambda: torch.randn(3, 4).T,
    "every other": lambda: torch.randn(4, 8)[:, ::2],
    "windows": lambda: torch.arange(10.0).unfold(0, 3, 1),
    "with gradients": lambda: torch.randn(3, requires_grad=True),
    "a parameter": lambda: torch.nn.Parameter(torch.randn(2, 2)),
    "a fixed parameter": lambda: torch.nn.Parameter(torch.randn(2, 2), requires_grad=False),
    "a subclass": tagged,
    "bfloat16": lambda: torch.randn(3).bfloat16(),
    "float8_e4m3fn": lambda: torch.randn(3, 3).to(torch.float8_e4m3fn),
    "float8_e5m2": lambda: torch.randn(3, 3).to(torch.float8_e5m2),
    "uint16": lambda: torch.arange(3).to(torch.uint16),
    "bytes of no number": lambda: torch.zeros(2, dtype=torch.uint8).view(torch.bits8),
    "complex": lambda: torch.randn(3, dtype=torch.complex64),
    "complex32": lambda: torch.randn(3, dtype=torch.complex32),
    "conjugate": lambda: torch.randn(3, 2, dtype=torch.complex64).conj(),
    "quantised": quantised,
    "quantised by channel": per_channel,
    "sparse_coo": lambda: eye().to_sparse(),
    "sparse_csr": lambda: eye().to_sparse_csr(),
    "sparse_csc": lambda: eye().to_sparse_csc(),
    "sparse_bsr": lambda: eye().to_sparse_bsr((2, 2)),
    "sparse with gradients": lambda: eye().to_sparse_csr().requires_grad_(),
    "jagged": lambda: nested(layout=torch.jagged),
    "jagged with gradients": lambda: nested(layout=torch.jagged, requires_grad=True),
    "nested": nested,
}


def form(value: Any) -> tuple[Any, ...]:
    """What a compiler guards, but for the numbers."""
    is_plain = not value.is_nested and value.layout is torch.strided
    strides = (value.stride(), value.is_conj()) if is_plain else None
    kept = {} if value.is_nested else vars(value)
    return type(value), value.dtype, value.layout, tensors.shape_of(value), strides, value.requires_grad, kept


@pytest.mark.parametrize("name", TENSORS)
def test_a_tensor_can_be_made_again(name: str) -> None:
    """From its array, with equal numbers and in the same form."""
    value = TENSORS[name]()
    array = tensors.array_of(value)
    made = tensors.tensor_like(np.array(array), value)
    assert made is not value
    assert form(made) == form(value)
    assert np.array_equal(tensors.array_of(made), array)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64])
def test_another_device_by_default_changes_nothing(dtype: torch.dtype) -> None:
    """As under `torch.set_default_device("cuda")`, which models of a GPU are written for."""
    value = torch.ones(2, 3).to(dtype)
    with torch.device("meta"):
        array = tensors.array_of(value)
        again = tensors.tensor_like(array, value)
    assert array.dtype == value.numpy().dtype
    assert torch.equal(again, value)


@pytest.mark.parametrize("name", [name for name in TENSORS if name.startswith("sparse")])
def test_a_large_sparse_tensor_is_not_made_dense(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entries are listed, and take other values in their places."""
    monkeypatch.setattr(tensors, "MOST_DENSE", 1)
    value = TENSORS[name]()
    array = tensors.array_of(value)
    assert array.shape[1] == 3
    array[:, 2:] *= 2
    made = tensors.tensor_like(array, value)
    assert form(made) == form(value)
    assert torch.equal(made.detach().to_dense(), 2 * value.detach().to_dense())


def test_a_part_of_a_tensor_keeps_its_order_in_memory() -> None:
    """One of another size, as traffic has them, is dense and channels-last where the whole was."""
    whole = torch.randn(4, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    part = tensors.tensor_like(tensors.array_of(whole)[:2, :, :5], whole)
    assert part.shape == (2, 3, 5, 8)
    assert part.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(part, whole[:2, :, :5])


def test_the_ragged_dimension_is_described() -> None:
    """By a number that is no size; the others have theirs."""
    backend = TorchBackend()
    for value in (nested(), nested(layout=torch.jagged)):
        spec = backend.spec(value)
        assert spec is not None
        assert spec.shape == (3, RAGGED, 4)


def test_a_leaf_that_is_placed_stays_a_leaf() -> None:
    """A copy on another device would be a result of the first, and gradients would not stop there."""
    made = tensors.placed(torch.randn(3, requires_grad=True), torch.device("meta"))
    assert made.is_leaf
    assert made.requires_grad
    assert tensors.placed(value := torch.randn(2), torch.device("cpu")) is value
