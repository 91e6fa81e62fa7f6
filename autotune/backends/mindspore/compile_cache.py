"""MindSpore's compile cache, for one graph of one model.

MindSpore looks for a cached graph by the number of the compilation in the process, and takes it if the source files
that the job's script imports have not changed. It asks for nothing else: another constant, shape or script gives stale
results, or none (measured). So the cache is on for a single call, and the one file that it is told to compare holds
the key.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import mindspore as ms

from autotune.backends.mindspore.ascend import build_tools
from autotune.backends.protocol import variables_set
from autotune.errors import InputError

__all__ = ["build_tools", "use"]

_ENTRY = "entry_script_path"
"""The script whose imports MindSpore compares: a global of the module that holds `jit`."""
_KEY_FILE = "key.py"


@contextmanager
def use(folder: Path, key: str) -> Iterator[None]:
    """See `CompileCache`. Within: graphs and fused kernels come from `folder`, or go there. Raises OSError if it cannot
    be written.

    Raises InputError for a release that keeps the script that it compares in another place.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / _KEY_FILE).write_text(f"# {key}\n", encoding="utf-8")
    api = _api()
    before = getattr(api, _ENTRY, None)
    setattr(api, _ENTRY, str(folder / _KEY_FILE))
    try:
        with variables_set({"MS_COMPILER_CACHE_ENABLE": "1", "MS_COMPILER_CACHE_PATH": str(folder)}):
            yield
    finally:
        setattr(api, _ENTRY, before)


def _api() -> ModuleType:
    """`jit` has moved: https://www.mindspore.cn/docs/en/r2.10.0/api_python/mindspore/mindspore.jit.html"""
    for name in ("mindspore.graph.api", "mindspore.common.api"):
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if hasattr(module, _ENTRY):
            return module
    raise InputError(f"MindSpore {ms.__version__} cannot be told which files its compile cache depends on")
