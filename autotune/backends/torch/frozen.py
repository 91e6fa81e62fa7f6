"""Frozen code: compiled with the weights as constants, and right only for as long as the weights are those.

What is compared at each call, for each constant: PyTorch's own count of writes (`load_state_dict`, optimizers,
`copy_` and all in-place operators), the address (`.to()`, `.data = ...`), and two elements, which tell of writes that
nobody counts (`.data`, NumPy, fused optimizers). Steps of an optimizer are reported by PyTorch. In case all of that
misses one, a small part of the weights is read again at each call, another part each time.

The types of what the model is given are looked at as well: frozen code calls oneDNN's fused operators, some of which
take types that the model refuses (measured, 2.13).
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from autotune.backends.torch.containers import tensors_in
from autotune.errors import InvalidConfigError, UnsuitableCallError

_PART_BYTES = 8192
"""Of the weights, read again at each call: some 5 microseconds."""
_WORDS: dict[int, Any] = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}
_writes = attrgetter("_version")
_value = attrgetter("value")
_address = torch.Tensor.data_ptr


@dataclass(frozen=True)
class _Constants:
    """What the weights were when they were compiled in, in lists, so that they compare at once."""

    owners: list[torch.Tensor]
    """The weights. All else is of the tensors that hold their data, which a quantised weight has several of."""
    tensors: list[torch.Tensor]
    writes: list[int]
    addresses: list[int]
    words: list[Any]
    values: list[int]
    parts: list[tuple[Any, int]]
    memory: list[torch.Tensor]
    """Keeps what is read mapped, should a thread give a weight other memory meanwhile."""

    def differ(self) -> bool:
        """The order matters: memory is read where it still is."""
        return (
            [*map(_writes, self.tensors)] != self.writes
            or [*map(_address, self.tensors)] != self.addresses
            or [*map(_value, self.words)] != self.values
        )


class FrozenWeights:
    """The constants of some frozen code."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._constants = _Constants([], [], [], [], [], [], [], [])
        self._next_part: Iterator[tuple[Any, int]] = iter(())
        self._is_stepped = False

    def add(self, tensors: Iterable[torch.Tensor]) -> None:
        """These become constants now. Raises InvalidConfigError for tensors that cannot be watched."""
        with self._lock:
            known = {id(each) for each in self._constants.owners}
            owners = [each for each in tensors if id(each) not in known]
            new = [held for each in owners for held in _holding(each)]
            if any(each.is_floating_point() and bool(each.isnan().any()) for each in new):
                raise InvalidConfigError("knob freezing: a weight holds NaN, which frozen code may turn into a number")
            then = self._constants
            words = [word for each in new for word in _sampled(each)]
            parts = [part for each in new for part in _parts(each)]
            self._constants = _Constants(
                then.owners + owners,
                then.tensors + new,
                then.writes + [_count_of_writes(each) for each in new],
                then.addresses + [each.data_ptr() for each in new],
                then.words + words,
                then.values + [word.value for word in words],
                then.parts + parts,
                then.memory + [each.detach() for each in new],
            )
            self._next_part = itertools.cycle(self._constants.parts)
        _watch_optimizers(self)

    @property
    def tensors(self) -> list[torch.Tensor]:
        return self._constants.owners

    def note_step(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer has just changed its parameters."""
        trained = {id(each) for group in optimizer.param_groups for each in group["params"]}
        if any(id(each) in trained for each in self._constants.owners):
            self._is_stepped = True

    def have_changed(self) -> bool:
        """Whether any constant is no longer what was compiled in."""
        if self._is_stepped or self._constants.differ():
            return True
        part = next(self._next_part, None)
        return part is not None and zlib.crc32(part[0]) != part[1]


class FrozenStep:
    """Calls of frozen code. Raises UnsuitableCallError, before anything runs, where it would answer wrongly.

    It stands inside of a `CompiledStep`, which lets no inputs pass that require gradients.
    """

    def __init__(self, model: torch.nn.Module, step: Callable[..., Any], weights: FrozenWeights) -> None:
        self._model = model
        self._step = step
        self._weights = weights
        self._dtypes: set[torch.dtype] | None = None
        """Of the first call's inputs."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._model.training:
            raise UnsuitableCallError("the model is in training mode, and its weights are constants of the tuned code")
        if self._weights.have_changed():
            raise UnsuitableCallError(
                "the model's weights changed after they had become constants of the tuned code",
                tip="apply the config again once the weights are final",
                lasting=True,
            )
        records = torch.is_grad_enabled()
        if records and self._wants_gradients():
            raise UnsuitableCallError(
                "the call records gradients, and the weights are constants of the tuned code",
                tip="call the model under torch.no_grad() or torch.inference_mode()",
            )
        if forward_ad._current_level >= 0:
            raise UnsuitableCallError("the call is under forward-mode differentiation, which frozen code does not do")
        inputs = tensors_in((*args, *kwargs.values()))
        self._require_known_types(inputs)
        with torch.no_grad() if records else nullcontext():
            result = self._step(*args, **kwargs)
        if self._dtypes is None:
            self._dtypes = {each.dtype for each in inputs}
        return result

    def _require_known_types(self, inputs: list[torch.Tensor]) -> None:
        if self._dtypes is None:
            return
        for each in inputs:
            if each.dtype not in self._dtypes:
                raise UnsuitableCallError(
                    f"an input is of type {each.dtype}, which no input of the first call was, and frozen code may take "
                    "types that the model refuses"
                )

    def _wants_gradients(self) -> bool:
        # The weights of a plain function are no parameters of its model.
        return any(each.requires_grad for each in itertools.chain(self._model.parameters(), self._weights.tensors))


def _holding(weight: torch.Tensor) -> list[torch.Tensor]:
    """The tensors with memory of their own: the weight itself, or those in it, as torchao's weights in 8 bits have."""
    if not is_traceable_wrapper_subclass(weight):
        return [weight]
    names, _ = weight.__tensor_flatten__()
    return [held for name in names for held in _holding(getattr(weight, name))]


def _count_of_writes(tensor: torch.Tensor) -> int:
    if tensor.is_inference():
        raise InvalidConfigError(
            "knob freezing: the model's weights are inference tensors, whose changes PyTorch does not count",
            tip="build the model outside of torch.inference_mode()",
        )
    return tensor._version


def _sampled(tensor: torch.Tensor) -> list[Any]:
    """The first element and one in the middle, as they lie in a CPU's memory."""
    if tensor.device.type != "cpu":
        raise InvalidConfigError("knob freezing: only a CPU's memory can be watched for weights that change")
    word = _WORDS.get(min(tensor.element_size(), 8))
    if tensor.numel() == 0 or word is None:
        return []
    middle = sum((size // 2) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    offsets = dict.fromkeys([0, middle * tensor.element_size()])
    return [word.from_address(tensor.data_ptr() + offset) for offset in offsets]


def _parts(tensor: torch.Tensor) -> Iterator[tuple[Any, int]]:
    """The tensor's bytes in small parts, each with its checksum, from the first element to the last in memory."""
    if tensor.numel() == 0:
        return
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    num_bytes = (last + 1) * tensor.element_size()
    whole = memoryview((ctypes.c_char * num_bytes).from_address(tensor.data_ptr()))
    for start in range(0, num_bytes, _PART_BYTES):
        part = whole[start : start + _PART_BYTES]
        yield part, zlib.crc32(part)


_WATCHED: weakref.WeakSet[FrozenWeights] = weakref.WeakSet()
_registered = threading.Lock()


def _watch_optimizers(weights: FrozenWeights) -> None:
    """Fused optimizers write without being counted (2.13)."""
    _WATCHED.add(weights)
    if _registered.acquire(blocking=False):  # Once in a process, and never given back.
        register_optimizer_step_post_hook(_note_step)


def _note_step(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for weights in list(_WATCHED):
        weights.note_step(optimizer)
