"""Frozen code: compiled with the weights as constants, and right only for as long as the weights are those.

What is compared at each call, for each constant: PyTorch's own count of writes (`load_state_dict`, optimizers,
`copy_` and all in-place operators), the address (`.to()`, `.data = ...`), and two elements, which tell of writes that
nobody counts (`.data`, NumPy, fused optimizers). Steps of an optimizer are reported by PyTorch. In case all of that
misses one, a part of the weights is read again at each call, another part each time, so that all are within 1,000.
Weights of the same values at another address are the same: a model that is given to another process moves to shared
memory.

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
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils.weak import WeakIdRef

from autotune.backends.torch.given_model import has_modes
from autotune.backends.torch.tensors import tensors_in
from autotune.errors import InvalidConfigError, UnsuitableCallError

_NUM_CALLS = 1000
"""Calls in which all weights are read again. A thousandth of 1 GiB takes some 0.15 ms to read; a call that uses all of
it takes 50 ms and more (one core)."""
_PART_BYTES = 8192
"""Bytes of the weights that are read again at each call at least: some 2 microseconds."""
_WORDS: dict[int, Any] = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}
_writes = attrgetter("_version")
_value = attrgetter("value")
_address = torch.Tensor.data_ptr


@dataclass(frozen=True)
class _Constant:
    """What a tensor with memory of its own was when it was compiled in."""

    tensor: torch.Tensor
    writes: int
    address: int
    order: object
    """How its elements lie in memory."""
    words: list[Any]
    values: list[int]
    parts: list[tuple[Any, int]]
    memory: torch.Tensor
    """Keeps what is read mapped, should a thread give a weight other memory meanwhile. A view of the tensor would keep
    the job from swapping it."""

    @classmethod
    def of(cls, tensor: torch.Tensor, part_bytes: int) -> _Constant:
        writes, words = _count_of_writes(tensor), _sampled(tensor)
        order = (tensor.dtype, tensor.shape, tensor.stride())
        parts = list(_parts(tensor, part_bytes))
        return cls(tensor, writes, tensor.data_ptr(), order, words, [*map(_value, words)], parts, memory=tensor.data)

    def moved(self) -> _Constant | None:
        """The constant as the tensor lies now; None if it has other values there."""
        now = _Constant.of(self.tensor, max((len(part) for part, _ in self.parts), default=_PART_BYTES))
        same = now.order == self.order and [crc for _, crc in now.parts] == [crc for _, crc in self.parts]
        return now if same else None


class FrozenWeights:
    """The constants of some frozen code."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owners: list[torch.Tensor] = []
        """The weights. All else is of the tensors that hold their data, which a quantised weight has several of."""
        self._constants: list[_Constant] = []
        self._is_stepped = False
        self.are_new = False
        """Some were added since `settle`."""
        self._remember([])

    def add(self, tensors: Iterable[torch.Tensor]) -> None:
        """These become constants now. Raises InvalidConfigError for tensors that cannot be watched."""
        with self._lock:
            known = {id(owner) for owner in self._owners}
            owners = [tensor for tensor in tensors if id(tensor) not in known]
            new = [held for owner in owners for held in _holding(owner)]
            if any(held.is_floating_point() and held.isnan().any() for held in new):
                raise InvalidConfigError("knob freezing: a weight holds NaN, which frozen code may turn into a number")
            part_bytes = max(_PART_BYTES, sum(tensor.numel() * tensor.element_size() for tensor in new) // _NUM_CALLS)
            self._remember([*self._constants, *(_Constant.of(tensor, part_bytes) for tensor in new)])
            self._owners += owners
            self.are_new = True
        _watch_optimizers(self)

    def _remember(self, constants: list[_Constant]) -> None:
        """In lists, so that they compare at once."""
        self._constants = constants
        self._tensors = [constant.tensor for constant in constants]
        self._writes = [constant.writes for constant in constants]
        self._addresses = [constant.address for constant in constants]
        self._words = [word for constant in constants for word in constant.words]
        self._values = [value for constant in constants for value in constant.values]
        parts = [part for constant in constants for part in constant.parts]
        self._next_parts, self._num_parts = itertools.cycle(parts), -(-len(parts) // _NUM_CALLS)

    @property
    def tensors(self) -> list[torch.Tensor]:
        return self._owners

    def settle(self) -> None:
        """After what compiles them: nothing but these lists is to keep the job from doing with its weights what it
        likes, such as swapping them."""
        with self._lock:
            self.are_new = False
            for owner in self._owners:
                _drop_weak_references(owner)

    def note_step(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer has just changed its parameters."""
        trained = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
        if any(id(owner) in trained for owner in self._owners):
            self._is_stepped = True

    def have_changed(self) -> bool:
        """Whether any constant is no longer what was compiled in. The order matters: memory is read where it still
        is."""
        if self._is_stepped or [*map(_writes, self._tensors)] != self._writes:
            return True
        if [*map(_address, self._tensors)] != self._addresses and not self._have_only_moved():
            return True
        if [*map(_value, self._words)] != self._values:
            return True
        return any(zlib.crc32(part) != crc for part, crc in itertools.islice(self._next_parts, self._num_parts))

    def _have_only_moved(self) -> bool:
        with self._lock:
            now = [held if held.tensor.data_ptr() == held.address else held.moved() for held in self._constants]
            same = [constant for constant in now if constant is not None]
            if len(same) < len(now):
                return False
            self._remember(same)
            return True


class FrozenStep:
    """Calls of frozen code. Raises UnsuitableCallError, before anything runs, where it would answer wrongly.

    It stands inside of a `CompiledStep`, which lets no inputs pass that require gradients.
    """

    def __init__(self, model: torch.nn.Module, step: Callable[..., Any], weights: FrozenWeights) -> None:
        self._model = model
        self._has_modes = has_modes(model)
        self._step: Callable[..., Any] = getattr(step, "unrecorded", step)
        self._weights = weights
        self._dtypes: set[torch.dtype] | None = None
        """Types of the first call's inputs."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._made(args, kwargs, tensors_in((*args, *kwargs.values())))

    def again(self, *args: Any, **kwargs: Any) -> Any:
        """A call whose inputs are of the types of the last one's: they are not looked at."""
        return self._made(args, kwargs, [])

    def _made(self, args: tuple[Any, ...], kwargs: dict[str, Any], inputs: list[torch.Tensor]) -> Any:
        if self._model.training and self._has_modes:
            raise UnsuitableCallError("the model is in training mode, and its weights are constants of the tuned code")
        if self._weights.have_changed():
            raise UnsuitableCallError(
                "the model's weights changed after they had become constants of the tuned code",
                tip="apply the config again once the weights are final",
                lasting=True,
            )
        records = torch.is_grad_enabled()
        if records:
            self._refuse_gradients()
        if forward_ad._current_level >= 0:
            raise UnsuitableCallError("the call is under forward-mode differentiation, which frozen code does not do")
        if self._dtypes is not None:
            self._refuse_other_types(inputs, self._dtypes)
        if records:
            with torch.no_grad():
                result = self._step(*args, **kwargs)
        else:
            result = self._step(*args, **kwargs)
        if self._weights.are_new:
            self._weights.settle()
            if records:
                self._refuse_gradients()
        if self._dtypes is None:
            self._dtypes = {tensor.dtype for tensor in inputs}
        return result

    def _refuse_other_types(self, inputs: list[torch.Tensor], dtypes: set[torch.dtype]) -> None:
        for tensor in inputs:
            if tensor.dtype not in dtypes:
                raise UnsuitableCallError(
                    f"an input is of type {tensor.dtype}, which no input of the first call was, and frozen code may "
                    "take types that the model refuses"
                )

    def _refuse_gradients(self) -> None:
        """A job's own look is at the parameters of its model. Weights that a plain function uses are none of them."""
        if any(weight.requires_grad for weight in self._weights.tensors):
            raise UnsuitableCallError(
                "the call records gradients, and the weights are constants of the tuned code",
                tip="call the model under torch.no_grad() or torch.inference_mode()",
            )


def _holding(weight: torch.Tensor) -> list[torch.Tensor]:
    """The tensors with memory of their own: the weight itself, or those in it, as torchao's weights in 8 bits have."""
    if not is_traceable_wrapper_subclass(weight):
        return [weight]
    names, _ = weight.__tensor_flatten__()
    return [held for name in names for held in _holding(getattr(weight, name))]


def _drop_weak_references(weight: torch.Tensor) -> None:
    """Those of PyTorch's compiler: its memory of which fake tensor stands for the weight, and a finalizer that is to
    tell that the weight is gone, which it is not for as long as its frozen code. `torch.utils.swap_tensors`, and
    conversions that swap, refuse a tensor that has any (2.13)."""
    for reference in weakref.getweakrefs(weight):
        callback: Any = reference.__callback__
        if isinstance(callback, weakref.finalize):
            _, function, *_ = callback.peek() or (None, None)
            if getattr(getattr(function, "func", None), "__module__", "").startswith("torch."):
                callback.detach()
        elif isinstance(reference, WeakIdRef) and callback is not None:
            callback(reference)


def takes_constant_weights(model: torch.nn.Module) -> bool:
    """Whether frozen code may serve the model as it stands: it is not in training mode, and each weight can be watched
    and is a number."""
    if model.training and has_modes(model):
        return False
    weights = [held for weight in (*model.parameters(), *model.buffers()) for held in _holding(weight)]
    return not any(held.is_inference() or _may_be_nan(held) for held in weights)


def _may_be_nan(tensor: torch.Tensor) -> bool:
    """Whether one may be among its numbers; of a layout or a type that PyTorch does not look through nobody knows."""
    try:
        return tensor.is_floating_point() and bool(tensor.isnan().any())
    except RuntimeError:
        return True


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


def _parts(tensor: torch.Tensor, part_bytes: int) -> Iterator[tuple[Any, int]]:
    """The tensor's bytes in small parts, each with its checksum, from the first element to the last in memory."""
    if tensor.numel() == 0:
        return
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    num_bytes = (last + 1) * tensor.element_size()
    whole = memoryview((ctypes.c_char * num_bytes).from_address(tensor.data_ptr()))
    for start in range(0, num_bytes, part_bytes):
        part = whole[start : start + part_bytes]
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
