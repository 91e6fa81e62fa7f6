"""A digest of what runs: the code that inductor emitted, and the settings under which it runs, as read back.

Two configs with the same digest are one config with two names. So whatever can change speed without showing in the
emitted code is in it: which modules run it, threads, what library kernels may do, autocast, types and layouts of the
weights, the allocator.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch

from autotune.backends.torch import precision
from autotune.backends.torch.apply import mode_options
from autotune.backends.torch.counters import diagnosis, emitted_code, num_uncaptured
from autotune.backends.torch.knobs import Settings
from autotune.backends.torch.regions import compiled_paths, left_paths, newest_copy


def program(model: torch.nn.Module, settings: Settings) -> str | None:
    """The digest; None where the emitted code cannot be had."""
    if not settings.through_inductor:
        return None
    code = emitted_code() if settings.compiles_anything else []
    if code is None:
        return None
    compiled = model if settings.region.is_whole else newest_copy(model)
    found = diagnosis()
    content: dict[str, Any] = {
        "code": code,
        # What lies between the graphs runs as it is.
        "capture": [found.num_graphs, found.num_graph_breaks, found.num_recompiles, found.note]
        if settings.compiles_anything
        else None,
        "region": [compiled_paths(compiled), left_paths(compiled)],
        "graphs_of_the_device": _device_graphs(model, settings),
        # What library kernels go by.
        "process": [
            torch.get_num_threads(),
            precision.current_precisions(),
            torch.backends.mkldnn.enabled,
            torch.backends.cudnn.benchmark,
            *([] if _is_on_cpu(model) else precision.libraries_of_products()),
        ],
        "precision": settings.autocast,
        "attention": _attention(settings),
        "keeps_memory": settings.keeps_memory,
        # A memory format is a matter of strides.
        "model": [[str(tensor.dtype), list(tensor.shape), _order(tensor)] for tensor in _tensors(model)],
        "optimizer": [settings.optimizer_impl, settings.optimizer_compiled],
    }
    if unseen := _unseen_options(model, settings):
        content["options"] = unseen
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def _order(tensor: torch.Tensor) -> list[int] | str:
    """How its elements lie in memory."""
    return list(tensor.stride()) if tensor.layout is torch.strided else str(tensor.layout)


def _unseen_options(model: torch.nn.Module, settings: Settings) -> dict[str, Any]:
    """Options of the compiler that may act without a trace in the emitted code, as they were asked for: dynamo's in its
    guards, and on a device inductor's in how kernels are built and launched."""
    on_cpu, named = _is_on_cpu(model), settings.open_options.items()
    return {name: value for name, value in named if not (on_cpu and name.startswith("inductor."))}


def _is_on_cpu(model: torch.nn.Module) -> bool:
    return all(tensor.device.type == "cpu" for tensor in _tensors(model))


def _attention(settings: Settings) -> str | None:
    """The kernel is written into the graph while it is captured; what lies between graphs chooses at each call."""
    found = diagnosis()
    is_in_the_code = found.num_graph_breaks == 0 and not settings.region.compiled and not settings.region.left
    return None if settings.attention is None or is_in_the_code else settings.attention


def _device_graphs(model: torch.nn.Module, settings: Settings) -> list[Any] | None:
    """CUDA graphs change how emitted code is launched, and leave no trace in it. A CPU has none; a config that asked
    for them and got none is the same as one that did not ask."""
    if not settings.compiled or all(tensor.device.type == "cpu" for tensor in _tensors(model)):
        return None
    asked, uncaptured = mode_options(settings.mode), num_uncaptured()
    if uncaptured and uncaptured >= (diagnosis().num_graphs or 0):
        return [{name: value for name, value in asked.items() if "cudagraph" not in name}, None, 0]
    return [asked, settings.options.get("triton.cudagraph_trees"), uncaptured]


def _tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]
