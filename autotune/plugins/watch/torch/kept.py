"""What is kept of a model and its calls in the folder, as `autotune.tune(model, inputs)` keeps them."""

from __future__ import annotations

import hashlib
import inspect
import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from autotune.nesting import parts_of
from autotune.plugins.watch import saving
from autotune.plugins.watch.recorder import MOST_KEPT, Recorder, Seen
from autotune.plugins.watch.saving import NO_CALLS

if TYPE_CHECKING:
    from autotune.workload.arguments import Arguments

_MOST_PROMPT = 4096
_SET_BY_ACCELERATE = ("forward", "_original_forward", "_is_accelerate_prepared")


def seen_of(model: torch.nn.Module) -> Seen:
    """The record of a model that was met now."""
    inner, around = unwrapped(model)
    seen = Seen(type(inner).__name__, structure_of(inner))
    seen.model = weakref.ref(inner)
    if around:
        seen.extra["around"] = around
    seen.extra |= {"autocast": _autocast_within(inner), "ranks": num_ranks()}
    if "OptimizedModule" in around or getattr(inner, "_compiled_call_impl", None) is not None:
        seen.notes["the job compiles it already: what is tuned, and called untuned, is the uncompiled one"] = None
    return seen


def unwrapped(model: torch.nn.Module) -> tuple[torch.nn.Module, list[str]]:
    """The model within wrappers of the compiler and of distributed training, and their classes, the outermost first."""
    around: list[str] = []
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = model.module
        if inner is None:
            return model, around
        around.append(type(model).__name__)
        model = inner


def structure_of(model: torch.nn.Module) -> str:
    """A digest of the names, shapes and types of parameters and buffers: equal for models of one code."""
    digest = hashlib.sha256(type(model).__qualname__.encode())
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        shape = () if torch.nn.parameter.is_lazy(tensor) else tuple(tensor.shape)
        digest.update(f"{name} {shape} {tensor.dtype}\n".encode())
    return digest.hexdigest()[:12]


def autocast_of(model: torch.nn.Module) -> tuple[str, str] | None:
    """Device and type of the autocast that the call is made under, where one is on for the model's device."""
    tensor = next(model.parameters(), None)
    device = "cpu" if tensor is None else tensor.device.type
    if not torch.is_autocast_enabled(device):
        return None
    return device, str(torch.get_autocast_dtype(device)).removeprefix("torch.")


def _autocast_within(model: torch.nn.Module) -> tuple[str, str] | None:
    """As `autocast_of`, of a `forward` that somebody has set in the model, as accelerate does."""
    if "forward" not in vars(model):
        return None
    from autotune.backends.torch.training import autocast_of_forward

    dtype = autocast_of_forward(model)
    device = next((each.device.type for each in model.parameters()), "cpu")
    return None if dtype is None else (device, str(dtype).removeprefix("torch."))


def _without_autocast(model: torch.nn.Module) -> torch.nn.Module:
    """The model, or one of the same parts with the `forward` of its class where autocast is all that was put around
    that: what accelerate sets cannot be pickled."""
    if _autocast_within(model) is None:
        return model
    inner = inspect.unwrap(vars(model)["forward"])
    if getattr(inner, "__func__", inner) is not inspect.unwrap(type(model).forward):
        return model
    own: torch.nn.Module = object.__new__(type(model))
    vars(own).update({name: value for name, value in vars(model).items() if name not in _SET_BY_ACCELERATE})
    return own


def is_recorded(result: Any) -> bool:
    """Whether gradients may be taken of an output, looked for where outputs usually are."""
    parts = [("", result)] if isinstance(result, torch.Tensor) else parts_of(result) or ()
    return any(isinstance(each, torch.Tensor) and each.requires_grad for _, each in parts)


def tensor_bytes(leaf: Any) -> int | None:
    """See `ModelFiles`."""
    return leaf.numel() * leaf.element_size() if type(leaf) in (torch.Tensor, torch.nn.Parameter) else None


def copied(tensor: torch.Tensor) -> Any:
    """See `ModelFiles`."""
    return tensor.detach().to("cpu", copy=True)


def keep_text(seen: Seen, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> tuple[Any, ...]:
    """Keep a prompt and the length of its text. Returns what the call is counted by."""
    if not seen.is_text:
        seen.forget()  # Calls of the model within its first text.
        seen.is_text = True
        seen.kept.clear()
        seen.kept_bytes = 0
        seen.notes = {note: None for note in seen.notes if not note.startswith(NO_CALLS)}
        seen.extra["prompts"] = []
    found = text_of(args, kwargs, result)
    if found is None:
        seen.notes["prompts cannot be kept: they are no tensor of token ids"] = None
        return ((), False, False, None)
    prompts, new_tokens = found
    batch, length = prompts.shape
    kept: list[Any] = seen.extra["prompts"]
    if len(kept) < MOST_KEPT and length <= _MOST_PROMPT:
        kept.append({"ids": prompts[0].tolist(), "batch": batch, "new_tokens": new_tokens})
    return ((prompts.shape, prompts.dtype),), False, False, None


def text_of(args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> tuple[torch.Tensor, int] | None:
    """The prompts of a call of `generate`, and the number of new tokens of each; None: they are not told."""
    prompts = next(
        (each for each in (kwargs.get("input_ids"), kwargs.get("inputs"), *args[:1]) if each is not None), None
    )
    written = getattr(result, "sequences", result)
    if not isinstance(prompts, torch.Tensor) or not isinstance(written, torch.Tensor):
        return None
    return prompts, written.shape[-1] - prompts.shape[-1]


def save(recorder: Recorder, seen: Seen) -> None:
    """See `saving.save`."""
    saving.save(recorder, seen, sys.modules[__name__])


SUFFIX = CALLS_SUFFIX = ".pt"


def why_not(model: torch.nn.Module) -> str | None:
    """See `ModelFiles`."""
    tensors = [*model.parameters(), *model.buffers()]
    devices = sorted({str(tensor.device) for tensor in tensors})
    if len(devices) > 1 or "meta" in devices:
        return f"its weights are on {', '.join(devices)}"
    is_shared = any(type(tensor).__name__ == "DTensor" for tensor in tensors)
    return "each rank holds a part of its weights" if is_shared else None


def size_bytes(model: torch.nn.Module) -> int:
    """See `ModelFiles`."""
    return sum(tensor.numel() * tensor.element_size() for tensor in (*model.parameters(), *model.buffers()))


def write_model(model: torch.nn.Module, path: Path) -> Mapping[str, Sequence[str]]:
    """See `ModelFiles`."""
    from autotune.backends.torch import files

    return files.write_model(_without_autocast(model), None, path)


def write_calls(calls: Sequence[Arguments], path: Path) -> None:
    """See `ModelFiles`."""
    from autotune.backends.torch import files

    files.write(calls, path)


def describe_process() -> Mapping[str, Any]:
    """What of PyTorch's own holds for all calls of this process."""
    is_on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return {
        "framework": "torch",
        "release": torch.__version__.partition("+")[0],
        "threads": torch.get_num_threads(),
        "device": "gpu" if is_on_gpu else "cpu",
        "unrecorded": "make them under torch.no_grad()",
    }


def num_ranks() -> int:
    """The processes of the distributed job that this is one of, by its group or its launcher; 1: it is alone."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_world_size()
    text = os.environ.get("WORLD_SIZE", "")
    return int(text) if text.isdecimal() else 1
