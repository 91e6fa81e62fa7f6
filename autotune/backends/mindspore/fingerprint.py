"""The digest of what runs: graphs, kernels, and the settings in force.

Two configs with the same digest must be equally fast. So a setting whose effect shows in the kernels is left to them, a
setting that can be read back goes in as it stands, and any other as it was asked for.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mindspore as ms

from autotune.backends.mindspore.counters import execution_mode, graph_text, kernel_graphs, phases
from autotune.backends.mindspore.knobs import KNOBS, Shows
from autotune.backends.mindspore.moved_names import first
from autotune.backends.mindspore.regions import compiled_paths
from autotune.config import Config
from autotune.workload.regions import KNOB, Region

_RUNTIME = first("mindspore._c_expression:RuntimeConf")


def program(model: Any, config: Config) -> str | None:
    """Hexadecimal digest; None where this release does not show its graphs."""
    names = phases(model, config)
    if names is None:
        return None
    way = execution_mode(config) if names else "pynative"
    texts = [graph_text(name) for name in sorted(names)]
    if any(text is None for text in texts):
        return None
    graphs = sorted(_plain(text) for text in texts if text is not None)
    dumped = kernel_graphs() if names else None
    kernels = sorted(_plain(text) for text in dumped.texts) if dumped else []
    # What is not among these Cells runs operator by operator.
    cells = compiled_paths(model) if names else []
    content = [way, graphs, kernels, cells, _settings(config, way, shows_kernels=bool(kernels))]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


_ADDRESS = re.compile(r"0x[0-9a-f]+")
_NODE_NAME = re.compile(r"^(%\d+)\([^)]*\)|\(CNode_[^)]*\)", re.MULTILINE)
_GRAPH_NAME = re.compile(r"@[\w.]+|(?<=subgraph instance: )\S+")
_DIFFERS_ANYWAY = ("#", "jit_syntax_level:", "phase:", "compile_phase:")
"""Comments (source lines, scopes), and what only says how the graph was asked for."""


def _plain(text: str) -> str:
    """The graph without what differs from process to process: addresses, names with counters, source lines."""
    lines = (line.strip() for line in text.splitlines())
    kept = "\n".join(line for line in lines if line and not line.startswith(_DIFFERS_ANYWAY))
    kept = _NODE_NAME.sub(r"\1", _ADDRESS.sub("0x", kept))
    numbers: dict[str, str] = {}
    return _GRAPH_NAME.sub(lambda name: numbers.setdefault(name[0].lstrip("@"), f"graph {len(numbers)}"), kept)


def _settings(config: Config, way: str, *, shows_kernels: bool) -> dict[str, Any]:
    compiled = way != "pynative"
    shown = {Shows.READ_BACK, *([Shows.IN_KERNELS] if shows_kernels else [])}
    shown |= set() if compiled else {Shows.IN_KERNELS, Shows.IN_GRAPHS_ONLY}
    left_out = {"execution", "capture", KNOB, *(name for name, knob in KNOBS.items() if knob.shows in shown)}
    asked = {knob: value for knob, value in config.root.items() if knob not in left_out}
    if compiled:
        # graph_pipeline holds for whole graphs only: without fullgraph both of its values are the same.
        asked["graph_pipeline"] = asked.pop("fullgraph", False) and asked.get("graph_pipeline", True)
    return {**asked, **dict(_in_force(config, way))}


def _in_force(config: Config, way: str) -> Iterator[tuple[str, Any]]:
    on_cpu = ms.get_context("device_target") == "CPU"
    yield "onednn_isa", (effective_isa() if on_cpu else None) or config.get("onednn_isa")
    yield "kernel_threads", ms.get_context("runtime_num_threads")
    if way == "pynative" or not Region.of(config).is_whole:
        yield "launch_blocking", config.get("launch_blocking", False) and is_launch_blocking()
    if way != "pynative":
        yield "dispatch_threads", ms.get_context("inter_op_parallel_num")
        yield "memory_optimize_level", ms.get_context("memory_optimize_level")


def effective_isa() -> int | None:
    """The instruction sets that oneDNN uses in this process, as its `dnnl_cpu_isa_t`; None if it does not say.

    The first call settles them: a cap that is set later is not seen any more. https://uxlfoundation.github.io/oneDNN/
    """
    library = Path(ms.__file__).parent / "lib" / "libdnnl.so.3"
    try:
        return int(ctypes.CDLL(str(library)).dnnl_get_effective_cpu_isa())
    except (OSError, AttributeError):
        return None


def is_launch_blocking() -> bool:
    """PyNative runs each operator before it returns: it was asked to, and its queue was not started before that."""
    asked = _RUNTIME.get_instance().is_launch_blocking() if hasattr(_RUNTIME, "is_launch_blocking") else True
    return (asked or bool(ms.get_context("pynative_synchronize"))) and not has_queue()


def has_queue() -> bool:
    """PyNative's queue runs: an operator was called while launches were not blocking (measured: thread names)."""
    return any(_thread_name(thread) == "frontend_queue" for thread in Path("/proc/self/task").glob("*"))


def _thread_name(thread: Path) -> str:
    try:
        return (thread / "comm").read_text().strip()
    except OSError:
        return ""
