"""The kernels that MindSpore launches, from the dump of the graphs that its compiler hands to the runtime.

The dump is asked for with three environment variables, for this one pass of the compiler. A fused kernel stands in it
as a call of a small graph of its own, so the dump shows exactly what was fused.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

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
