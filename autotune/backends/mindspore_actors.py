"""The kernels that MindSpore's runtime launches, from the dump of its final actor sets.

The dump is asked for with three environment variables and costs nothing that shows (measured: the first call of a ViT
takes as long with it as without, within the noise, and writes 0.6 MB). MindSpore writes one set for each graph that
it hands to its runtime.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

_FOLDER_VARIABLE = "MS_DEV_SAVE_GRAPHS_PATH"
_OLDEST = Version("2.9")
"""Older releases may not know the filter, and would write every pass of the compiler: tens of megabytes."""
_KERNEL = re.compile(r"^%\d+ = kernel_graph\d+:(\S+?)-op\d+\(", re.MULTILINE)
_FUSED = re.compile(r"^GraphKernel_(\w+?)_(?:fusion|split)$")


@dataclass(frozen=True)
class Kernels:
    """What the runtime launches at each call of each compiled graph."""

    texts: tuple[str, ...]
    """The final actor sets, as dumped."""

    def counts(self) -> Counter[str]:
        """Kernel name -> how often it is launched."""
        return Counter(name for text in self.texts for name in _KERNEL.findall(text))

    @property
    def num_kernels(self) -> int:
        return sum(self.counts().values())

    @property
    def num_fused(self) -> int:
        """Operators that stand in a fused kernel with others: the name of a fused kernel lists them."""
        return sum(count * _num_others(name) for name, count in self.counts().items())


def _num_others(kernel: str) -> int:
    operators = _FUSED.match(kernel)
    return operators[1].count("_") if operators else 0


def dump_variables(folder: str, version: str) -> dict[str, str]:
    """The variables that ask for the dump, below a folder. The process has one of its own: caches may be shared."""
    if Version(version) < _OLDEST:
        return {}
    return {
        "MS_DEV_SAVE_GRAPHS": "1",
        "MS_DEV_DUMP_IR_PASSES": "final_actor",
        _FOLDER_VARIABLE: str(Path(folder, f"graphs-{os.getpid()}")),
    }


def final_kernels() -> Kernels | None:
    """What was dumped so far; None if nothing was (none asked for, nothing compiled, a device that keeps it)."""
    folder = os.environ.get(_FOLDER_VARIABLE)
    files = sorted(Path(folder).rglob("final_actor_set_*.ir")) if folder else []
    kernels = Kernels(tuple(file.read_text(encoding="utf-8", errors="replace") for file in files))
    return kernels if kernels.num_kernels else None
