"""Libraries that the C++ compiler made for earlier trials are found again, and the seconds that they took are told.

Inductor names a library by a digest of its source and of the compiler's command line: one of the same name is what the
compiler would write again. Configs of one study share most of theirs, while their graphs differ: what is in the graph
caches is not shared, so each trial is traced, lowered and written as in a job whose caches are empty.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch._inductor.config as inductor
from torch._inductor import cpp_builder

from autotune.measure.sampling import Clock

_SHARED = (".so", ".o")
"""Endings of what is shared. A precompiled header is no library, and the toolchain has it."""

_builder: Any = getattr(cpp_builder, "CppBuilder", None)


@contextmanager
def shared_kernels(folder: Path, num_threads: int, clock: Clock, spare: Callable[[float], object]) -> Iterator[None]:
    """See `SharedKernels`."""
    if _builder is None or not hasattr(_builder, "build") or not hasattr(_builder, "get_target_file_path"):
        yield
        return
    build = _builder.build

    def build_or_find(builder: Any) -> Any:
        target = Path(builder.get_target_file_path())
        if target.suffix not in _SHARED:
            return build(builder)
        seconds = _find(folder, target)
        if seconds is not None:
            # Several threads compile at the same time.
            spare(seconds / num_threads)
            return None
        start = clock()
        result = build(builder)
        _keep(folder, target, clock() - start)
        return result

    threads = inductor.compile_threads
    inductor.compile_threads = num_threads
    _builder.build = build_or_find
    try:
        yield
    finally:
        _builder.build = build
        inductor.compile_threads = threads


def _find(folder: Path, target: Path) -> float | None:
    """Put a library where it belongs. Returns the seconds that it took to make; None where there is none."""
    kept = folder / target.name
    try:
        seconds = float(_seconds_of(kept).read_text())
        target.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            os.link(kept, target)
    except (OSError, ValueError):
        return None
    return seconds


def _keep(folder: Path, target: Path, seconds: float) -> None:
    """The library comes last, so that it is there with its seconds or not at all. No room or no links: not kept."""
    kept = folder / target.name
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        _seconds_of(kept).write_text(f"{seconds:.4f}")
        os.link(target, kept)


def _seconds_of(kept: Path) -> Path:
    return kept.with_name(f"{kept.name}.seconds")
