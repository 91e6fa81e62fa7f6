"""What MindSpore says that it compiled, from counters that are private and move between releases.

A missing counter makes the quantity that it gives None. "Measured" means: on MindSpore 2.10.0, CPU, Linux x86-64.
"""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import mindspore as ms
from packaging.version import Version

from autotune.backends.mindspore.moved_names import first
from autotune.backends.mindspore.regions import compiled_paths
from autotune.config import Config
from autotune.measure.diagnosis import BreakKind, Compilations, Diagnosis, GraphBreak, Recompile
from autotune.measure.findings import EVERYWHERE

_JIT_EXECUTOR = first("mindspore._c_expression:JitExecutor_")
_GRAPH_EXECUTOR = first("mindspore._c_expression:GraphExecutor_")
_DUMP_GRAPH = first("mindspore._c_expression:dump_func_graph")
_AST_PHASES = first("mindspore.graph.api:ms_compile_cache", "mindspore.common.api:ms_compile_cache")


def execution_mode(config: Config) -> str:
    """How the model runs: `pynative`, `graph`, or the capture of ms.jit, `ast`."""
    return "ast" if config["execution"] == "jit" else str(config["execution"])


def phases(model: Any, config: Config) -> Collection[str] | None:
    """MindSpore's names for the graphs that it compiled; empty if it compiled none, None if it does not tell."""
    way = execution_mode(config)
    if way == "pynative":
        return ()
    found: Collection[str] | None = getattr(model, "compile_cache", None) if way == "graph" else _AST_PHASES
    return found


def diagnose(model: Any, config: Config) -> Diagnosis:
    """See `Backend.diagnose`."""
    if execution_mode(config) == "pynative":
        return Diagnosis(compiled=False, num_graphs=0, graph_breaks=(), recompiles=())
    said = _diagnose_phases(phases(model, config), num_cells=len(compiled_paths(model)) or 1)
    kernels = kernel_graphs() if said.compiled else None
    if kernels is None:
        return said
    counted: dict[str, Any] = {"num_kernels": kernels.num_kernels, "num_fused": kernels.num_fused}
    if kernels.num_fused:
        counted |= {"fused": kernels.fused, "unfused": kernels.unfused}
    return said.model_copy(update=counted)


def compilations(model: Any, config: Config) -> Compilations | None:
    """See `Backend.compilations`. What cannot be compiled is an error."""
    names = phases(model, config)
    return None if names is None else Compilations(num_graphs=len(names), num_given_up=0)


def _diagnose_phases(names: Collection[str] | None, *, num_cells: int) -> Diagnosis:
    """MindSpore keeps one phase for each graph, that is for each new combination of input shapes, types, values of each
    compiled Cell."""
    if names is None:
        return Diagnosis(compiled=None, note="this release does not tell what it compiled")
    if not names:
        return Diagnosis(compiled=False, num_graphs=0, note="no graph was compiled: ran as PyNative (is MS_JIT=0 set?)")
    again = Recompile(reason="an input of a new shape or type, or a new Python value", ailment=BreakKind.CHANGING_INPUT)
    return Diagnosis(
        compiled=True,
        num_graphs=len(names),
        graph_breaks=_interpreted(names),
        recompiles=(again,) * max(len(names) - num_cells, 0),
    )


def _interpreted(names: Collection[str]) -> tuple[GraphBreak, ...] | None:
    """The Python that a graph hands back to the interpreter at every call, counted for each Cell."""
    scopes: Counter[str] = Counter()
    for phase in names:
        text = graph_text(phase)
        if text is None:
            return None
        scopes.update(_interpreted_scopes(text))
    return tuple(
        GraphBreak(reason=f"operations left to the Python interpreter (PyExecute) in {scope}", count=count)
        for scope, count in scopes.items()
    )


def graph_text(phase: str) -> str | None:
    """The final graph of a phase as text; None where this release does not give it."""
    executors = [executor.get_instance() for executor in (_JIT_EXECUTOR, _GRAPH_EXECUTOR) if executor is not None]
    owner = next((executor for executor in executors if executor.has_compiled(phase)), None)
    return None if owner is None or _DUMP_GRAPH is None else str(_DUMP_GRAPH(owner.get_func_graph(phase)))


def _interpreted_scopes(text: str) -> Iterator[str]:
    """The path of Cells of each fallback node: it stands some lines below the node, as `# Scope: (Default/...)`."""
    inside = False
    for line in text.splitlines():
        if " = PyExecute(" in line or " = PyInterpret(" in line:
            inside = True
        elif inside and "# Scope: " in line:
            inside = False
            yield line.partition("# Scope: ")[2].strip("()")


# The kernels that MindSpore launches, from the dump of the graphs that its compiler hands to the runtime.
#
# The dump is asked for with three environment variables, for this one pass of the compiler. A fused kernel stands in it
# as a call of a small graph of its own, so the dump shows exactly what was fused.

_FOLDER_VARIABLE = "MS_DEV_SAVE_GRAPHS_PATH"
_PASS = "graph_build"
_OLDEST = Version("2.9")
"""Older releases may not know the filter, and would write every pass of the compiler: tens of megabytes."""
_GRAPH = re.compile(r"^subgraph @(\S+?)\(", re.MULTILINE)
_NODE = re.compile(r"^\s*%\d+(?:\([^)]*\))? = (call @[^\s(]+|[^\s(]+)\(", re.MULTILINE)
_NO_KERNELS = frozenset({"Load", "TupleGetItem", "MakeTuple", "Depend", "UpdateState", "Return", "Partial", "Switch"})


@dataclass(frozen=True)
class KernelGraphs:
    """The graphs that the runtime got, as dumped."""

    texts: tuple[str, ...]

    def launched(self) -> Counter[str]:
        """Operator, or `call @GRAPH` for a fused kernel -> how many kernels of it are launched at each call."""
        return Counter(node for graph, nodes in self._graphs() if graph.startswith("kernel_graph") for node in nodes)

    @property
    def num_kernels(self) -> int:
        return self.launched().total()

    @property
    def num_fused(self) -> int:
        """Operators that stand in a fused kernel beside the first one: so many kernels fewer are launched."""
        sizes = {f"call @{graph}": len(nodes) for graph, nodes in self._graphs()}
        return sum(count * (sizes.get(name, 1) - 1) for name, count in self.launched().items())

    @property
    def fused(self) -> dict[str, int]:
        """The fused kernels that were formed, by MindSpore's name, with the number of operators in each."""
        sizes = {f"call @{graph}": len(nodes) for graph, nodes in self._graphs()}
        return {name.removeprefix("call @"): sizes.get(name, 1) for name in self.launched() if _is_fused(name)}

    @property
    def unfused(self) -> dict[str, int]:
        """The operators that were left as kernels of their own, with how often a call launches them. The dump does
        not say why: MindSpore fuses the operators of a list, and those only where they are neighbours."""
        return {name: number for name, number in self.launched().most_common() if not _is_fused(name)}

    def _graphs(self) -> list[tuple[str, list[str]]]:
        """Name and operators of each graph, those of fused kernels among them."""
        found = []
        for text in self.texts:
            _, *parts = _GRAPH.split(text)
            found += [(name, _operators(body)) for name, body in zip(parts[::2], parts[1::2], strict=True)]
        return found


def _is_fused(name: str) -> bool:
    return name.startswith("call @")


def _operators(body: str) -> list[str]:
    names = (node.removeprefix("PrimFunc_") for node in _NODE.findall(body))
    return [name for name in names if name not in _NO_KERNELS]


def dump_variables(folder: str, version: str) -> dict[str, str]:
    """The variables that ask for the dump, below a folder. The process has one of its own: caches may be shared."""
    if Version(version) < _OLDEST:
        return {}
    return {
        "MS_DEV_SAVE_GRAPHS": "1",
        "MS_DEV_DUMP_IR_PASSES": _PASS,
        _FOLDER_VARIABLE: str(Path(folder, f"graphs-{os.getpid()}")),
    }


def kernel_graphs() -> KernelGraphs | None:
    """What was dumped so far; None if nothing was (not asked for, nothing compiled, a backend of its own)."""
    folder = os.environ.get(_FOLDER_VARIABLE)
    files = sorted(Path(folder).rglob(f"{_PASS}_*.ir")) if folder else []
    return KernelGraphs(tuple(file.read_text(encoding="utf-8", errors="replace") for file in files)) if files else None


# What is left to the Python interpreter takes, by mindspore.profiler. Its files are of its own form; those of 2.10 on a
# CPU are read.
#
# https://www.mindspore.cn/docs/en/r2.10.0/api_python/mindspore/mindspore.profiler.profile.html

_TIMES = "FRAMEWORK/cpu_op_type_info_*.csv"
_INTERPRETED = "PyExecute"


def profile(call: Callable[[], None], num_calls: int, device: str) -> dict[str, float]:
    """See `Profiler`. What was left to the Python interpreter, on a CPU; from which line it is, is not told."""
    if device != "cpu" or not hasattr(ms.profiler, "profile"):
        return {}
    with TemporaryDirectory(prefix="profile-") as folder:
        handler = ms.profiler.tensorboard_trace_handler(folder)
        with ms.profiler.profile(activities=[ms.profiler.ProfilerActivity.CPU], on_trace_ready=handler):
            for _ in range(num_calls):
                call()
        tables = sorted(Path(folder).glob(f"*/{_TIMES}"))
        times = times_in(tables[0].read_text(encoding="utf-8")) if tables else {}
    return {EVERYWHERE: times[_INTERPRETED] / num_calls} if _INTERPRETED in times else {}


def times_in(table: str) -> dict[str, float]:
    """Type of operator -> seconds of its calls. The table has milliseconds."""
    return {row["op_type"]: float(row["total_compute_time"]) * 1e-3 for row in csv.DictReader(table.splitlines())}
