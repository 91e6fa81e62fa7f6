"""PyTorch tensors as NumPy arrays and back (type, layout, strides, gradients), and where tensors lie in values."""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import fields
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.parameter import is_lazy

from autotune.errors import InputError
from autotune.measure.measurement import RAGGED
from autotune.measure.sketch import is_large, sketch_of
from autotune.nesting import has_fields

_FLOATS_OF_NUMPY = (torch.float16, torch.float32, torch.float64)
_REDUCED = frozenset({torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
_WHOLE = _REDUCED | {torch.uint16, torch.uint32, torch.uint64}
_BLOCKED = (torch.sparse_bsr, torch.sparse_bsc)
_MKLDNN: torch.layout = torch._mkldnn  # type: ignore[attr-defined]
_ADDS_WIDE = ("cpu", "cuda")
"""Devices that add up numbers of 64 bits."""
_MOST_COPIED = 1 << 20
"""Bytes of a tensor that are looked at on the host."""
_ROW, _ROWS_AT_ONCE, _SEED = 1 << 15, 16, 64
_ELEMENTS_AT_ONCE = 1 << 22
MOST_DENSE = 1 << 24
"""Elements up to which a sparse tensor is looked at as a dense one: an adjacency of 100,000 nodes would take 40 GB."""


def array_of(value: torch.Tensor) -> NDArray[Any]:
    """Its elements, which may share the tensor's memory.

    Floats that NumPy lacks come as float32, quantised tensors as the numbers that they stand for, types that cannot be
    converted as bytes. A sparse tensor comes dense, one of more than `MOST_DENSE` elements as rows of indices and
    value; a nested one as its rows, one after the other.
    """
    strided = _strided(value.detach()).resolve_conj().resolve_neg().cpu()
    array: NDArray[Any] = _known_to_numpy(strided).numpy()
    return array


def large_sketch(value: Any) -> Mapping[str, NDArray[Any]] | None:
    """See `SketchOnDevice`. On an accelerator of which it is not known that it adds numbers of 64 bits, and for what is
    not strided, the host makes it of a copy."""
    if (
        not isinstance(value, torch.Tensor)
        or value.layout is not torch.strided
        or value.is_nested
        or value.is_quantized
    ):
        return None
    if not is_large(value.numel()) or value.device.type not in _ADDS_WIDE:
        return None
    with torch.no_grad():
        return sketch_of(value.detach().resolve_conj().resolve_neg(), _Pieces())


class _Pieces:
    """See `measure.sketch.Pieces`."""

    def numbers(self, piece: torch.Tensor) -> torch.Tensor:
        known = _known_to_numpy(piece)
        if known.is_complex():
            return known.to(torch.complex128)
        return known.to(torch.float64 if known.is_floating_point() else torch.int64)

    def finite(self, numbers: torch.Tensor) -> torch.Tensor:
        return torch.where(numbers.isinf(), torch.zeros((), dtype=numbers.dtype, device=numbers.device), numbers)

    def infinite(self, numbers: torch.Tensor) -> torch.Tensor:
        return numbers.isinf().long() * (1 + (numbers.real < 0).long())

    def array(self, numbers: torch.Tensor) -> NDArray[Any]:
        return array_of(numbers)


def sum_of_squares(value: torch.Tensor, copy: torch.Tensor | None = None) -> float:
    """The sum over a tensor's elements, or over what they differ by from a copy: in 64 bits, some millions at once, and
    on the host only where the device may not add up such numbers."""
    is_plain = value.layout is torch.strided
    plain = value.detach() if is_plain else value.detach().to_sparse_coo().coalesce().values()  # type: ignore[no-untyped-call]
    pieces = [plain.flatten()] if copy is None else [plain.flatten(), copy.flatten()]
    total = 0.0
    with torch.no_grad():
        for own, *other in zip(*(piece.split(_ELEMENTS_AT_ONCE) for piece in pieces), strict=True):
            off = _wide(own) - _wide(other[0]) if other else _wide(own)
            total += float(off.abs().square().sum())
    return total


def _wide(values: torch.Tensor) -> torch.Tensor:
    there = values if values.device.type in _ADDS_WIDE else values.cpu()
    return there.to(torch.complex128 if there.is_complex() else torch.float64)


def content_of(value: Any, *, reads_weights: bool = False) -> Hashable | None:
    """See `Backend.content`; None for what is no plain tensor. A parameter is read only if that is asked for, since
    there may be gigabytes of them."""
    if isinstance(value, torch.Generator):
        return bytes(value.get_state().tolist())
    writes = writes_of(value) if isinstance(value, torch.nn.Parameter) and not reads_weights else None
    return _bits_of(value) if writes is None and isinstance(value, torch.Tensor) else writes


def _bits_of(value: torch.Tensor) -> Hashable | None:
    """Another value once a bit of the tensor was changed, but for a chance of 2**-32. None for what is no plain tensor.

    A large tensor is summed up where it lies, so that a cache of gigabytes is not brought to the host: its words of 32
    bits by fixed random factors of 64 bits, modulo 2**64 and in rows. These sums are what is compared.
    """
    if value.layout is not torch.strided or value.is_quantized or value.is_nested or value.is_meta:
        return None
    plain = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    known = tuple(value.shape), str(value.dtype)
    octets = plain.view(torch.uint8)
    num_summed = octets.numel() // (4 * _ROW) * (4 * _ROW)
    if octets.numel() <= _MOST_COPIED or value.device.type not in _ADDS_WIDE:
        return *known, zlib.crc32(octets.cpu().numpy().data)
    if octets.data_ptr() % 4:
        octets = octets.clone()
    rows = octets[:num_summed].view(torch.int32).view(-1, _ROW)
    factors = _factors(str(value.device))
    sums = [(some.long() * factors).sum(1) for some in torch.split(rows, _ROWS_AT_ONCE)]
    return *known, torch.cat(sums).cpu().numpy().tobytes(), zlib.crc32(octets[num_summed:].cpu().numpy().data)


@cache
def _factors(device: str) -> torch.Tensor:
    drawn = np.random.default_rng(_SEED).integers(-(2**63), 2**63, _ROW, dtype=np.int64)
    return torch.from_numpy(drawn).to(device)


def tensor_like(array: NDArray[Any], original: torch.Tensor) -> torch.Tensor:
    """A tensor of what `array_of` gives for one like `original`: in type, layout, strides, device, class and whether
    it requires gradients."""
    values = torch.from_numpy(np.asarray(array, order="C"))
    with torch.no_grad():
        made = _of_kind(values, original.detach())
    if type(original) is not torch.Tensor and not original.is_nested:
        made = made.as_subclass(type(original))
    if not original.is_nested:
        vars(made).update(vars(original))  # What a subclass keeps, and marks such as `mark_dynamic`.
    return made.requires_grad_(original.requires_grad)


def placed(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    """On the device. A leaf that requires gradients stays one: a copy would be a result of the first."""
    if value.requires_grad and value.is_leaf and value.device != device:
        return value.detach().to(device).requires_grad_()
    return value.to(device)


def extremes_of(value: Any, axis: int | None) -> Sequence[tuple[int, int]] | None:
    """See `Backend.extremes`."""
    if not isinstance(value, torch.Tensor):
        is_whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not isinstance(value, np.ndarray):
            return ((int(value), int(value)),) if is_whole else None
        if value.dtype.kind not in "iu":
            return None
        value = torch.from_numpy(value)
    if value.dtype not in _WHOLE or not value.is_cpu or value.layout is not torch.strided or not value.numel():
        return None
    known = value if value.dtype in _REDUCED else torch.from_numpy(value.numpy().astype(np.int64))
    if axis is None:
        smallest, largest = torch.aminmax(known)
        return ((int(smallest.item()), int(largest.item())),)
    smallest, largest = torch.aminmax(known.movedim(axis, 0).reshape(known.shape[axis], -1), dim=1)
    return list(zip(smallest.tolist(), largest.tolist(), strict=True))


def shape_of(value: torch.Tensor) -> tuple[int, ...]:
    """Its shape, with `RAGGED` for what has no one size in a nested tensor."""
    if not value.is_nested:
        return tuple(value.shape)
    if value.layout is torch.jagged:
        return tuple(size if isinstance(size, int) else RAGGED for size in value.shape)
    columns = value._nested_tensor_size().unbind(1)
    return (value.size(0), *(int(column[0]) if len(set(column.tolist())) == 1 else RAGGED for column in columns))


def require_shape(value: torch.Tensor) -> None:
    """Raises InputError for a tensor without a shape, by which it could be described and compared."""
    if is_lazy(value):
        raise InputError(
            "a parameter has no shape before the model's first call (a lazy module, such as torch.nn.LazyLinear)",
            tip="call the model once before apply(), or in the function that builds it",
        )


def writes_of(weight: torch.nn.Parameter) -> Hashable | None:
    """Another value once it was written to, or lies elsewhere; None where PyTorch does not count. Two elements tell of
    writes to all of it that are not counted (`.data.copy_`)."""
    if weight.is_inference() or weight.layout is not torch.strided:
        return None
    if type(weight) is not torch.nn.Parameter:
        return id(weight), weight._version
    return id(weight), weight._version, weight.data_ptr(), _sampled(weight.detach())


def _sampled(tensor: torch.Tensor) -> tuple[str, ...]:
    """The first element and one in the middle, as texts: NaN is as it was."""
    if tensor.numel() == 0 or tensor.is_meta:
        return ()
    places = dict.fromkeys([(0,) * tensor.dim(), tuple(size // 2 for size in tensor.shape)])
    with suppress(RuntimeError, TypeError):
        return tuple(str(tensor[place].item()) for place in places)
    return ()


def _strided(value: torch.Tensor) -> torch.Tensor:
    """Its numbers in a plain tensor."""
    if value.is_nested:
        return value.values()
    if value.is_quantized:
        return value.dequantize()
    if value.layout is torch.strided:
        return value
    if value.numel() <= MOST_DENSE or value.layout is _MKLDNN:
        return value.to_dense()
    entries = value.to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
    numbers = entries.values().reshape(entries.values().shape[0], -1)
    return torch.cat([entries.indices().T.to(torch.float64), numbers.to(torch.float64)], dim=1)


def _known_to_numpy(value: torch.Tensor) -> torch.Tensor:
    if value.dtype is torch.complex32:
        return value.to(torch.complex64)
    if value.dtype.is_floating_point and value.dtype not in _FLOATS_OF_NUMPY:
        return _converted(value, torch.float32)
    return value if _has_numpy_type(value.dtype) else value.view(torch.uint8)


def _has_numpy_type(dtype: torch.dtype) -> bool:
    try:
        torch.empty(0, dtype=dtype, device="cpu").numpy()  # A job may have another device by default.
    except TypeError:
        return False
    return True


def _converted(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """In another type; the same bytes where PyTorch has no conversion, as for packed 4-bit numbers."""
    try:
        return value.to(dtype)
    except (RuntimeError, NotImplementedError):
        return value.view(torch.uint8 if value.dtype is not torch.uint8 else dtype)


def _of_kind(values: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    device = original.device
    if original.is_nested:
        return _nested(values.to(original.dtype).to(device), original)
    if original.is_quantized:
        return _quantised(values.to(device), original)
    if original.layout is torch.strided:
        return _strided_like(_converted(values, original.dtype).to(device), original)
    return _sparse(values.to(device), original).to(original.dtype)


def _strided_like(values: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    """With the original's strides: an expanded dimension stays one. Of another shape, dense and in the same order of
    dimensions: channels-last stays so."""
    if values.shape != original.shape:
        order = sorted(range(values.dim()), key=original.stride().__getitem__, reverse=True)
        return values.permute(order).contiguous().permute([order.index(axis) for axis in range(len(order))])
    if original.is_conj():
        return _strided_like(values.conj().resolve_conj(), original.conj()).conj()
    strides = list(zip(original.shape, original.stride(), strict=True))
    single = [slice(0, 1) if stride == 0 else slice(None) for _, stride in strides]
    sizes = [1 if stride == 0 and size > 1 else size for size, stride in strides]
    made = torch.empty_strided(sizes, original.stride(), dtype=original.dtype, device=original.device)
    try:
        made.copy_(values[tuple(single)])
    except RuntimeError:  # Elements that share memory otherwise, such as windows made by `unfold`.
        return values
    return made.expand(original.shape)


def _sparse(values: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    if original.layout is _MKLDNN:
        return values.to_mkldnn()
    blocks = original.values().shape[1:3] if original.layout in _BLOCKED else None
    if values.shape == original.shape:
        return values.to_sparse(layout=original.layout, blocksize=blocks)
    entries = original.to_sparse_coo().coalesce()  # type: ignore[no-untyped-call]
    indices = entries.indices().shape[0]
    numbers = values[:, indices:].reshape(entries.values().shape)
    made = torch.sparse_coo_tensor(entries.indices(), numbers, original.shape, is_coalesced=True)
    return made if original.layout is torch.sparse_coo else made.to_sparse(layout=original.layout, blocksize=blocks)


def _quantised(values: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    if original.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return torch.quantize_per_tensor(values, original.q_scale(), original.q_zero_point(), original.dtype)
    scales, zero_points = original.q_per_channel_scales(), original.q_per_channel_zero_points()
    return torch.quantize_per_channel(values, scales, zero_points, original.q_per_channel_axis(), original.dtype)


def _nested(values: torch.Tensor, original: Any) -> torch.Tensor:
    if original.layout is torch.jagged:
        return torch.nested.nested_tensor_from_jagged(
            values,
            original.offsets(),
            original.lengths(),
            jagged_dim=original._ragged_idx,
            min_seqlen=getattr(original, "_maybe_min_seqlen", None),
            max_seqlen=getattr(original, "_maybe_max_seqlen", None),
        )
    return torch._nested_view_from_buffer(
        values,
        original._nested_tensor_size(),
        original._nested_tensor_strides(),
        original._nested_tensor_storage_offsets(),
    )


def device_of(model: torch.nn.Module) -> torch.device:
    """Where a model's first tensor is."""
    tensor = next(iter([*model.parameters(), *model.buffers()]), None)
    return torch.device("cpu") if tensor is None else tensor.device


# What containers and plain objects hold: where the tensors of a call's inputs and outputs lie.

DEEPEST = 6
"""Objects within each other that are looked into, such as the layers of a cache of keys and values."""
_PLAIN = frozenset({bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device})


def tensors_in(values: Iterable[Any]) -> list[torch.Tensor]:
    """Those among a call's inputs, also in tuples, lists, mappings, dataclasses and attributes of plain objects. What
    can be called, such as a module, is not looked into. Quick: it is asked at each call."""
    found: list[torch.Tensor] = []
    objects: list[Any] = []
    _collect(values, found, objects)
    if not objects:
        return found
    seen: dict[int, Any] = {}
    for _ in range(DEEPEST):
        new = {id(value): value for value in objects if id(value) not in seen}
        seen |= new
        objects = []
        for value in new.values():
            _collect(_parts(value), found, objects)
    return found


def entries(value: Any) -> list[tuple[Any, Any]] | None:
    """What a container or a plain object holds, by key, place or name; None for what is neither."""
    if isinstance(value, MutableMapping):
        return list(value.items())
    if isinstance(value, list):
        return list(enumerate(value))
    if callable(value):
        return None
    if hasattr(value, "__dict__"):
        return list(vars(value).items())
    return [(member.name, getattr(value, member.name)) for member in fields(value)] if has_fields(value) else None


def _collect(values: Iterable[Any], found: list[torch.Tensor], objects: list[Any]) -> None:
    """Put each tensor into `found`, and what may hold more of them into `objects`."""
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, dict):
            _collect(value.values(), found, objects)
        elif isinstance(value, (tuple, list)):
            _collect(value, found, objects)
        elif type(value) not in _PLAIN:
            objects.append(value)


def _parts(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, Mapping) else [part for _, part in entries(value) or ()]
