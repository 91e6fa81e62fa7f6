"""A digest of what runs: the code that inductor emitted, and the settings under which it runs, as read back.

Two configs with the same digest are one config with two names. So whatever can change speed without showing in the
emitted code is in it: threads, what library kernels may do, autocast, types and layouts of the weights, the allocator.
"""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import torch

from autotune.backends.torch_apply import mode_options
from autotune.backends.torch_books import book
from autotune.backends.torch_settings import Settings

_COMMENT = re.compile(
    r"^[ \t]*(?:#(?!include|pragma|define|if|ifdef|ifndef|endif|else|undef)|//).*$"
    r"|(?<=\S)[ \t]+# .*$",
    re.MULTILINE,
)
"""Comments hold paths, addresses and numbers of graphs. In a kernel, a line with `#` is the preprocessor's."""

_HASHED_NAME = re.compile(r"\b[cs]?[a-z2-7]{50,52}\b")
"""A cache key of inductor's: base32 of a SHA-256, behind a letter."""


def program(model: torch.nn.Module, settings: Settings) -> str | None:
    """The digest; None where the emitted code cannot be had."""
    code = emitted_code() if settings.compiled and settings.backend == "inductor" else []
    if code is None or (settings.compiled and settings.backend != "inductor"):
        return None
    content = {
        "code": code,
        "capture": _capture() if settings.compiled else None,
        "graphs_of_the_device": _device_graphs(model, settings),
        "process": _process(),
        "precision": [settings.autocast, settings.cast],
        "inference_mode": settings.inference_mode,
        "keeps_memory": settings.keeps_memory,
        "model": _layouts(model),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def emitted_code() -> list[str] | None:
    """Source of every graph that inductor compiled or loaded in this process, in order, without what has no meaning.

    The source of a graph holds those of its kernels, C++ or Triton. None where this release keeps no list of them, or
    a file of the list is gone.
    """
    from torch._inductor.codecache import PyCodeCache

    modules = getattr(PyCodeCache, "modules", None)
    if modules is None:
        return None
    try:
        # The others are single kernels (their text is in the graph's too) and candidates that autotuning tried.
        return [normalised(Path(each.__file__).read_text()) for each in modules if hasattr(each, "call")]
    except OSError:
        return None


def normalised(source: str) -> str:
    """Emitted code without comments, cache keys and the folder that it lies in."""
    source = _HASHED_NAME.sub("KEY", _COMMENT.sub("", source))
    folder = re.escape(_cache_folder())
    return "\n".join(line.rstrip() for line in re.sub(folder, "CACHE", source).splitlines() if line.strip())


def _cache_folder() -> str:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return str(cache_dir())


def _capture() -> list[Any]:
    """Graphs, breaks and frames given up: what lies between the graphs runs as it is."""
    counters = book("counters")
    if counters is None:
        return []
    return [counters["stats"]["unique_graphs"], sorted(counters["frames"].items()), len(counters["graph_break"])]


def _device_graphs(model: torch.nn.Module, settings: Settings) -> list[Any] | None:
    """CUDA graphs change how emitted code is launched, and leave no trace in it. A CPU has none."""
    if not settings.compiled or all(each.device.type == "cpu" for each in _tensors(model)):
        return None
    return [mode_options(settings.mode), settings.options.get("triton.cudagraph_trees")]


def _process() -> list[Any]:
    """What library kernels go by."""
    return [
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        torch.backends.mkldnn.enabled,
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.allow_tf32,
        torch.backends.cuda.matmul.allow_tf32,
    ]


def _layouts(model: torch.nn.Module) -> list[Any]:
    """Type, shape and strides of each parameter and buffer: a memory format is a matter of strides."""
    return [[str(each.dtype), list(each.shape), list(each.stride())] for each in _tensors(model)]


def _tensors(model: torch.nn.Module) -> list[torch.Tensor]:
    return [*model.parameters(), *model.buffers()]
