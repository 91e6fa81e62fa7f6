"""Caches of compiled code: where they lie, what they can be shipped with, and what trials of a study share of them; and
the processes that compile, begun ahead."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from autotune import own_folders
from autotune.backends.protocol import variables_set
from autotune.backends.torch import npu
from autotune.backends.torch.knobs import settings_of
from autotune.config import Config
from autotune.environment import package_version
from autotune.errors import StoreError
from autotune.measure.sampling import Clock


def use(folder: Path, key: str) -> AbstractContextManager[Any]:
    """See `CompileCache`. The whole folder, not what `torch.compiler.save_cache_artifacts` gives: that leaves the
    compiled C++ out, and nothing at all remains of frozen code (docs/decisions/0013-cache-artifact.md)."""
    return variables_set(cache_variables(str(folder)))


def build_tools() -> dict[str, str]:
    """See `CompileCache`."""
    versions = {name: package_version(name) for name in ("triton", "torch-npu", "triton-ascend")}
    tools = {"C++ compiler": _cpp_compiler(), "CUDA": torch.version.cuda, "ROCm": torch.version.hip, **versions}
    return {name: version for name, version in tools.items() if version is not None}


def cache_variables(folder: str) -> dict[str, str]:
    """Inductor keeps its AOTAutograd and FX graph caches under its own folder; Triton has one of its own."""
    home = Path(folder) if own_folders.is_one_word(folder) else own_folders.by_one_word(folder)
    own = {"TORCHINDUCTOR_CACHE_DIR": str(home / "inductor"), "TRITON_CACHE_DIR": str(home / "triton")}
    return {**own, **npu.cache_variables(home)}


def _cpp_compiler() -> str | None:
    """What the compiler that inductor would call says of itself."""
    for name in filter(None, (os.environ.get("CXX"), "g++", "clang++")):
        with suppress(OSError, subprocess.SubprocessError, UnicodeDecodeError):
            told = subprocess.run([name, "--version"], capture_output=True, text=True, timeout=30, check=True)
            return told.stdout.partition("\n")[0]
    return None


# Libraries that the C++ compiler made for earlier trials are found again, and the seconds that they took are told.
#
# Inductor names a library by a digest of its source and of the compiler's command line: one of the same name is what
# the compiler would write again. Configs of one study share most of theirs, while their graphs differ: what is in the
# graph caches is not shared, so each trial is traced, lowered and written as in a job whose caches are empty.

_SHARED = (".so", ".o")
"""Endings of what is shared. A precompiled header is no library, and the toolchain has it."""


@contextmanager
def shared_kernels(folder: Path, num_threads: int, clock: Clock, spare: Callable[[float], object]) -> Iterator[None]:
    """See `SharedKernels`. Imports the compiler."""
    import torch._inductor.config as inductor
    from torch._inductor import cpp_builder

    builder_class: Any = getattr(cpp_builder, "CppBuilder", None)
    if not hasattr(builder_class, "build") or not hasattr(builder_class, "get_target_file_path"):
        yield
        return
    build = builder_class.build

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
    builder_class.build = build_or_find
    try:
        yield
    finally:
        builder_class.build = build
        inductor.compile_threads = threads


def _find(folder: Path, target: Path) -> float | None:
    """Put a library where it belongs. Returns the seconds that it took to make; None where there is none."""
    kept = folder / target.name
    try:
        seconds = float(_seconds_of(kept).read_text())
        with suppress(FileExistsError):
            own_folders.link(kept, target)
    except (OSError, ValueError, StoreError):
        return None
    return seconds


def _keep(folder: Path, target: Path, seconds: float) -> None:
    """The library comes last, so that it is there with its seconds or not at all. No room or no links: not kept."""
    kept = folder / target.name
    with suppress(OSError, StoreError):
        _seconds_of(kept).write_text(f"{seconds:.4f}")
        own_folders.link(target, kept)


def _seconds_of(kept: Path) -> Path:
    return kept.with_name(f"{kept.name}.seconds")


def begin_compilers(config: Config, clock: Clock) -> Callable[[], float] | None:
    """See `CompilersAhead`. Inductor begins its pool with its first compile, and compiles kernels one by one in the
    trial's own process until one of the pool has imported torch. Imports a part of the compiler."""
    settings = settings_of(config)
    if not settings.compiles_anything or not settings.through_inductor:
        return None
    begun = clock()
    import torch._inductor.config as inductor
    from torch._inductor.async_compile import AsyncCompile

    imported = clock()
    pool: Any = AsyncCompile
    starts: Callable[[], bool] | None = getattr(pool, "use_process_pool", None)
    # Other kinds of pools are forks of this process, or ask the driver for the device before they begin.
    if starts is None or getattr(inductor, "worker_start_method", None) != "subprocess":
        return lambda: imported - begun
    starts()
    ready: list[float] = []
    first: Future[Any] | None = getattr(pool, "_ready_future", None)
    if first is None:  # It has no pool: one thread compiles.
        return lambda: imported - begun
    first.add_done_callback(lambda _: ready.append(clock()))
    return lambda: min([clock(), *ready]) - begun
