"""What is kept of a model and its calls in the folder, as `autotune.tune(model, inputs)` keeps them."""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from autotune.nesting import leaves, with_leaves
from autotune.plugins.watch.recorder import MOST_KEPT, Recorder, Seen

_MOST_KEPT_BYTES = 64 << 20
"""Most room for the arguments of a model's calls."""
_MOST_PROMPT = 4096
_NO_CALLS = "calls cannot be kept"
_SAFE = (bool, int, float, str, type(None))


def seen_of(model: torch.nn.Module) -> Seen:
    """The record of a model that was met now."""
    inner, around = unwrapped(model)
    seen = Seen(type(inner).__name__, structure_of(inner))
    seen.model = weakref.ref(inner)
    if around:
        seen.extra["around"] = around
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


def is_recorded(result: Any) -> bool:
    """Whether gradients may be taken of an output, looked for where outputs usually are."""
    if isinstance(result, torch.Tensor):
        return result.requires_grad
    if isinstance(result, Mapping):
        result = tuple(result.values())
    return isinstance(result, (tuple, list)) and any(
        isinstance(each, torch.Tensor) and each.requires_grad for each in result
    )


def keep(recorder: Recorder, seen: Seen, key: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Copy the arguments of a call that is about to be made, if they are few and a safe file holds them."""
    del recorder
    room = _MOST_KEPT_BYTES - seen.extra.get("kept_bytes", 0)
    size = 0
    for path, leaf in leaves((args, kwargs)):
        if type(leaf) in (torch.Tensor, torch.nn.Parameter):
            size += leaf.numel() * leaf.element_size()
        elif not isinstance(leaf, _SAFE):
            what = f"{path.removeprefix('[0]').removeprefix('[1]')} is a {type(leaf).__name__}"
            seen.notes[f"{_NO_CALLS}: argument {what}; give a function that builds model and inputs"] = None
            return
    if size > room:
        seen.notes["some calls are not kept: their arguments take too much room"] = None
        return
    seen.extra["kept_bytes"] = seen.extra.get("kept_bytes", 0) + size
    seen.kept.append((key, with_leaves((args, kwargs), _copied)))


def _copied(leaf: Any) -> Any:
    return leaf.detach().to("cpu", copy=True) if isinstance(leaf, torch.Tensor) else leaf


def keep_text(seen: Seen, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> tuple[Any, ...]:
    """Keep a prompt and the length of its text. Returns what the call is counted by."""
    if not seen.is_text:
        seen.forget()  # Calls of the model within its first text.
        seen.is_text = True
        seen.kept.clear()
        seen.notes = {note: None for note in seen.notes if not note.startswith(_NO_CALLS)}
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
    """Write the model, once, and the calls that were kept since the last time."""
    model = seen.model()
    if model is not None and not seen.extra.get("is_tried"):
        seen.extra["is_tried"] = True
        _save_model(recorder, seen, model)
    if "model" in seen.files and len(seen.kept) > seen.extra.get("calls_written", 0):
        _save_calls(recorder, seen)


def _save_model(recorder: Recorder, seen: Seen, model: torch.nn.Module) -> None:
    from autotune.backends.torch.files import write_model
    from autotune.errors import InputError

    tensors = [*model.parameters(), *model.buffers()]
    devices = sorted({str(tensor.device) for tensor in tensors})
    size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    way_out = "give a function that builds model and inputs: autotune tune FILE.py:FUNCTION"
    if len(devices) > 1 or "meta" in devices:
        seen.notes[f"it cannot be kept: its weights are on {', '.join(devices)}; {way_out}"] = None
    elif any(type(tensor).__name__ == "DTensor" for tensor in tensors):
        seen.notes[f"it cannot be kept: each rank holds a part of its weights; {way_out}"] = None
    elif size > recorder.room_bytes():
        seen.notes[
            f"it cannot be kept: its weights take {size / 2**30:.1f} GiB; watch with more disk, or {way_out}"
        ] = None
    else:
        recorder.folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".saved_model.", dir=recorder.folder) as private:
            partial = Path(private, "model")
            try:
                needed = write_model(model, None, partial)
                source = _source_of(needed.get("__main__", ()))
            except InputError as problem:
                seen.notes[f"it cannot be kept: {problem}" + (f"; {problem.tip}" if problem.tip else "")] = None
                return
            name = f"{seen.name}_{_digest_of(partial)}"
            if source is not None:
                Path(private, "source").write_text(source)
                Path(private, "source").replace(recorder.folder / f"{name}_source.py")
                seen.files["source"] = f"{name}_source.py"
            partial.replace(recorder.folder / f"{name}.pt")
        seen.files["model"] = f"{name}.pt"


def _source_of(names: Any) -> str | None:
    """The text of the job's own classes, where its first file defines the model's. Raises InputError."""
    if not names:
        return None
    from autotune.api.function_source import source_of_classes

    main = vars(sys.modules["__main__"])
    return source_of_classes([main[name] for name in dict.fromkeys(names)]).text


def _save_calls(recorder: Recorder, seen: Seen) -> None:
    from autotune.backends.torch import files
    from autotune.workload.arguments import Arguments

    name = f"{Path(seen.files['model']).stem}-{os.getpid()}.calls.pt"
    files.write([Arguments(args, kwargs or None) for _, (args, kwargs) in seen.kept], recorder.folder / name)
    seen.files["calls"] = name
    seen.extra["calls_written"] = len(seen.kept)


def _digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:12]


def describe_process() -> Mapping[str, Any]:
    """What of PyTorch's own holds for all calls of this process."""
    is_on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return {
        "framework": "torch",
        "release": torch.__version__.partition("+")[0],
        "threads": torch.get_num_threads(),
        "device": "gpu" if is_on_gpu else "cpu",
    }


def describe_kept(key: tuple[Any, ...]) -> Mapping[str, Any]:
    """A call's arguments in words, and the sizes of its tensors in order."""
    layout = key[0]
    return {
        "signature": " ".join(_words(each) for each in layout),
        "sizes": [list(size) for each in layout for size in _sizes(each)],
    }


def describe_layout(key: tuple[Any, ...]) -> Mapping[str, Any]:
    """What `describe_kept` says, and the state that the call was made in."""
    _, grad, training, autocast = key
    return {
        **describe_kept(key),
        "grad": bool(grad),
        "training": bool(training),
        "autocast": autocast,
    }


def _is_tensor(layout: Any) -> bool:
    return isinstance(layout, tuple) and len(layout) == 2 and isinstance(layout[1], torch.dtype)


def _words(layout: Any) -> str:
    if _is_tensor(layout):
        return f"{str(layout[1]).removeprefix('torch.')}[{len(layout[0])}]"
    if isinstance(layout, tuple):
        return f"({' '.join(each if isinstance(each, str) else _words(each) for each in layout)})"
    return layout if isinstance(layout, str) else repr(layout)


def _sizes(layout: Any) -> Iterator[tuple[int, ...]]:
    if _is_tensor(layout):
        yield layout[0]
    elif isinstance(layout, tuple):
        for each in layout:
            yield from _sizes(each)
